"""The public list: one name per op. Plain torch references everywhere for now; faster twins keep these signatures."""

from kernels.attention import KV_BLOCK, AttentionBatch, Span, paged_attention
from kernels.drawing import draw, draw_batched
from kernels.linear import Activation, GatedLayer, GatedLinear, Linear, LinearLayer
from kernels.linear_fp16 import Fp16GatedLinear, Fp16Linear, can_keep_fp16
from kernels.linear_int8 import Int8GatedLinear, Int8Linear, can_use_int8
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
    "Fp16GatedLinear",
    "Fp16Linear",
    "GatedLayer",
    "GatedLinear",
    "Int8GatedLinear",
    "Int8Linear",
    "Linear",
    "LinearLayer",
    "Span",
    "add_bias",
    "argmax",
    "ban",
    "can_keep_fp16",
    "can_use_int8",
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
