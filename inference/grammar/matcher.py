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

from collections.abc import Sequence
from dataclasses import dataclass
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

    def fill_ahead(self, draft: Sequence[int], words: npt.NDArray[np.int32], line: int) -> tuple[int, str] | None:
        """The mask of this state and of each state along `draft` into 1 + len(draft) lines from `line` on.

        -> the line from which on no mask can be had and why, if there is one. See `fill_draft_masks`.
        """
        ahead = self._copy()
        for at in range(line, line + len(draft) + 1):
            guidance_numpy.fill_next_token_bitmask(ahead, words, at)
            if error := ahead.get_error():
                words[at : line + len(draft) + 1] = 0
                return at, error
            if at == line + len(draft):
                break
            token = draft[at - line]
            if ahead.is_stopped() or not self._known(token) or not ahead.try_consume_tokens([token]):
                words[at + 1 : line + len(draft) + 1] = self._only_the_end()
                break
        return None

    def _known(self, token: int) -> bool:
        return 0 <= token < self.vocabulary.size

    def _copy(self) -> llguidance.LLMatcher:
        return self._inner.deep_copy()

    def _only_the_end(self) -> npt.NDArray[np.int32]:
        words = guidance_numpy.allocate_token_bitmask(1, self.vocabulary.size)[0]
        words[:] = 0
        for token in self.vocabulary.end_tokens:
            words.view(np.uint32)[token // 32] |= np.uint32(1 << (token % 32))
        return words


def fill_masks(matchers: Sequence[Matcher], head_size: int) -> npt.NDArray[np.int32]:
    """What each matcher allows next: [len(matchers), ceil(head_size / 32)], bit b of word w for token 32 w + b."""
    words = guidance_numpy.allocate_token_bitmask(len(matchers), head_size)
    for line, matcher in enumerate(matchers):
        matcher.fill(words, line)
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
    failed: dict[int, str] = {}
    line = 0
    for matcher, draft in drafted:
        if (failure := matcher.fill_ahead(draft, words, line)) is not None:
            failed[failure[0]] = failure[1]
        line += len(draft) + 1
    return words, failed
