"""Rotation and the written cache: against the references in fp64, and the cache of one dtype against the other's."""

from __future__ import annotations

import pytest
import torch

from kernels import reference
from kernels.kv_layout import KVLayout
from kernels.operands import HeadNorms, KVScales
from kernels.rope_cache import rope_and_cache

HEADS, KV_HEADS, PAGES, LONGEST = 6, 2, 5, 300
DTYPES = [torch.float16, torch.bfloat16]
ROUNDING = {torch.float16: 2**-11, torch.bfloat16: 2**-8}


class Case:
    """Tokens with positions and slots in no order, and a cache that is not empty."""

    def __init__(self, tokens: int, head_size: int, page_size: int, dtype: torch.dtype, device: torch.device) -> None:
        noise = torch.Generator().manual_seed(tokens + head_size + page_size)
        self.dtype, self.device, self.page_size, self.head_size = dtype, device, page_size, head_size
        qkv = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * head_size, generator=noise) * 2
        self.qkv = qkv.to(dtype).to(device)
        self.positions = torch.randint(0, LONGEST, (tokens,), generator=noise).to(device)
        self.slots = torch.randperm(PAGES * page_size, generator=noise)[:tokens].to(device)
        inv_freq = 10_000.0 ** (-torch.arange(0, head_size, 2) / head_size)
        self.cos, self.sin = (table.to(device) for table in reference.rope_tables(inv_freq, LONGEST, torch.float32))
        weights = torch.rand(2, head_size, generator=noise).add(0.5).to(device)
        self.norms = HeadNorms(weights[0].to(dtype), weights[1].to(dtype), 1e-6)
        self.wide_norms = HeadNorms(weights[0], weights[1], 1e-6)
        self.scales = KVScales(torch.tensor([0.001, 0.3], device=device), torch.tensor([0.01, 0.04], device=device))
        self.background = torch.randn(2, generator=noise).tolist()

    def run(
        self, cache_dtype: torch.dtype | None = None, norms: HeadNorms | None = None
    ) -> tuple[KVLayout, tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        layout = KVLayout(KV_HEADS, self.head_size, self.page_size, cache_dtype or self.dtype)
        cache = layout.make(PAGES, self.device)
        for part, value in zip(cache, self.background, strict=True):
            part.copy_(torch.full(part.shape, value).to(part.dtype))
        scales = self.scales if cache_dtype == torch.float8_e4m3fn else None
        inputs = self.qkv, self.cos, self.sin, self.positions, self.slots
        return layout, cache, rope_and_cache(*inputs, cache, layout, norms, scales)

    def exact(self, norms: HeadNorms | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values in fp64, unrounded."""
        parts = self.qkv.double().view(len(self.qkv), -1, self.head_size).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        query, key, value = parts
        if norms is not None:
            query = torch.nn.functional.rms_norm(query, (self.head_size,), norms.query.double(), norms.eps)
            key = torch.nn.functional.rms_norm(key, (self.head_size,), norms.key.double(), norms.eps)
        tables = self.cos[self.positions].double(), self.sin[self.positions].double()
        return reference.rope(query, *tables), reference.rope(key, *tables), value


def close(found: torch.Tensor, exact: torch.Tensor, roundings: int) -> bool:
    """Within that many roundings of a pair of rotated elements."""
    pair = (exact.square() + exact.roll(exact.shape[-1] // 2, dims=-1).square()).sqrt()
    return bool(((found - exact).abs() <= 1.02 * roundings * ROUNDING[found.dtype] * pair + 1e-6).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "head_size", "page_size"), [(1, 64, 16), (17, 80, 32), (40, 128, 16), (33, 256, 64)]
)
@pytest.mark.parametrize("norm", ["none", "narrow", "wide"])
def test_queries_are_rotated_and_the_cache_holds_keys_and_values(
    norm: str, tokens: int, head_size: int, page_size: int, dtype: torch.dtype, device: torch.device
) -> None:
    case = Case(tokens, head_size, page_size, dtype, device)
    norms = {"none": None, "narrow": case.norms, "wide": case.wide_norms}[norm]
    layout, cache, query = case.run(norms=norms)
    exact_query, exact_key, exact_value = case.exact(norms)
    key, value = layout.read(cache, case.slots)
    roundings = {"none": 1, "narrow": 3, "wide": 2}[norm]
    assert query.is_contiguous()
    assert close(query, exact_query, roundings)
    assert close(key, exact_key, roundings)
    assert torch.equal(value.double(), exact_value)
    others = torch.ones(PAGES * page_size, dtype=torch.bool, device=device)
    others[case.slots] = False
    for part, before in zip(layout.read(cache, others.nonzero().squeeze(1)), case.background, strict=True):
        assert (part == torch.tensor(before).to(dtype).to(device)).all(), "what no token was put in stays"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "head_size", "page_size"), [(1, 64, 16), (17, 80, 32), (40, 128, 64)])
@pytest.mark.parametrize("norm", [False, True])
def test_an_fp8_cache_holds_the_codes_of_what_a_wider_one_would(
    norm: bool, tokens: int, head_size: int, page_size: int, dtype: torch.dtype, device: torch.device
) -> None:
    case = Case(tokens, head_size, page_size, dtype, device)
    norms = case.norms if norm else None
    wide_layout, wide, wide_query = case.run(norms=norms)
    layout, cache, query = case.run(torch.float8_e4m3fn, norms)
    assert torch.equal(query, wide_query)
    expected = layout.make(PAGES, device)
    for part, before in zip(expected, case.background, strict=True):
        part.copy_(torch.full(part.shape, before).to(part.dtype))
    codes = [
        (part.float() * scale.reciprocal()[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        for part, scale in zip(wide_layout.read(wide, case.slots), case.scales, strict=True)
    ]
    layout.write(expected, codes[0], codes[1], case.slots)
    for found, right in zip(cache, expected, strict=True):
        assert torch.equal(found.view(torch.uint8), right.view(torch.uint8))
    assert (cache[0].float().abs() == 448).any(), "the scales are small enough that something saturates"


def test_scales_belong_to_fp8_alone(device: torch.device) -> None:
    case = Case(1, 64, 16, torch.bfloat16, device)
    inputs = case.qkv, case.cos, case.sin, case.positions, case.slots
    for dtype, scales in ((torch.float8_e4m3fn, None), (torch.bfloat16, case.scales)):
        layout = KVLayout(KV_HEADS, 64, 16, dtype)
        with pytest.raises(ValueError, match="scales"):
            rope_and_cache(*inputs, layout.make(PAGES, device), layout, scales=scales)
    layout = KVLayout(KV_HEADS, 64, 16, torch.float16)
    with pytest.raises(ValueError, match="same dtype"):
        rope_and_cache(*inputs, layout.make(PAGES, device), layout)
