"""The public list: one name per op. Plain torch references everywhere for now; faster twins keep these signatures."""

from kernels.linear import Activation, GatedLinear, Linear
from kernels.reference import (
    chunk_mask,
    decode_attention,
    gated_mul,
    prefill_attention,
    rms_norm,
    rope,
    rope_tables,
    write_cache,
)
from kernels.sampling import argmax, draw, mask_logits

__all__ = [
    "Activation",
    "GatedLinear",
    "Linear",
    "argmax",
    "chunk_mask",
    "decode_attention",
    "draw",
    "gated_mul",
    "mask_logits",
    "prefill_attention",
    "rms_norm",
    "rope",
    "rope_tables",
    "write_cache",
]
