"""Where each value of a JSON text stands in it, and how sure the model was of the tokens that wrote it."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from pipeline.engine_client import TokenLogprob

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


def value_spans(text: str) -> dict[str, tuple[int, int]]:
    """JSON pointer → [start, end) of each scalar in `text`, quotes left out. `text` must be valid JSON."""
    found: dict[str, tuple[int, int]] = {}
    stack: list[list[str | int | None]] = []  # per open container its current key: a name, or a position
    is_key = False
    for match in _TOKEN.finditer(text):
        piece = match[0]
        if piece == "{":
            stack.append([None])
            is_key = True
        elif piece == "[":
            stack.append([0])
            is_key = False
        elif piece in "}]":
            stack.pop()
            is_key = False
        elif piece == ",":
            key = stack[-1][0]
            if isinstance(key, int):
                stack[-1][0] = key + 1
            else:
                is_key = True
        elif piece == ":":
            is_key = False
        elif is_key and match[1] is not None:
            stack[-1][0] = _unescape(match[1])
        else:
            inner = match.span(1) if match[1] is not None else match.span()
            found[_pointer(stack)] = inner
    return found


def confidences(text: str, tokens: Sequence[TokenLogprob]) -> dict[str, float]:
    """JSON pointer → geometric mean probability of the tokens that overlap the value. Empty without tokens, or when
    they don't spell `text`."""
    raw = text.encode()
    joined = b"".join(token.data for token in tokens)
    at = joined.find(raw)
    if not tokens or at < 0:
        return {}
    ends = list(accumulate(len(token.data) for token in tokens))
    offsets = _byte_offsets(text)
    found = {}
    for pointer, (start, end) in value_spans(text).items():
        first = bisect_right(ends, at + offsets[start])
        last = bisect_left(ends, at + offsets[max(end, start + 1)])
        part = [token.logprob for token in tokens[first : last + 1]]
        if part:
            found[pointer] = math.exp(sum(part) / len(part))
    return found


def mean_logprob(tokens: Sequence[TokenLogprob]) -> float | None:
    return sum(token.logprob for token in tokens) / len(tokens) if tokens else None


def _byte_offsets(text: str) -> list[int]:
    return [0, *accumulate(len(character.encode()) for character in text)]


def _pointer(stack: Sequence[Sequence[str | int | None]]) -> str:
    return "".join("/" + str(level[0]).replace("~", "~0").replace("/", "~1") for level in stack)


def _unescape(name: str) -> str:
    if "\\" not in name:
        return name
    return str(json.loads(f'"{name}"'))
