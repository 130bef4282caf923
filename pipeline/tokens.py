"""Counting in the engine's tokens, so that a budget means the same on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TokenCounter(Protocol):
    """`name` identifies the tokenizer; offsets are code points into the text given."""

    name: str

    def count(self, text: str) -> int: ...

    def ends(self, text: str) -> Sequence[int]:
        """The code-point offset at which each token ends, ascending."""
        ...
