"""Where a request stands in its grammar, and the masks of a step.

A matcher moves only on committed tokens. Looking ahead (`validate`, the rows of a draft) happens on copies, which cost
a few microseconds, so that a refused draft, or a state beyond the limits that only the draft leads to, leaves the
request as it was. Masks are filled while the forward runs; llguidance lets go of the GIL.

Tokenisation. Where the grammar forces bytes (`{"title": "`), llguidance allows the one token by which the tokenizer
itself would begin to write them, and `forced` proposes the tokens that follow in the same way, leaving off what a
later byte could still merge with. `validate` looks at bytes only, so it also accepts other spellings of forced bytes.
Both are proposals: the mask of their row, which depends on committed tokens alone, decides, exactly as without a draft.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import takewhile

import llguidance
import llguidance.numpy as guidance_numpy
import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Vocabulary:
    """`size` is the number of logits: a head may be padded beyond the tokenizer, never the other way round."""

    size: int
    end_tokens: tuple[int, ...]

    @cached_property
    def only_the_end(self) -> npt.NDArray[np.int32]:
        """The mask that allows the end tokens: [ceil(size / 32)]."""
        words = np.zeros(guidance_numpy.get_bitmask_shape(1, self.size)[1], dtype=np.uint32)
        for token in self.end_tokens:
            words[token // 32] |= np.uint32(1 << (token % 32))
        return words.view(np.int32)


class Matcher:
    """The state of one request. Once in error, it stays there."""

    def __init__(self, inner: llguidance.LLMatcher, vocabulary: Vocabulary) -> None:
        self._inner = inner
        self.vocabulary = vocabulary

    @property
    def stopped(self) -> bool:
        """True when nothing but the end may follow."""
        return self._inner.is_stopped()

    @property
    def error(self) -> str:
        """Why no more masks can be had; empty while all is well."""
        return self._inner.get_error()

    def consume(self, token: int) -> bool:
        """Move on by a committed token; False, and an `error`, when the grammar does not allow it."""
        return self._inner.consume_token(token)

    def forced(self, limit: int) -> list[int]:
        """The tokens that must come next, at most `limit`. The first is the only one that the mask allows; the others
        are what the tokenizer makes of the forced bytes at once, which seldom differs from going token by token."""
        return [] if limit <= 0 or self.stopped else self._inner.compute_ff_tokens()[:limit]

    def validate(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of a proposal the grammar allows from here, an end token in its place included.

        Does not move, and cannot fail: a token outside the vocabulary ends the count."""
        known = list(takewhile(self._known, tokens))
        return self._copy().validate_tokens(known) if known else 0

    def fill(self, words: npt.NDArray[np.int32], line: int) -> None:
        """The mask of this state into a line of `words`; look at `error` afterwards."""
        guidance_numpy.fill_next_token_bitmask(self._inner, words, line)

    def ahead(self, draft: Sequence[int]) -> tuple[llguidance.LLMatcher, list[int]]:
        """What walks along a draft in this one's place, and the tokens of the draft that it can be given."""
        known = list(takewhile(self._known, draft))
        # Without a draft nothing moves, and what llguidance learns about this state stays.
        return self._copy() if known else self._inner, known

    def fill_ahead(self, draft: Sequence[int], words: npt.NDArray[np.int32], line: int) -> tuple[int, str] | None:
        """The plain twin of one matcher's part in `fill_draft_masks`, state by state: 1 + len(draft) lines from `line`.

        -> the line from which on no mask can be had and why, if there is one.
        """
        ahead, known = self._copy(), self.ahead(draft)[1]
        last = line + len(draft)
        words[line : last + 1] = self.vocabulary.only_the_end
        for at in range(line, line + len(known) + 1):
            if not ahead.get_error():
                guidance_numpy.fill_next_token_bitmask(ahead, words, at)
            if error := ahead.get_error():
                words[at : last + 1] = 0
                return at, error
            if at == line + len(known) or ahead.is_stopped():
                break
            if not ahead.try_consume_tokens([known[at - line]]) and not ahead.is_error():
                break
        return None

    def _known(self, token: int) -> bool:
        return 0 <= token < self.vocabulary.size

    def _copy(self) -> llguidance.LLMatcher:
        return self._inner.deep_copy()


def fill_masks(matchers: Sequence[Matcher], head_size: int) -> npt.NDArray[np.int32]:
    """What each matcher allows next: [len(matchers), ceil(head_size / 32)], bit b of word w for token 32 w + b."""
    words = guidance_numpy.allocate_token_bitmask(len(matchers), head_size)
    if matchers:
        states = [(matcher._inner, line) for line, matcher in enumerate(matchers)]
        guidance_numpy.fill_next_token_bitmask_par(_threads(), states, words)
    return words


def fill_draft_masks(
    drafted: Sequence[tuple[Matcher, Sequence[int]]], head_size: int
) -> tuple[npt.NDArray[np.int32], dict[int, str]]:
    """Masks for verifying drafts that `validate` has passed: for each matcher 1 + len(draft) rows, one after the other.

    Row 0 of a matcher is its state now, row j the state after the first j tokens of its draft; an empty draft gives
    one row. Matchers stay where they are. Returns the rows, [sum(1 + len(draft)), ceil(head_size / 32)] as in
    `fill_masks`, and {row: reason} for the rows that cannot be had (the limits on a step's work); such a row and the
    rest of its draft have no bit set, and its request fails only if verification gets there. Rows that verification
    cannot reach, behind the grammar's end or behind a token it refuses, allow the end tokens only.
    """
    words = guidance_numpy.allocate_token_bitmask(sum(len(draft) + 1 for _, draft in drafted), head_size)
    still: list[tuple[llguidance.LLMatcher, int]] = []
    moving: list[tuple[llguidance.LLMatcher, int, list[int]]] = []
    at: list[tuple[Matcher, Sequence[int], llguidance.LLMatcher, int]] = []
    line = 0
    for matcher, draft in drafted:
        state, known = matcher.ahead(draft)
        if known:
            moving.append((state, line, known))
        else:
            still.append((state, line))
        if draft:
            words[line + 1 : line + len(draft) + 1] = matcher.vocabulary.only_the_end
        at.append((matcher, draft, state, line))
        line += len(draft) + 1
    if still:
        guidance_numpy.fill_next_token_bitmask_par(_threads(), still, words)
    if moving:
        guidance_numpy.fill_next_token_bitmask_par_with_draft_tokens(_threads(), moving, words)
    failed: dict[int, str] = {}
    for matcher, draft, state, line in at:
        # llguidance writes the end tokens where it fails and does not say where: go there once more.
        if state.is_error() and (failure := matcher.fill_ahead(draft, words, line)) is not None:
            failed[failure[0]] = failure[1]
    return words, failed


@cache
def _threads() -> llguidance.LLExecutor:
    """Threads for the masks of a batch, half of the cores at most: the others run the model.

    Measured on two cores, 32 requests: 240 us by one thread, the same by two. One call for the batch is what counts
    (it lets go of the GIL once): 320 us one by one; with drafts of two tokens, 850 instead of 1,010 us.
    """
    return llguidance.LLExecutor(max(1, min(8, (os.cpu_count() or 1) // 2)))
