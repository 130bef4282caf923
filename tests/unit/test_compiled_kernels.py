"""What the compiler makes of the kernels for Hopper: the instructions meant, no stack, budgets. No GPU is needed."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from kernels.activation import gated_mul_kernel
from kernels.norm import rms_norm_kernel
from kernels.quantize import quantize_kernel, warps_for
from kernels.rope_cache import TOKENS, rope_cache_kernel
from tests.compiled import compile_for_hopper

QUANTISED = {"codes": "*fp8e4nv", "scales": "*fp32"}
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
