"""FBGEMM, the library behind torch's quantised layers on x86."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_ENGINE = "fbgemm"


def has_fbgemm() -> bool:
    """False on other CPUs than x86 with AVX2, and in a torch that was built without it."""
    return _ENGINE in torch.backends.quantized.supported_engines


@contextmanager
def with_fbgemm() -> Iterator[None]:
    """What packs a weight asks a setting of the whole process which library it is for. A packed weight knows it."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = _ENGINE
    try:
        yield
    finally:
        torch.backends.quantized.engine = before
