"""Decode attention over pages: against fp64, and what must not change its result."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.attention_decode import DecodePlan, attend_decode
from kernels.kv_layout import KVLayout
from tests.gpu.paged import Batch, error, make_batch

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
# The result is rounded to bf16, the weights of a bf16 product too; an fp8 weight that falls on the other side of a
# rounding boundary than in fp64 is off by its last bit.
LIMIT = {BF16: 4e-3, FP8: 8e-3}


def attend(batch: Batch, group_size: int, **options) -> Tensor:
    softcap = options.pop("softcap", 0.0)
    wanted = options.pop("wanted", None)
    plan = DecodePlan(
        len(batch.lengths),
        batch.layout,
        group_size=group_size,
        max_query=max(1, int(batch.starts.diff().max())),
        device=batch.query.device,
        **options,
    )
    if wanted is not None:
        plan.wanted = wanted
    plan.update(batch.lengths, batch.starts)
    out = torch.full_like(batch.query, float("nan"))
    attend_decode(
        out,
        batch.query,
        batch.caches,
        batch.table,
        batch.lengths,
        batch.starts,
        plan,
        batch.scale,
        softcap=softcap,
        **batch.scales,
    )
    return out


@pytest.mark.parametrize("dtype", [BF16, FP8])
@pytest.mark.parametrize(
    ("kv_heads", "group_size", "head_size", "page_size"),
    [(2, 4, 128, 64), (1, 1, 64, 16), (1, 7, 80, 32), (2, 8, 256, 64), (1, 16, 96, 64), (1, 3, 64, 64)],
)
def test_it_is_attention(
    dtype: torch.dtype, kv_heads: int, group_size: int, head_size: int, page_size: int, device: torch.device
) -> None:
    layout = KVLayout(kv_heads, head_size, page_size, dtype)
    batch = make_batch(layout, [1, page_size - 1, page_size, page_size + 1, 700], [1] * 5, group_size, device)
    assert error(attend(batch, group_size), batch.reference()) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", [BF16, FP8])
@pytest.mark.parametrize("options", [{"window": 37}, {"softcap": 2.0}, {"window": 300, "softcap": 5.0}], ids=str)
def test_windows_caps_and_drafts(dtype: torch.dtype, options: dict, device: torch.device) -> None:
    layout = KVLayout(2, 64, 16, dtype)
    batch = make_batch(layout, [5, 130, 611], [5, 2, 3], 4, device, spread=3.0)
    assert error(attend(batch, 4, **options), batch.reference(**options)) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", [BF16, FP8])
def test_the_number_of_splits_does_not_matter(dtype: torch.dtype, device: torch.device) -> None:
    layout = KVLayout(1, 64, 64, dtype)
    batch = make_batch(layout, [2000, 300], [1, 1], 4, device, spread=3.0)
    whole = attend(batch, 4, wanted=1)
    for wanted in (2, 5, 16):
        assert error(attend(batch, 4, wanted=wanted), whole.double()) < 4e-3


@pytest.mark.parametrize("dtype", [BF16, FP8])
def test_a_score_that_rises_at_the_end_outweighs_all_before(dtype: torch.dtype, device: torch.device) -> None:
    layout = KVLayout(1, 64, 64, dtype)
    batch = make_batch(layout, [1000], [1], 4, device)
    slot = batch.table[0, 999 // 64].long() * 64 + torch.tensor([999 % 64], device=device)
    sharp = batch.query[:, :1].float().mul(4).clamp(-400, 400).to(dtype)
    layout.write(batch.caches, sharp, layout.read(batch.caches, slot)[1], slot)
    assert error(attend(batch, 4), batch.reference()) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", [BF16, FP8])
def test_rows_that_pad_change_nothing_and_are_not_written(dtype: torch.dtype, device: torch.device) -> None:
    batch = make_batch(KVLayout(1, 64, 16, dtype), [70, 33], [1, 1], 4, device)
    out = attend(batch, 4, split_length=256, max_length=256)
    batch.lengths = torch.cat((batch.lengths, batch.lengths.new_zeros(2)))
    batch.starts = torch.cat((batch.starts, batch.starts[-1:].expand(2)))
    batch.table = torch.cat((batch.table, torch.zeros_like(batch.table)))
    assert torch.equal(attend(batch, 4, split_length=256, max_length=256), out)


@pytest.mark.parametrize("dtype", [BF16, FP8])
@pytest.mark.parametrize("window", [None, 200])
def test_invariant_mode_gives_the_same_bits_alone_in_a_crowd_and_as_a_draft(
    dtype: torch.dtype, window: int | None, device: torch.device
) -> None:
    layout = KVLayout(1, 64, 16, dtype)
    fixed = {"split_length": 256, "max_length": 1024, "window": window}
    crowd = make_batch(layout, [40, 800, 517], [1, 3, 2], 4, device)
    together = attend(crowd, 4, **fixed)
    assert error(together, crowd.reference(window=window)) < LIMIT[dtype]
    for request, row, length in ((0, 0, 40), (1, 1, 798), (1, 2, 799), (1, 3, 800), (2, 5, 517)):
        alone = Batch(
            layout,
            crowd.query[row : row + 1],
            crowd.caches,
            crowd.table[request : request + 1],
            torch.tensor([length], dtype=torch.int32, device=device),
            torch.tensor([0, 1], dtype=torch.int32, device=device),
            crowd.scales,
        )
        assert torch.equal(attend(alone, 4, **fixed)[0], together[row])


def test_an_fp8_cache_without_scales_is_refused(device: torch.device) -> None:
    batch = make_batch(KVLayout(1, 64, 16, FP8), [3], [1], 4, device)
    batch.scales = {}
    with pytest.raises(ValueError, match="key_scale"):
        attend(batch, 4)
