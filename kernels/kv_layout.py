"""How keys and values lie in the pages of a GPU's cache: read here by attention, followed by whatever writes the cache.

With S tokens a page, KH KV heads and heads of D elements, all contiguous:

    keys                  [pages, KH, S, D]
    values, 16 bits       [pages, KH, S, D]
    values, fp8 (e4m3)    [pages, KH, D, S]   transposed: Hopper multiplies fp8 only along the contiguous dimension, and
                                              the product of weights and values runs along the tokens
    scales, fp8           [KH] fp32 each for keys and values; what an element stands for is code * scale

Slot s of a token is page * S + o. With head h and element d, keys (and 16-bit values) have it at
((page * KH + h) * S + o) * D + d, fp8 values at ((page * KH + h) * D + d) * S + o. A page of one head is one contiguous
block, so that a program that attends for one KV head reads whole blocks.

Caches start as zeros and only ever hold finite numbers: what lies behind a context is multiplied by 0, not skipped.
Page 0 is the dummy that padding reads and writes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.operands import KVScales

PAGE_SIZES = (16, 32, 64)
DTYPES = (torch.bfloat16, torch.float16, torch.float8_e4m3fn)


@dataclass(frozen=True)
class KVLayout:
    """One layer's cache. `dtype` is bfloat16, float16 or float8_e4m3fn; `page_size` 16, 32 or 64 tokens."""

    kv_heads: int
    head_size: int
    page_size: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        if self.page_size not in PAGE_SIZES:
            raise ValueError(f"a page of {self.page_size} tokens: a GPU's pages hold 16, 32 or 64; choose one of these")
        if self.dtype not in DTYPES:
            raise ValueError(f"a cache of {self.dtype}: a GPU's cache is bfloat16, float16 or float8_e4m3fn")
        if self.head_size % 16 or not 16 <= self.head_size <= 256:
            raise ValueError(f"heads of {self.head_size}: the GPU kernels take multiples of 16 up to 256")

    @property
    def values_transposed(self) -> bool:
        return self.dtype == torch.float8_e4m3fn

    def key_shape(self, pages: int) -> tuple[int, int, int, int]:
        return pages, self.kv_heads, self.page_size, self.head_size

    def value_shape(self, pages: int) -> tuple[int, int, int, int]:
        if self.values_transposed:
            return pages, self.kv_heads, self.head_size, self.page_size
        return self.key_shape(pages)

    def make(self, pages: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Keys and values of `pages` pages, zeros."""
        shapes = self.key_shape(pages), self.value_shape(pages)
        keys, values = (torch.zeros(shape, dtype=self.dtype, device=device) for shape in shapes)
        return keys, values

    def admit(self, dtype: torch.dtype, scales: KVScales | None) -> None:
        """Raise ValueError unless keys and values of `dtype` with these scales can be written to the cache."""
        fp8 = self.dtype == torch.float8_e4m3fn
        if fp8 != (scales is not None):
            raise ValueError(f"a cache of {self.dtype} {'needs' if fp8 else 'takes no'} scales of its keys and values")
        if not fp8 and self.dtype != dtype:
            raise ValueError(f"keys and values of {dtype} for a cache of {self.dtype}: give both the same dtype")

    def write(self, cache: tuple[Tensor, Tensor], key: Tensor, value: Tensor, slots: Tensor) -> None:
        """The plain twin of the kernel that writes: key and value [T, KH, D] of the cache's dtype, scaled already, to
        slots [T] int64, in place."""
        page, offset = slots // self.page_size, slots % self.page_size
        cache[0][page, :, offset] = key
        if self.values_transposed:
            cache[1][page, :, :, offset] = value
        else:
            cache[1][page, :, offset] = value

    def read(self, cache: tuple[Tensor, Tensor], slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values at slots [T] -> [T, KH, D] each, unscaled."""
        page, offset = slots // self.page_size, slots % self.page_size
        value = cache[1][page, :, :, offset] if self.values_transposed else cache[1][page, :, offset]
        return cache[0][page, :, offset], value
