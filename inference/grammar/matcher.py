"""Where a request stands in its grammar, and the masks of a step.

A grammar moves only on committed tokens. Masks are filled while the forward runs; llguidance lets go of the GIL.
"""

from __future__ import annotations

from collections.abc import Sequence

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

    def fill(self, words: npt.NDArray[np.int32], line: int) -> None:
        guidance_numpy.fill_next_token_bitmask(self._inner, words, line)


def fill_masks(matchers: Sequence[Matcher], head_size: int) -> npt.NDArray[np.int32]:
    """What each matcher allows next: [len(matchers), ceil(head_size / 32)], bit b of word w for token 32 w + b."""
    words = guidance_numpy.allocate_token_bitmask(len(matchers), head_size)
    for line, matcher in enumerate(matchers):
        matcher.fill(words, line)
    return words
