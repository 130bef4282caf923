"""Frames between a parser and its parent: a JSON header and raw bytes, each with its length before it."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

LENGTHS = struct.Struct(">II")  # of the header, of the body
MAX_HEADER_BYTES = 64 * 2**20


class BrokenFrame(ValueError):
    """The other side ended in the middle of a frame, or sent something that is none."""


def pack(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Everything of a frame but the body, which follows it: large bodies are not copied."""
    text = json.dumps(header, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return LENGTHS.pack(len(text), len(body)) + text


def header_of(text: bytes) -> dict[str, Any]:
    """Raises BrokenFrame."""
    try:
        header = json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise BrokenFrame(f"a frame's header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise BrokenFrame(f"a frame's header is a {type(header).__name__}")
    return header


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """The next frame of a blocking stream; None at its end. Raises BrokenFrame."""
    lengths = stream.read(LENGTHS.size)
    if not lengths:
        return None
    if len(lengths) < LENGTHS.size:
        raise BrokenFrame("the stream ended inside a frame's lengths")
    header_size, body_size = LENGTHS.unpack(lengths)
    text, body = stream.read(header_size), stream.read(body_size)
    if len(text) < header_size or len(body) < body_size:
        raise BrokenFrame("the stream ended inside a frame")
    return header_of(text), body


def write_frame(stream: BinaryIO, header: Mapping[str, Any], body: bytes = b"") -> None:
    stream.write(pack(header, body))
    stream.write(body)
    stream.flush()
