"""The attention kernels compiled for Hopper without a GPU: tensor cores used, nothing spilled, budgets kept."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch

from kernels import attention_decode, attention_prefill
from kernels.kv_layout import KVLayout
from tests.compiled import compile_for_hopper

# Shared memory of a Hopper multiprocessor, and registers.
SHARED_BYTES = 227 * 1024
REGISTERS = 65536
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


@pytest.mark.parametrize(("dtype", "name"), [(BF16, "bf16"), (FP8, "fp8e4nv")])
@pytest.mark.parametrize(("head_size", "rows"), [(64, 16), (128, 16), (128, 32), (128, 64), (256, 16)])
def test_decode_attention_uses_tensor_cores_and_leaves_room_for_two(
    dtype: torch.dtype, name: str, head_size: int, rows: int
) -> None:
    layout = KVLayout(8, head_size, 64, dtype)
    launch = attention_decode.launch_of(layout, rows)
    types = dict.fromkeys(("table", "lengths", "starts", "items"), "*i32")
    types |= dict.fromkeys(("partial", "partial_lse", "key_scale", "value_scale"), "*fp32")
    types |= {"out": "*bf16", "query": "*bf16", "keys": f"*{name}", "values": f"*{name}"}
    types |= {"scale": "fp32", "softcap": "fp32", "table_stride": "i32"}
    constants = {"KH": 8, "G": 4, "D": head_size, "D_BLOCK": head_size, "S": 64, "ROWS": rows, "TILE": launch.tile}
    constants |= {"WINDOW": 0, "SOFTCAP": False, "FP8": dtype == FP8, "STAGES": launch.stages}
    made = compile_for_hopper(attention_decode._attend, types, constants, warps=launch.warps)
    products = made.count(r"wgmma\.mma_async")
    assert 0 < products == made.count(rf"wgmma\.mma_async\S+{'e4m3.e4m3' if dtype == FP8 else 'bf16.bf16'}")
    assert made.count(r"cp\.async") > 0
    assert made.stack == 0
    assert 2 * made.registers * 32 * launch.warps <= REGISTERS
    assert 2 * made.shared <= SHARED_BYTES


@pytest.mark.parametrize(
    ("dtype", "head_size", "window"),
    [(BF16, 64, 0), (BF16, 128, 0), (BF16, 256, 1024), (FP8, 64, 0), (FP8, 128, 4096), (FP8, 256, 0)],
)
def test_prefill_attention_uses_tensor_cores_in_both_products(dtype: torch.dtype, head_size: int, window: int) -> None:
    layout = KVLayout(8, head_size, 64, dtype)
    launch = attention_prefill.launch_of(layout)
    cache = "*fp8e4nv" if dtype == FP8 else "*bf16"
    types = dict.fromkeys(("table", "lengths", "starts", "tiles"), "*i32")
    types |= dict.fromkeys(("key_scale", "value_scale"), "*fp32")
    types |= {"out": "*bf16", "query": "*bf16", "keys": cache, "values": cache}
    types |= {"scale": "fp32", "softcap": "fp32", "table_stride": "i32"}
    constants = {"KH": 8, "G": 4, "D": head_size, "D_BLOCK": head_size, "S": 64, "ROWS": launch.rows}
    constants |= {"TILE": launch.tile, "WINDOW": window, "SOFTCAP": False, "FP8": dtype == FP8, "STAGES": launch.stages}
    made = compile_for_hopper(attention_prefill._attend, types, constants, warps=launch.warps)
    products = made.count(r"wgmma\.mma_async")
    assert 0 < products == made.count(rf"wgmma\.mma_async\S+{'e4m3.e4m3' if dtype == FP8 else 'bf16.bf16'}")
    # A warpgroup multiplies 64 rows by 16 elements of bf16 or 32 of fp8 at once, along the head, then along the tile.
    rows, depth = max(launch.rows // 64 * 4 // launch.warps, 1), 32 if dtype == FP8 else 16
    loops = 3 if window else 2
    assert products >= loops * rows * (head_size + launch.tile) // depth
    assert made.count(r"cp\.async") > 0
    assert made.stack == 0
    assert made.registers * 32 * launch.warps <= REGISTERS
    assert made.shared <= SHARED_BYTES
