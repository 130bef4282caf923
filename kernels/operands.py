"""Tensors that belong together, as the ops of a GPU's forward take and give them. No kernel is needed to name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Quantized(NamedTuple):
    """codes [R, N] e4m3 and scales [R] fp32: row r stands for codes[r] * scales[r]."""

    codes: Tensor
    scales: Tensor

    @classmethod
    def empty(cls, rows: int, columns: int, device: torch.device) -> Quantized:
        codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=device)
        return cls(codes, torch.empty(rows, dtype=torch.float32, device=device))


class HeadNorms(NamedTuple):
    """RMSNorm of each query and key head before its rotation, as Qwen 3 and Gemma 3 have it: weights [D]."""

    query: Tensor
    key: Tensor
    eps: float


class KVScales(NamedTuple):
    """What a code of an fp8 cache is multiplied with: [KH] fp32 each."""

    key: Tensor
    value: Tensor


@dataclass(frozen=True)
class History:
    """What penalties look at, H requests: a row with index h has these.

    seen [H, ceil(V / 32)] int32, a bit for each token of prompt and answer; made [H, V] int32, how often it is in the
    answer; repetition (1: none), presence and frequency (0: none) [H] fp32.
    """

    seen: Tensor
    made: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
