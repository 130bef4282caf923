"""What to propose for each request of the next step, and what becomes of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from inference.sequence import Sequence
from inference.speculation.draft import Draft, Source
from inference.speculation.draft_model import DraftModel, Wanted
from inference.speculation.lookup import Lookup
from inference.speculation.policy import Policy


class Speculator:
    """Proposals of all sources for all requests. Owned by the engine's loop."""

    def __init__(
        self,
        sources: AbstractSet[Source],
        *,
        max_draft_tokens: int,
        max_model_len: int,
        draft_model: DraftModel | None = None,
    ) -> None:
        self.policy = Policy()
        self._sources = sources
        self._max_draft = max_draft_tokens
        self._max_model_len = max_model_len
        self._draft_model = draft_model
        self._lookups: defaultdict[str, Lookup] = defaultdict(Lookup)

    def propose(self, sequences: Iterable[Sequence]) -> dict[str, Draft]:
        """Drafts by request id for the sequences whose next token is chosen in the next step, as far as they pay."""
        decoding = list(sequences)
        drafts = {sequence.request.id: self._draft(sequence) for sequence in decoding}
        if self._draft_model is not None:
            self._ask_model(self._draft_model, decoding, drafts)
        for draft in drafts.values():
            draft.cut(self.policy.length(draft, len(decoding)))
        return {request_id: draft for request_id, draft in drafts.items() if draft}

    def observe(self, draft: Draft, verified: int, accepted: int) -> None:
        """Of a draft, the scheduler let `verified` tokens through, and the first `accepted` of these came true."""
        draft.cut(verified)
        self.policy.observe(draft, accepted)

    def forget(self, sequence: Sequence) -> None:
        """A request has ended."""
        self._lookups.pop(sequence.request.id, None)
        if self._draft_model is not None:
            self._draft_model.forget(sequence)

    def _limit(self, sequence: Sequence) -> int:
        """The token that is chosen behind a draft must still be wanted."""
        wanted = sequence.request.sampling.max_tokens - sequence.output_length
        room = self._max_model_len - len(sequence.tokens)
        return min(self._max_draft, wanted - 1, room - 1)

    def _draft(self, sequence: Sequence) -> Draft:
        draft, limit, matcher = Draft(), self._limit(sequence), sequence.matcher
        if limit <= 0:
            return draft
        if Source.FORCED in self._sources and matcher is not None:
            draft.extend(Source.FORCED, matcher.forced(limit))
        if Source.LOOKUP in self._sources:
            lookup = self._lookups[sequence.request.id]
            draft.extend(Source.LOOKUP, lookup.follow(sequence.tokens, draft.tokens, limit - len(draft)))
        return _allowed(sequence, draft)

    def _ask_model(self, model: DraftModel, decoding: list[Sequence], drafts: Mapping[str, Draft]) -> None:
        """Let the draft model go on where nothing else is proposed."""
        silent = [s for s in decoding if not drafts[s.request.id] and self._limit(s) > 0]
        if not silent:
            return
        length = self.policy.model_length(min(self._max_draft, max(self._limit(s) for s in silent)), len(silent))
        if not length:
            return
        wanted = [Wanted(s, min(length, self._limit(s))) for s in silent]
        for sequence, tokens in zip(silent, model.propose(wanted, self.policy.note_draft_step), strict=True):
            draft = drafts[sequence.request.id]
            draft.extend(Source.MODEL, tokens)
            _allowed(sequence, draft)


def _allowed(sequence: Sequence, draft: Draft) -> Draft:
    if sequence.matcher is not None and draft:
        draft.cut(sequence.matcher.validate(draft.tokens))
    return draft
