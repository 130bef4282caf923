"""Prefill attention over pages: against fp64, and what must not change its result."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.attention_decode import DecodePlan, attend_decode
from kernels.attention_prefill import Launch, attend_prefill, launch_of
from kernels.kv_layout import KVLayout
from kernels.tiles import cut
from tests.gpu.paged import Batch, error, make_batch

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
# As for decoding: the result's rounding, and weights that fall on the other side of a boundary.
LIMIT = {BF16: 4e-3, FP8: 8e-3}
SMALL = Launch(32, 64, 4, 2)  # many tiles in little work


def tiles_of(batch: Batch, launch: Launch, first: int = 0) -> Tensor:
    group_size = batch.query.shape[1] // batch.layout.kv_heads
    lengths, counts = batch.lengths.tolist()[first:], batch.starts.diff().tolist()[first:]
    made = cut(lengths, counts, launch.tokens(group_size), first)
    return torch.tensor(made, dtype=torch.int32, device=batch.query.device).view(-1, 2)


def attend(batch: Batch, launch: Launch | None = None, first: int = 0, **options) -> Tensor:
    out = torch.full_like(batch.query, float("nan"))
    launch = launch or launch_of(batch.layout)
    arguments = batch.table, batch.lengths, batch.starts, tiles_of(batch, launch, first), batch.layout, batch.scale
    attend_prefill(out, batch.query, batch.caches, *arguments, launch=launch, **batch.scales, **options)
    return out


@pytest.mark.parametrize(
    ("dtype", "kv_heads", "group_size", "head_size", "page_size"),
    [
        (BF16, 2, 4, 128, 64), (BF16, 1, 7, 80, 32), (BF16, 1, 2, 256, 64), (BF16, 1, 16, 64, 16), (BF16, 1, 1, 64, 64),
        (FP8, 1, 4, 128, 64), (FP8, 1, 3, 96, 16), (FP8, 1, 2, 256, 32),
    ],
)  # fmt: skip
def test_it_is_attention(
    dtype: torch.dtype, kv_heads: int, group_size: int, head_size: int, page_size: int, device: torch.device
) -> None:
    """A whole prompt, one token, chunks behind a past that ends within a page and at its end."""
    layout = KVLayout(kv_heads, head_size, page_size, dtype)
    batch = make_batch(layout, [1, page_size + 7, 2 * page_size, 150], [1, 7, page_size + 1, 30], group_size, device)
    assert error(attend(batch), batch.reference()) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", [BF16, FP8])
@pytest.mark.parametrize(
    ("page_size", "options"), [(16, {"window": 37}), (64, {"softcap": 2.0}), (64, {"window": 100, "softcap": 5.0})]
)
def test_windows_and_caps(dtype: torch.dtype, options: dict, page_size: int, device: torch.device) -> None:
    batch = make_batch(KVLayout(1, 64, page_size, dtype), [5, 70, 211], [5, 70, 30], 4, device, spread=3.0)
    assert error(attend(batch, SMALL, **options), batch.reference(**options)) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", [BF16, FP8])
def test_a_score_that_rises_at_the_end_outweighs_all_before(dtype: torch.dtype, device: torch.device) -> None:
    layout = KVLayout(1, 64, 64, dtype)
    batch = make_batch(layout, [170], [9], 4, device)
    slot = batch.table[0, 169 // 64].long() * 64 + torch.tensor([169 % 64], device=device)
    sharp = batch.query[-1:, :1].float().mul(4).clamp(-400, 400).to(dtype)
    layout.write(batch.caches, sharp, layout.read(batch.caches, slot)[1], slot)
    assert error(attend(batch, SMALL), batch.reference()) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", [BF16, FP8])
@pytest.mark.parametrize("window", [None, 50])
def test_a_token_gets_the_same_bits_in_whatever_chunk_and_company(
    dtype: torch.dtype, window: int | None, device: torch.device
) -> None:
    layout = KVLayout(1, 64, 16, dtype)
    whole = make_batch(layout, [110, 20], [110, 20], 4, device)
    together = attend(whole, SMALL, window=window)
    for start, stop in ((0, 1), (0, 33), (33, 34), (90, 110)):
        chunk = Batch(
            layout,
            whole.query[start:stop],
            whole.caches,
            whole.table[:1],
            torch.tensor([stop], dtype=torch.int32, device=device),
            torch.tensor([0, stop - start], dtype=torch.int32, device=device),
            whole.scales,
        )
        assert torch.equal(attend(chunk, SMALL, window=window), together[start:stop])


@pytest.mark.parametrize("dtype", [BF16, FP8])
def test_decoded_rows_and_chunks_share_a_batch(dtype: torch.dtype, device: torch.device) -> None:
    """The first two requests decode, the others are chunks: each kernel writes its own rows."""
    layout = KVLayout(2, 64, 16, dtype)
    batch = make_batch(layout, [70, 33, 90, 25], [1, 3, 20, 25], 4, device)
    out = attend(batch, SMALL, first=2)
    assert out[:4].isnan().all()
    plan = DecodePlan(2, layout, group_size=4, max_query=3, device=device)
    plan.update(batch.lengths, batch.starts)
    arguments = batch.table, batch.lengths, batch.starts, plan, batch.scale
    attend_decode(out, batch.query, batch.caches, *arguments, **batch.scales)
    assert error(out, batch.reference()) < LIMIT[dtype]


def test_the_most_work_comes_first() -> None:
    assert cut([100, 7, 300], [40, 7, 20], 16, 3) == [(5, 16), (5, 0), (3, 32), (3, 16), (3, 0), (4, 0)]


def test_no_tiles_and_an_fp8_cache_without_scales(device: torch.device) -> None:
    batch = make_batch(KVLayout(1, 64, 16, FP8), [3], [3], 4, device)
    assert attend(batch, first=1).isnan().all()
    batch.scales = {}
    with pytest.raises(ValueError, match="key_scale"):
        attend(batch)
