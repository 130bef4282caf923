"""The public list: one name per op. Plain torch references everywhere for now; faster twins keep these signatures."""

from kernels.attention import KV_BLOCK, AttentionBatch, Span, paged_attention
from kernels.drawing import draw, draw_batched
from kernels.linear import Activation, GatedLinear, Linear
from kernels.reference import (
    gated_mul,
    rms_norm,
    rope,
    rope_tables,
    write_cache,
)
from kernels.sampling import add_bias, argmax, ban, log_total, mask_logits, penalize_made, penalize_seen, top

__all__ = [
    "KV_BLOCK",
    "Activation",
    "AttentionBatch",
    "GatedLinear",
    "Linear",
    "Span",
    "add_bias",
    "argmax",
    "ban",
    "draw",
    "draw_batched",
    "gated_mul",
    "log_total",
    "mask_logits",
    "paged_attention",
    "penalize_made",
    "penalize_seen",
    "rms_norm",
    "rope",
    "rope_tables",
    "top",
    "write_cache",
]
