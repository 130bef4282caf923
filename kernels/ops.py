"""The public list: one name per op.

Those of `kernels.dispatch` are a GPU's forward: in Triton there, in plain torch elsewhere. The others are the CPU's.
"""

from kernels.attention import KV_BLOCK, AttentionBatch, Span, paged_attention
from kernels.dispatch import (
    DecodePlan,
    GpuLinear,
    add_rms_norm,
    add_rms_norm_fp8,
    adjust_logits,
    attend_decode,
    attend_prefill,
    choose_tokens,
    decode_plan,
    gated_mul,
    gated_mul_fp8,
    gpu_linear,
    prefill_tile_tokens,
    quantize_rows,
    rope_and_cache,
)
from kernels.drawing import draw, draw_batched
from kernels.kv_layout import KVLayout
from kernels.linear import Activation, GatedLayer, GatedLinear, Linear, LinearLayer
from kernels.linear_fp16 import Fp16GatedLinear, Fp16Linear, can_keep_fp16
from kernels.linear_int8 import Int8GatedLinear, Int8Linear, can_use_int8
from kernels.operands import HeadNorms, History, KVScales, Quantized
from kernels.reference import (
    rms_norm,
    rope,
    rope_tables,
    write_cache,
)
from kernels.sampling import add_bias, argmax, ban, log_total, mask_logits, penalize_made, penalize_seen, top
from kernels.tiles import cut

__all__ = [
    "KV_BLOCK",
    "Activation",
    "AttentionBatch",
    "DecodePlan",
    "Fp16GatedLinear",
    "Fp16Linear",
    "GatedLayer",
    "GatedLinear",
    "GpuLinear",
    "HeadNorms",
    "History",
    "Int8GatedLinear",
    "Int8Linear",
    "KVLayout",
    "KVScales",
    "Linear",
    "LinearLayer",
    "Quantized",
    "Span",
    "add_bias",
    "add_rms_norm",
    "add_rms_norm_fp8",
    "adjust_logits",
    "argmax",
    "attend_decode",
    "attend_prefill",
    "ban",
    "can_keep_fp16",
    "can_use_int8",
    "choose_tokens",
    "cut",
    "decode_plan",
    "draw",
    "draw_batched",
    "gated_mul",
    "gated_mul_fp8",
    "gpu_linear",
    "log_total",
    "mask_logits",
    "paged_attention",
    "penalize_made",
    "penalize_seen",
    "prefill_tile_tokens",
    "quantize_rows",
    "rms_norm",
    "rope",
    "rope_and_cache",
    "rope_tables",
    "top",
    "write_cache",
]
