"""What the compiler makes of the kernels for Hopper: the instructions meant, no stack, budgets. No GPU is needed."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from kernels.activation import gated_mul_kernel
from kernels.choice import ADJUST_BLOCK, BLOCK, WARPS, adjust_kernel, choose_kernel
from kernels.gemm import Launch, choose, narrow_gemm_kernel, tile_tokens, warps_of
from kernels.norm import rms_norm_kernel
from kernels.quantize import quantize_kernel, warps_for
from kernels.rope_cache import TOKENS, rope_cache_kernel
from tests.compiled import compile_for_hopper

QUANTISED = {"codes": "*fp8e4nv", "scales": "*fp32"}
# Channels and depth of a layer's products: q, k, v together, attention's output, gate and up together, down.
LLAMA_8B = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
WIDE_ACCESS = r"ld\.global\S*\.v4\.b32"  # 16 bytes a thread


def test_rows_are_quantised_in_wide_accesses() -> None:
    for columns in (4096, 16384):
        types = {**QUANTISED, "x": "*bf16", "stride": "i32", "columns": "i32"}
        made = compile_for_hopper(quantize_kernel, types, {"BLOCK": columns}, warps=warps_for(columns))
        assert made.count(WIDE_ACCESS) == 4
        assert made.count("cvt.rn.satfinite.e4m3x2") == 16, "two elements an instruction"
        assert made.stack == 0
        assert made.registers <= 64


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_the_norm_keeps_its_row_in_registers(wide: bool, quantize: bool) -> None:
    types = {
        "out": "*fp8e4nv" if quantize else "*bf16", "scales": "*fp32", "x": "*bf16", "residual": "*bf16",
        "weight": "*fp32" if wide else "*bf16", "stride": "i32", "columns": "i32", "eps": "fp32",
    }  # fmt: skip
    constants = {"ADD": True, "WIDE": wide, "QUANTIZE": quantize, "BLOCK": 4096}
    made = compile_for_hopper(rms_norm_kernel, types, constants, warps=warps_for(4096))
    assert made.count(WIDE_ACCESS) == (16 if wide else 12), "each input is read once"
    assert made.stack == 0
    assert made.registers <= 128


@pytest.mark.parametrize(("quantize", "block"), [(False, 2048), (True, 16384)])
@pytest.mark.parametrize("gelu", [False, True])
def test_the_gate_reads_each_half_once(gelu: bool, quantize: bool, block: int) -> None:
    types = {
        "out": "*fp8e4nv" if quantize else "*bf16", "scales": "*fp32", "gate_up": "*bf16",
        "stride": "i32", "columns": "i32",
    }  # fmt: skip
    warps = warps_for(block) if quantize else 4
    constants = {"GELU": gelu, "QUANTIZE": quantize, "BLOCK": block}
    made = compile_for_hopper(gated_mul_kernel, types, constants, warps=warps)
    assert made.count(WIDE_ACCESS) == 2 * block // (warps * 32 * 8)
    assert made.stack == 0
    assert made.registers <= 128


@pytest.mark.parametrize("cache", ["bf16", "fp8e4nv"])
@pytest.mark.parametrize("norm", [False, True])
def test_rotation_and_cache_stay_in_registers(norm: bool, cache: str) -> None:
    pointers = {name: "*bf16" for name in ("query", "qkv", "query_weight", "key_weight")}
    pointers |= {name: "*fp32" for name in ("cos", "sin", "key_scales", "value_scales")}
    pointers |= {"keys": f"*{cache}", "values": f"*{cache}", "positions": "*i64", "slots": "*i64"}
    numbers = {"tokens": "i32:1", "stride": "i32", "heads": "i32", "kv_heads": "i32:1", "eps": "fp32"}
    constants = {
        "NORM": norm, "WIDE": False, "FP8": cache == "fp8e4nv", "D": 128, "D_BLOCK": 128, "PAGE": 64, "TOKENS": TOKENS,
    }  # fmt: skip
    made = compile_for_hopper(rope_cache_kernel, {**pointers, **numbers}, constants)
    assert made.count(WIDE_ACCESS) >= 2, "queries, keys and values are read 16 bytes a thread"
    assert made.stack == 0
    assert made.registers <= 128


@pytest.mark.parametrize("launch", {choose(n, k, scaled=True) for n, k in LLAMA_8B}, ids=str)
@pytest.mark.parametrize(("tokens", "instruction"), [(1, "m64n16"), (32, "m64n32"), (128, "m64n128")])
@pytest.mark.parametrize("scaled", [True, False])
def test_few_tokens_meet_the_tensor_cores_with_operands_swapped(
    scaled: bool, tokens: int, instruction: str, launch: Launch
) -> None:
    operand = "*fp8e4nv" if scaled else "*bf16"
    types = {"out": "*bf16", "x": operand, "weight": operand, "bias": "*bf16", "arrived": "*i32"}
    types |= {name: "*fp32" for name in ("parts", "x_scales", "weight_scales")}
    types |= {"tokens": "i32:1", "channels": "i32", "depth": "i32", "x_stride": "i32"}
    width = tile_tokens(tokens)
    constants = {
        "SCALED": scaled, "BIAS": False, "EVEN": True, "SPLITS": launch.splits,
        "M": width, "N": launch.channels, "K": launch.depth(1 if scaled else 2),
    }  # fmt: skip
    warps = warps_of(launch, width)
    made = compile_for_hopper(narrow_gemm_kernel, types, constants, warps=warps, stages=launch.stages)
    assert made.count(rf"wgmma\.mma_async\S*{instruction}k{32 if scaled else 16}\S*{'e4m3' if scaled else 'bf16'}")
    assert made.stack == 0
    assert made.registers <= 255
    assert made.shared <= 227 * 1024


def test_the_choice_stays_in_registers() -> None:
    types = {name: "*i32" for name in ("mask_lines", "words", "history_lines", "seen", "made")}
    types |= {name: "*fp32" for name in ("logits", "repetition", "presence", "frequency")}
    types |= {"vocab": "i32", "width": "i32", "stride": "i32"}
    made = compile_for_hopper(adjust_kernel, types, {"MASK": True, "PENALIZE": True, "BLOCK": ADJUST_BLOCK})
    assert made.count(WIDE_ACCESS) >= 2, "logits and counts are read 16 bytes a thread"
    assert made.stack == 0
    types = {name: "*fp32" for name in ("logits", "temperatures", "top_ps", "min_ps")}
    types |= {"tokens": "*i64", "top_ks": "*i64", "uniforms": "*fp64", "vocab": "i32", "stride": "i32"}
    made = compile_for_hopper(choose_kernel, types, {"BLOCK": BLOCK}, warps=WARPS)
    assert made.stack <= 16, "a call's frame; nothing is spilled"
    assert made.registers <= 128
