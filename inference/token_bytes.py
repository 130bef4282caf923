"""What each token of a vocabulary spells, in bytes: a token may be a part of a character."""

from __future__ import annotations

import json
import re
from functools import cache

from tokenizers import Tokenizer as Backend

_SPELLED_BYTE = re.compile("<0x([0-9A-F]{2})>")  # SentencePiece's token for a byte that no piece spells


@cache
def _byte_of_character() -> dict[str, int]:
    """GPT-2's table of printable stand-ins for the 256 bytes, inverted (byte-level BPE writes tokens in them)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    hidden = (byte for byte in range(256) if byte not in printable)
    table.update({chr(256 + i): byte for i, byte in enumerate(hidden)})
    return table


class TokenBytes:
    """Worked out token by token when first asked for, and kept."""

    def __init__(self, backend: Backend, source: str) -> None:
        """`source` is the tokenizer.json of `backend`."""
        self._backend = backend
        self._spelled: dict[int, bytes] = {}
        self._special = {token for token, added in backend.get_added_tokens_decoder().items() if added.special}
        decoder = json.loads(source).get("decoder") or {}
        parts = [decoder, *decoder.get("decoders", [])]
        self.byte_level = any(part.get("type") == "ByteLevel" for part in parts)
        self.strips_first_space = any(map(_strips, parts))
        """Whether a text's first token has a space that the text has not."""

    def spelled(self, token: int) -> bytes:
        """The bytes a token stands for; those of a special token are its spelling."""
        found = self._spelled.get(token)
        if found is None:
            found = self._spelled[token] = self._spell(token)
        return found

    def shown(self, token: int) -> bytes:
        """The bytes a token adds to a text: none when it is special."""
        return b"" if token in self._special else self.spelled(token)

    def _spell(self, token: int) -> bytes:
        piece = self._backend.id_to_token(token) or ""
        if not self.byte_level:
            byte = _SPELLED_BYTE.fullmatch(piece)
            return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()
        table = _byte_of_character()
        if all(character in table for character in piece):
            return bytes(table[character] for character in piece)
        return self._backend.decode([token], skip_special_tokens=False).encode()


def _strips(part: dict[str, object]) -> bool:
    if part.get("type") == "Strip":
        return part.get("content") == " " and bool(part.get("start"))
    return part.get("type") == "Metaspace" and part.get("prepend_scheme", "always") != "never"
