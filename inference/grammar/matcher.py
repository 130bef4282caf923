"""Where a request stands in its grammar, and the masks of a step.

A grammar moves only on committed tokens. Masks are filled while the forward runs; llguidance lets go of the GIL.
"""

from __future__ import annotations

import llguidance
import llguidance.numpy as guidance_numpy
import numpy as np
import numpy.typing as npt


class Matcher:
    """The state of one request. Once in error, it stays there."""

    def __init__(self, inner: llguidance.LLMatcher) -> None:
        self._inner = inner

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

    def fill(self, words: npt.NDArray[np.int32], row: int) -> None:
        guidance_numpy.fill_next_token_bitmask(self._inner, words, row)


def fill_masks(matchers: list[tuple[int, Matcher]], rows: int, head_size: int) -> npt.NDArray[np.bool_]:
    """What each (row, matcher) allows next, [rows, head_size] bool; rows without a matcher allow everything."""
    words = guidance_numpy.allocate_token_bitmask(rows, head_size)
    for row, matcher in matchers:
        matcher.fill(words, row)
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=head_size, bitorder="little")
    return bits.view(np.bool_)
