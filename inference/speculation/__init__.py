"""More than one token a step, losing nothing: proposals, checked against the grammar, verified in one forward.

    propose ──▶ validate ──▶ cut ──▶ verify ──▶ commit
    (lookup,    (matcher)    (policy) (one       (up to the first token that
     forced,                           forward)   differs, and that one too)
     draft_model)

A draft is tokens that may come next. The step computes it behind the request's own last token and chooses a token at
each of its places as if those before had been committed; a draft is right as far as it is what was chosen. Choices are
functions of logits, seed and place alone, so the answer is what it would be without drafts, sampled ones included.
"""
