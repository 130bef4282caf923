"""Random batches over a paged cache, for the attention kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention_paged_reference import paged_attention_plain
from kernels.kv_layout import KVLayout


@dataclass
class Batch:
    layout: KVLayout
    query: Tensor
    caches: tuple[Tensor, Tensor]
    table: Tensor
    lengths: Tensor
    starts: Tensor
    scales: dict[str, Tensor]

    @property
    def scale(self) -> float:
        return self.layout.head_size**-0.5

    def reference(self, **options) -> Tensor:
        return paged_attention_plain(
            self.query,
            self.caches,
            self.layout,
            self.table,
            self.lengths,
            self.starts,
            self.scale,
            **self.scales,
            **options,
        )


def make_batch(
    layout: KVLayout,
    lengths: list[int],
    counts: list[int],
    group_size: int,
    device: torch.device,
    seed: int = 0,
    spread: float = 1.0,
) -> Batch:
    """Requests with these context lengths, the last `counts` tokens of each being queries, on shuffled pages."""
    noise = torch.Generator().manual_seed(seed)
    needed = [-(-length // layout.page_size) for length in lengths]
    order = (torch.randperm(sum(needed), generator=noise) + 1).to(torch.int32)
    # What is behind a request's last page is rubbish, and must not be read.
    table = torch.full((len(lengths), max(needed) + 1), 1 << 24, dtype=torch.int32)
    for row, pages in zip(table, order.split(needed), strict=True):
        row[: len(pages)] = pages

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=noise)

    caches = tuple(
        drawn(*shape).to(layout.dtype).to(device)
        for shape in (layout.key_shape(sum(needed) + 1), layout.value_shape(sum(needed) + 1))
    )
    scales = {}
    if layout.values_transposed:
        for name in ("key_scale", "value_scale"):
            scales[name] = (torch.rand(layout.kv_heads, generator=noise) + 0.5).to(device)
    dtype = torch.bfloat16 if layout.values_transposed else layout.dtype
    query = drawn(sum(counts), layout.kv_heads * group_size, layout.head_size) * spread
    return Batch(
        layout,
        query.to(dtype).to(device),
        caches,  # type: ignore[arg-type]
        table.to(device),
        torch.tensor(lengths, dtype=torch.int32, device=device),
        torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32, device=device),
        scales,
    )


def error(out: Tensor, expected: Tensor) -> float:
    """Relative, in the Euclidean norm; NaN where anything is."""
    return float((out.double() - expected).norm() / expected.norm())
