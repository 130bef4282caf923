"""The public list: one name per op. Plain torch references everywhere for now; faster twins keep these signatures."""

from kernels.attention import KV_BLOCK, AttentionBatch, Span, paged_attention
from kernels.linear import Activation, GatedLinear, Linear
from kernels.reference import (
    gated_mul,
    rms_norm,
    rope,
    rope_tables,
    write_cache,
)
from kernels.sampling import argmax, draw, mask_logits

__all__ = [
    "KV_BLOCK",
    "Activation",
    "AttentionBatch",
    "GatedLinear",
    "Linear",
    "Span",
    "argmax",
    "draw",
    "gated_mul",
    "mask_logits",
    "paged_attention",
    "rms_norm",
    "rope",
    "rope_tables",
    "write_cache",
]
