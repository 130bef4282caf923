"""The public list: one name per op. Plain torch references everywhere for now; faster twins keep these signatures."""

from kernels.linear import GatedLinear, Linear
from kernels.reference import (
    chunk_mask,
    decode_attention,
    prefill_attention,
    rms_norm,
    rope,
    rope_tables,
    silu_mul,
    write_cache,
)
from kernels.sampling import argmax, draw, mask_logits

__all__ = [
    "GatedLinear",
    "Linear",
    "argmax",
    "chunk_mask",
    "decode_attention",
    "draw",
    "mask_logits",
    "prefill_attention",
    "rms_norm",
    "rope",
    "rope_tables",
    "silu_mul",
    "write_cache",
]
