"""Tokens to text as they come: the bytes that they spell, read as UTF-8, without ever showing half a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from inference.tokenizer import Tokenizer


class Detokenizer:
    """Incremental: what `push` and `flush` return, joined, is the text of all tokens.

    A byte that belongs to no character is shown as U+FFFD, one for each broken sequence, as the Unicode standard
    recommends (maximal subparts). Special tokens are not shown.
    """

    def __init__(self, tokenizer: Tokenizer, *, continues: bool = False) -> None:
        """`continues`: the text goes on where another one ended, so that a space in its first token is one. Else, some
        SentencePiece tokenizers put a space in front of a text, and it is taken off."""
        self._bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = self._bytes.strips_first_space and not continues
        self.length = 0  # characters shown

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete."""
        data = b"".join([self._bytes.shown(token) for token in tokens])
        if self._strip and data:
            data = data.removeprefix(b" ")
            self._strip = False
        return self._count(self._decoder.decode(data))

    def flush(self) -> str:
        """What is left at the end, a broken character as U+FFFD."""
        return self._count(self._decoder.decode(b"", final=True))

    def _count(self, text: str) -> str:
        self.length += len(text)
        return text
