"""What a core and its client say to each other: typed messages in MessagePack, each with its length before it.

client ──Start──▶ core ──Ready | Failed──▶          once, before anything else
client ──Submit──▶ core ──Accepted | Rejected──▶    only for a request with a grammar, once it has been compiled
                   core ──Progress──▶               after each step that made tokens or changed a figure
client ──Cancel──▶ core                             the request's last response follows in a Progress
client ──Embed──▶ core ──Embedded──▶
client ──Ping──▶ core ──Pong──▶                     in the loop's next turn: it does not hang
client ──Stop──▶ core                               the last responses, then the end of the stream
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from inference.config import EngineConfig
from inference.request import FinishReason, Request, Response
from inference.stats import EngineStats, ModelInfo

_LENGTH = struct.Struct("<I")


class TokenizerData(msgspec.Struct, frozen=True):
    """What a core needs of a tokenizer: `json` is its tokenizer.json."""

    json: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]


class EmbedderInfo(msgspec.Struct, frozen=True):
    name: str
    dimension: int


class Start(msgspec.Struct, frozen=True, tag=True):
    """`embedder` is the folder of a sentence embedder, `embedder_name` what clients call it."""

    config: EngineConfig
    tokenizer: TokenizerData
    embedder: Path | None = None
    embedder_name: str = ""


class Submit(msgspec.Struct, frozen=True, tag=True):
    """`request` has passed `client.check` with the model's figures."""

    request: Request


class Cancel(msgspec.Struct, frozen=True, tag=True):
    request_id: str
    reason: FinishReason = FinishReason.CANCELLED


class Embed(msgspec.Struct, frozen=True, tag=True):
    id: int
    texts: list[str]


class Ping(msgspec.Struct, frozen=True, tag=True):
    pass


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Requests under way end as cancelled."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    model: ModelInfo
    embedder: EmbedderInfo | None


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The core could not start, and why."""

    error: str


class Accepted(msgspec.Struct, frozen=True, tag=True):
    request_id: str


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """The request never ran, and has no response."""

    request_id: str
    error: str


class Progress(msgspec.Struct, frozen=True, tag=True):
    """`responses` of one step, or of several when the client was slow to take them; the figures after the last."""

    responses: list[Response]
    stats: EngineStats


class Embedded(msgspec.Struct, frozen=True, tag=True):
    """`vectors` are those of the texts one after the other, 32-bit floats in the machine's order; `tokens` were read
    for them. With an `error` there are none."""

    id: int
    vectors: bytes = b""
    tokens: int = 0
    error: str | None = None


class Pong(msgspec.Struct, frozen=True, tag=True):
    pass


ToCore = Start | Submit | Cancel | Embed | Ping | Stop
FromCore = Ready | Failed | Accepted | Rejected | Progress | Embedded | Pong


def _plain(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"a {type(value).__name__} has no place in a message")


def _typed(kind: type, value: Any) -> Any:
    return kind(value)


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
to_core = msgspec.msgpack.Decoder(ToCore, dec_hook=_typed)
from_core = msgspec.msgpack.Decoder(FromCore, dec_hook=_typed)


def frame(message: ToCore | FromCore) -> bytes:
    """Raises UnicodeEncodeError for a text that has half of a surrogate pair in it."""
    data = _encoder.encode(message)
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Bytes in, as they come; the contents of whole frames out."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def push(self, data: bytes) -> Iterator[bytes]:
        self._bytes += data
        at = 0
        try:
            while len(self._bytes) - at >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._bytes, at)
                stop = at + _LENGTH.size + length
                if stop > len(self._bytes):
                    break
                content = bytes(self._bytes[at + _LENGTH.size : stop])
                at = stop
                yield content
        finally:
            del self._bytes[:at]
