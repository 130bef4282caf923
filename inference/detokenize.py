"""Tokens to text as they come, without ever showing half a character."""

from __future__ import annotations

import re
from functools import lru_cache

from inference.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
# A character has at most four bytes, and a token at least one.
MAX_PENDING_TOKENS = 8
_SPELLED_BYTE = re.compile("<0x([0-9A-F]{2})>")  # SentencePiece's token for a byte that no piece spells


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """GPT-2's table of printable stand-ins for the 256 bytes, inverted (byte-level BPE writes tokens in them)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    hidden = (byte for byte in range(256) if byte not in printable)
    table.update({chr(256 + i): byte for i, byte in enumerate(hidden)})
    return table


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """The bytes a token stands for; those of a special token are its spelling."""
    piece = tokenizer.backend.id_to_token(token) or ""
    if not tokenizer.is_byte_level:
        byte = _SPELLED_BYTE.fullmatch(piece)
        return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()
    table = _byte_of_character()
    if all(character in table for character in piece):
        return bytes(table[character] for character in piece)
    return tokenizer.decode([token], skip_special=False).encode()


class Detokenizer:
    """Incremental: the pieces that `push` and `flush` return, joined, are the decoded text of all tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []  # tokens already shown that the next ones may join with
        self._pending: list[int] = []
        self.text = ""

    def push(self, tokens: tuple[int, ...]) -> str:
        """The text that these tokens complete."""
        shown = ""
        for token in tokens:
            self._pending.append(token)
            piece = self._piece()
            if piece.endswith(REPLACEMENT) and len(self._pending) < MAX_PENDING_TOKENS:
                continue  # perhaps half a character: the next token tells
            shown += self._take(piece)
        self.text += shown
        return shown

    def flush(self) -> str:
        """What is left at the end, a broken character as U+FFFD."""
        if not self._pending:
            return ""
        piece = self._take(self._piece())
        self.text += piece
        return piece

    def _piece(self) -> str:
        before = self._tokenizer.decode(self._context)
        return self._tokenizer.decode(self._context + self._pending)[len(before) :]

    def _take(self, piece: str) -> str:
        self._context, self._pending = self._pending, []
        return piece
