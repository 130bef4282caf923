"""Attention over pages: what it computes, and that a row depends on nothing but itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import ops
from kernels.ops import AttentionBatch, GatedLinear, Linear, Span

KV_HEADS, SIZE, PAGE = 2, 16, 16
SCALE = SIZE**-0.5
LONGEST = 1100
Attend = Callable[[torch.Tensor, AttentionBatch], torch.Tensor]


class Request:
    """Queries, keys and values of a context of `length` tokens, and the pages of a cache that hold it."""

    def __init__(self, seed: int, length: int, heads: int, dtype: torch.dtype) -> None:
        noise = torch.Generator().manual_seed(seed)
        self.length = length
        self.query = torch.randn(length, heads, SIZE, generator=noise).to(dtype)
        self.key, self.value = (torch.randn(length, KV_HEADS, SIZE, generator=noise).to(dtype) for _ in range(2))
        self.pages: list[int] = []


def caches(requests: list[Request], dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Both caches, pages dealt at random; page 0 and what lies behind a context hold values that would be seen."""
    counts = [-(-request.length // PAGE) for request in requests]
    deal = (torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed)) + 1).tolist()
    keys = torch.full((sum(counts) + 1, PAGE, KV_HEADS, SIZE), 50.0, dtype=dtype)
    values = torch.full_like(keys, 1e4)
    for request, count in zip(requests, counts, strict=True):
        request.pages, deal = deal[:count], deal[count:]
        slots = torch.tensor([request.pages[p // PAGE] * PAGE + p % PAGE for p in range(request.length)])
        ops.write_cache(keys, request.key, slots)
        ops.write_cache(values, request.value, slots)
    return keys, values


def attend(
    requests: list[Request],
    parts: list[tuple[int, int, int]],
    dtype: torch.dtype,
    seed: int = 0,
    window: int | None = None,
    softcap: float = 0.0,
) -> list[torch.Tensor]:
    """`parts` of (request, start, count) in one step -> an output for each."""
    keys, values = caches(requests, dtype, seed)
    spans, queries, row = [], [], 0
    for index, start, count in parts:
        request = requests[index]
        spans.append(Span(row, start, count, request.pages[: -(-(start + count) // PAGE)]))
        queries.append(request.query[start : start + count])
        row += count
    query = torch.cat(queries)
    batch = AttentionBatch(
        spans, page_size=PAGE, group_size=query.shape[1] // KV_HEADS, dtype=dtype, device=query.device
    )
    out = ops.paged_attention(query, keys, values, batch, SCALE, window=window, softcap=softcap)
    return list(out.split([count for _, _, count in parts]))


def defined(request: Request, position: int, window: int | None, softcap: float) -> torch.Tensor:
    """The softmax over what the token at `position` sees, in fp64."""
    first = 0 if window is None else max(0, position - window + 1)
    key, value = (x[first : position + 1].double() for x in (request.key, request.value))
    group = request.query.shape[1] // KV_HEADS
    heads = []
    for head, query in enumerate(request.query[position].double()):
        scores = key[:, head // group] @ query * SCALE
        if softcap:
            scores = (scores / softcap).tanh() * softcap
        heads.append(scores.softmax(0) @ value[:, head // group])
    return torch.stack(heads)


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("window", [None, 1, 40, 300])
@pytest.mark.parametrize("group", [1, 3, 7, 8])
def test_each_token_attends_to_its_own_past(group: int, window: int | None, softcap: float) -> None:
    lengths = [1, 16, 17, 255, 256, 257, 700, 40]
    requests = [Request(i, length, KV_HEADS * group, torch.float32) for i, length in enumerate(lengths)]
    parts = [(0, 0, 1), (1, 15, 1), (2, 9, 8), (3, 254, 1), (4, 250, 6), (5, 255, 2), (6, 250, 450), (7, 0, 40)]
    outputs = attend(requests, parts, torch.float32, 0, window, softcap)
    for (index, start, count), out in zip(parts, outputs, strict=True):
        for token in {0, count // 2, count - 1}:
            expected = defined(requests[index], start + token, window, softcap)
            torch.testing.assert_close(out[token].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_row_is_the_same_alone_chunked_and_in_a_crowd(dtype: torch.dtype, data: st.DataObject) -> None:
    """Every position computed in two ways: the same bits."""
    group = data.draw(st.sampled_from([1, 2, 3, 4, 7, 8]))
    window = data.draw(st.sampled_from([None, None, 5, 130, 500]))
    lengths = data.draw(st.lists(st.integers(1, LONGEST), min_size=1, max_size=4))
    requests = [Request(i, length, KV_HEADS * group, dtype) for i, length in enumerate(lengths)]
    softcap = data.draw(st.sampled_from([0.0, 0.0, 2.0]))
    whole = [attend([r], [(0, 0, r.length)], dtype, 1, window, softcap)[0] for r in requests]
    parts = []
    for index, length in enumerate(lengths):
        start = data.draw(st.integers(0, length - 1))
        longest = min(length - start, data.draw(st.sampled_from([1, 1, 4, 8, 64, LONGEST])))
        parts.append((index, start, data.draw(st.integers(1, longest))))
    for (index, start, count), out in zip(parts, attend(requests, parts, dtype, 2, window, softcap), strict=True):
        assert torch.equal(out, whole[index][start : start + count])


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("out_size", "in_size"), [(160, 96), (576, 1536), (333, 64)])
def test_a_row_of_a_product_is_the_same_alone_and_in_a_crowd(
    out_size: int, in_size: int, dtype: torch.dtype, pack: bool
) -> None:
    noise = torch.Generator().manual_seed(0)
    weight, up = (torch.randn(out_size, in_size, generator=noise).to(dtype) / 8 for _ in range(2))
    x = torch.randn(90, in_size, generator=noise).to(dtype)
    residual = torch.randn(90, out_size, generator=noise).to(dtype)
    linear, gated = Linear(weight, weight[:, 0].clone(), pack=pack), GatedLinear(weight, up, pack=pack)
    whole = linear(x), linear.add(x, residual), gated(x)
    for first, last in [(0, 1), (89, 90), (3, 5), (20, 27), (8, 41), (1, 90)]:
        rows = slice(first, last)
        parts = linear(x[rows]), linear.add(x[rows], residual[rows]), gated(x[rows])
        for part, all_rows in zip(parts, whole, strict=True):
            assert torch.equal(part, all_rows[rows])


def test_a_page_size_that_does_not_divide_the_block_is_refused() -> None:
    with pytest.raises(ValueError, match="a page holds 24 tokens; it must divide 256"):
        AttentionBatch([], page_size=24, group_size=1, dtype=torch.float32, device=torch.device("cpu"))
