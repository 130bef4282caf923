"""Counting in the engine's tokens, so that a budget means the same on both sides."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tokenizers import Tokenizer

from pipeline.errors import PipelineError
from pipeline.settings import Settings

if TYPE_CHECKING:
    from pipeline.engine_client import EngineClient

BLOCK_CHARS = 32_768  # a tokenizer's memory and time per call stay bounded however long the document is
ESTIMATED_BYTES_PER_TOKEN = 3  # below what common tokenizers reach on prose (about 4), so that estimates err upwards

_BREAK = re.compile(r"\s\S")


class TokenCounter(Protocol):
    """`name` identifies the tokenizer; offsets are code points into the text given."""

    name: str

    def count(self, text: str) -> int:
        """How many tokens `text` has."""
        ...

    def ends(self, text: str) -> Sequence[int]:
        """The code-point offset at which each token ends, ascending."""
        ...


class EngineTokens:
    """Counts with a tokenizer.json. Thread-safe."""

    def __init__(self, tokenizer_json: bytes) -> None:
        self.name = hashlib.sha256(tokenizer_json).hexdigest()[:16]
        self._tokenizer = Tokenizer.from_str(tokenizer_json.decode("utf-8"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, text: str) -> int:
        return sum(len(self._encode(block)) for _, block in _blocks(text))

    def ends(self, text: str) -> Sequence[int]:
        found: list[int] = []
        for start, block in _blocks(text):
            found.extend(start + end for _, end in self._encode(block))
        # Tokens that are parts of one character all report that character's end.
        return list(accumulate(found, max))

    def _encode(self, text: str) -> list[tuple[int, int]]:
        return self._tokenizer.encode(text, add_special_tokens=False).offsets


class EstimatedTokens:
    """For an engine that does not show its tokenizer: one token per so many UTF-8 bytes, rounded up per word."""

    name = f"estimate-{ESTIMATED_BYTES_PER_TOKEN}"

    def count(self, text: str) -> int:
        return -(-len(text.encode("utf-8", "replace")) // ESTIMATED_BYTES_PER_TOKEN)

    def ends(self, text: str) -> Sequence[int]:
        found: list[int] = []
        size = 0
        for offset, character in enumerate(text, 1):
            size += len(character.encode("utf-8", "replace"))
            while size >= ESTIMATED_BYTES_PER_TOKEN:
                size -= ESTIMATED_BYTES_PER_TOKEN
                found.append(offset)
        if size:
            found.append(len(text))
        return found


def token_counter(engine: EngineClient, settings: Settings) -> TokenCounter:
    """The counter for this engine: its tokenizer, kept under `QUARRY_HOME/cache`, else the estimate. Raises
    TransientError when the engine can't be asked."""
    data = engine.tokenizer_json()
    if data is None:
        return EstimatedTokens()
    try:
        counter = EngineTokens(data)
    except Exception as error:  # the library raises bare Exception for a file that it can't read
        raise PipelineError("bad_tokenizer", f"the engine's tokenizer.json can't be read: {error}") from error
    _keep(settings.home / "cache" / f"tokenizer-{counter.name}.json", data)
    return counter


def cached_counter(name: str, settings: Settings) -> TokenCounter | None:
    """The counter called `name` without asking an engine, when it was seen before."""
    if name == EstimatedTokens.name:
        return EstimatedTokens()
    try:
        return EngineTokens((settings.home / "cache" / f"tokenizer-{name}.json").read_bytes())
    except OSError:
        return None


def _keep(path: Path, data: bytes) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Pieces of about BLOCK_CHARS, cut before a word where there is one, so that counts hardly differ."""
    start = 0
    while len(text) - start > BLOCK_CHARS:
        window = text[start + BLOCK_CHARS - 2048 : start + BLOCK_CHARS]
        breaks = [match.start() for match in _BREAK.finditer(window)]
        end = start + BLOCK_CHARS - 2048 + breaks[-1] if breaks else start + BLOCK_CHARS
        yield start, text[start:end]
        start = end
    if start < len(text):
        yield start, text[start:]
