"""What is inside a checkpoint, without loading it: sizes, tensors, memory, how many tokens fit."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from inference.models.config import ModelConfig
from inference.models.sources import GGUFSource, open_source

BF16_BYTES = 2


@dataclass(frozen=True)
class Inspection:
    """`tensors` maps a storage type to (tensors, bytes). Memory figures are for bf16, in bytes."""

    path: Path
    config: ModelConfig
    parameters: int
    tensors: dict[str, tuple[int, int]]
    weight_bytes: int
    kv_bytes_per_token: int

    def tokens_in(self, budget: int) -> int:
        """Tokens whose keys and values fit `budget` bytes."""
        return budget // self.kv_bytes_per_token


def inspect(path: Path) -> Inspection:
    """Raises CheckpointError, UnsupportedModel."""
    source = open_source(path)
    config = source.config()
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    if isinstance(source, GGUFSource):
        for _, kind, nbytes in source.stored():
            count[kind] += 1
            size[kind] += nbytes
    else:
        for name, shape in source.shapes().items():
            tensor = source.read(name)
            kind = str(tensor.dtype).removeprefix("torch.")
            count[kind] += 1
            size[kind] += math.prod(shape) * tensor.element_size()
    parameters = sum(math.prod(shape) for shape in source.shapes().values())
    return Inspection(
        path=path,
        config=config,
        parameters=parameters,
        tensors={kind: (count[kind], size[kind]) for kind in count},
        weight_bytes=parameters * BF16_BYTES,
        kv_bytes_per_token=config.kv_bytes_per_token(BF16_BYTES),
    )
