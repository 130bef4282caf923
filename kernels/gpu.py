"""The ops of a GPU's forward in Triton, under the names of `kernels.ops`. Importing it needs Triton."""

from kernels.activation import gated_mul, gated_mul_fp8
from kernels.attention_decode import DecodePlan, attend_decode
from kernels.attention_prefill import attend_prefill, launch_of
from kernels.choice import adjust, choose_tokens
from kernels.gemm import GpuLinear as Linear
from kernels.kv_layout import KVLayout
from kernels.norm import add_rms_norm, add_rms_norm_fp8
from kernels.quantize import quantize_rows
from kernels.rope_cache import rope_and_cache

__all__ = [
    "DecodePlan",
    "Linear",
    "add_rms_norm",
    "add_rms_norm_fp8",
    "adjust",
    "attend_decode",
    "attend_prefill",
    "choose_tokens",
    "gated_mul",
    "gated_mul_fp8",
    "prefill_tile_tokens",
    "quantize_rows",
    "rope_and_cache",
]


def prefill_tile_tokens(layout: KVLayout, group_size: int) -> int:
    return launch_of(layout).tokens(group_size)
