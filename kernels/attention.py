"""Attention over a paged cache in plain torch, for rows whose result depends on nothing but themselves.

A context is cut at the multiples of KV_BLOCK, counted from its first token. Each block is attended on its own, giving
an output and the log-sum-exp of its scores, and the blocks of a row are merged from the first to the last (Dao et al.
2022; the merge is that of Flash-Decoding). So a token's result is the same to the last bit whether it is computed
alone or beside others, as a decoded token, in a chunk of a prompt or as a draft to verify: the products behind it have
the same shapes, and are added in the same order. Two things of the CPU's matrix products had to be kept from it: their
rows differ when there are fewer than 8, so rows are filled up to a multiple of ROW_MULTIPLE; and torch's kernel cuts
long contexts by their length, so it never gets more than one block.

The G query heads of a KV head stand in the place of query positions: each page is read once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

KV_BLOCK = 256
ROW_MULTIPLE = 8
# Spans of at most this many tokens, decoded tokens and drafts, share one call; longer ones have one of their own.
NARROW = 8


@dataclass(frozen=True)
class Span:
    """`count` tokens of one request from position `start` on, in rows `row .. row + count` of the step, whose context
    lies in `pages`."""

    row: int
    start: int
    count: int
    pages: list[int]

    @property
    def stop(self) -> int:
        return self.start + self.count


class AttentionBatch:
    """Where the tokens of a step find their contexts: made once a step, used by every layer.

    `group_size` is G, the query heads per KV head. `page_size` must divide KV_BLOCK.
    """

    def __init__(
        self, spans: list[Span], *, page_size: int, group_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        if KV_BLOCK % page_size:
            raise ValueError(f"a page holds {page_size} tokens; it must divide {KV_BLOCK}, the block of attention")
        layout = _Layout(page_size, group_size, dtype, device)
        narrow: dict[int, list[Span]] = {}
        for span in spans:
            if span.count <= NARROW:
                narrow.setdefault(1 << (span.count - 1).bit_length(), []).append(span)
        self.tiles: list[_Tiles] = [_Tiles(group, width, layout) for width, group in sorted(narrow.items())]
        self.tiles += [_Tiles([span], span.count, layout) for span in spans if span.count > NARROW]


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    scale: float,
    *,
    window: int | None = None,
    softcap: float = 0.0,
) -> Tensor:
    """Each token of a step over the tokens of its own request up to itself -> [T, H, D], like the query.

    query [T, H, D]; caches [pages, S, KH, D], which hold the step's own keys and values already. `window` is how many
    tokens a query sees, itself included (None: all); `softcap` c bends a score s to c tanh(s / c) (0: as it is).
    """
    out = torch.empty_like(query)
    for tiles in batch.tiles:
        tiles.attend(out, query, key_cache, value_cache, scale, window, softcap)
    return out


def attend_plainly(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """query [B, KH, R, D], key and value [B, KH, N, D], mask [B, 1, R, N] of 0 and -inf, or None -> output like the
    query, and the log-sum-exp of the scores [B, KH, R] fp32. In fp32; a row that sees nothing gives 0 and -inf."""
    scores = torch.matmul(query.float(), key.float().transpose(-1, -2)).mul_(scale)
    if softcap:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    if mask is not None:
        scores += mask
    lse = scores.logsumexp(-1)
    top = lse.masked_fill(lse.isneginf(), 0.0).unsqueeze(-1)
    return torch.matmul(scores.sub_(top).exp_(), value.float()).to(query.dtype), lse


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float
) -> tuple[Tensor, Tensor]:
    if softcap or query.device.type != "cpu":
        return attend_plainly(query, key, value, mask, scale, softcap)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, False, attn_mask=mask, scale=scale
    )


@dataclass(frozen=True)
class _Layout:
    page_size: int
    group_size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def block_pages(self) -> int:
        return KV_BLOCK // self.page_size


@dataclass(frozen=True)
class _Call:
    """One call of the kernel: block `block + i` of the contexts of spans `0 .. spans` for i in 0 .. `blocks`.

    Either one block of several spans or several blocks of one. Rows `first_row ..` of each span take part.
    """

    block: int
    blocks: int
    spans: int
    first_row: int
    pages: Tensor  # [spans * blocks * KV_BLOCK / S] int64, the dummy page 0 where a context has ended
    mask: Tensor | None  # [spans, 1, R, KV_BLOCK] of 0 and -inf; None where all see all
    unseen: Tensor | None  # [spans, 1, R]: rows that see nothing of the block


class _Tiles:
    """Spans of at most `width` tokens each, in tiles of R rows: token by token, its G heads side by side."""

    def __init__(self, spans: list[Span], width: int, layout: _Layout) -> None:
        # The longest first: the spans that have a block are then always the first ones.
        self._spans = sorted(spans, key=lambda span: -span.stop)
        self._layout = layout
        self._width = width
        self._rows = -(-width * layout.group_size // ROW_MULTIPLE) * ROW_MULTIPLE
        self._alone = len(spans) == 1
        self._made: dict[int | None, list[_Call]] = {}

    @cached_property
    def _tokens(self) -> Tensor:
        """[B, width] int64: rows of the step; a span that is shorter repeats its last token."""
        rows = [[span.row + min(t, span.count - 1) for t in range(self._width)] for span in self._spans]
        return torch.tensor(rows, dtype=torch.int64, device=self._layout.device)

    @cached_property
    def _positions(self) -> Tensor:
        """[B, R] int64: the position of each row of a tile; rows that only fill it have that of the last token."""
        starts = [[span.start + min(t, span.count - 1) for t in range(self._width)] for span in self._spans]
        positions = torch.tensor(starts, dtype=torch.int64, device=self._layout.device)
        positions = positions.repeat_interleave(self._layout.group_size, dim=1)
        missing = self._rows - positions.shape[1]
        return torch.cat((positions, positions[:, -1:].expand(-1, missing)), dim=1) if missing else positions

    def attend(
        self,
        out: Tensor,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        scale: float,
        window: int | None,
        softcap: float,
    ) -> None:
        tiles = self._load(query, key_cache.shape[2])
        merge = _Merge(tiles.shape)
        if window not in self._made:  # the layers of a model have one window, or two
            self._made[window] = list(self._calls(window))
        for call in self._made[window]:
            key, value = (self._gather(cache, call) for cache in (key_cache, value_cache))
            part = tiles[: call.spans, :, call.first_row :]
            if call.blocks > 1:
                part = part.expand(call.blocks, -1, -1, -1)
            partial, lse = _attend(part, key, value, call.mask, scale, softcap)
            if call.unseen is not None:
                lse = lse.masked_fill(call.unseen, float("-inf"))
            merge.add(partial, lse, call)
        self._store(out, merge.result())

    def _load(self, query: Tensor, kv_heads: int) -> Tensor:
        """[T, H, D] -> [B, KH, R, D]."""
        group, size = self._layout.group_size, query.shape[-1]
        if self._alone:
            span = self._spans[0]
            picked = query[span.row : span.row + span.count].unsqueeze(0)
            if span.count < self._width:
                picked = query[self._tokens]
        else:
            picked = query[self._tokens]
        tiles = picked.view(-1, self._width, kv_heads, group, size).transpose(1, 2)
        tiles = tiles.reshape(-1, kv_heads, self._width * group, size)
        missing = self._rows - tiles.shape[2]
        return F.pad(tiles, (0, 0, 0, missing)) if missing else tiles

    def _store(self, out: Tensor, tiles: Tensor) -> None:
        group = self._layout.group_size
        batch, kv_heads, _, size = tiles.shape
        tiles = tiles[:, :, : self._width * group].view(batch, kv_heads, self._width, group, size).transpose(1, 2)
        tiles = tiles.reshape(batch * self._width, kv_heads * group, size)
        # A repeated token is stored more than once, each time with the same result.
        out[self._tokens.flatten()] = tiles.to(out.dtype)

    def _gather(self, cache: Tensor, call: _Call) -> Tensor:
        """Pages of a call -> [spans * blocks, KH, KV_BLOCK, D]."""
        # `index_select` goes through pages of more than two dimensions slice by slice: 16 times slower.
        picked = F.embedding(call.pages, cache.view(cache.shape[0], -1))
        return picked.view(-1, KV_BLOCK, *cache.shape[2:]).transpose(1, 2)

    def _calls(self, window: int | None) -> Iterator[_Call]:
        first = 0
        if window is not None:
            first = max(0, min(span.start for span in self._spans) - window + 1) // KV_BLOCK
        whole = first
        if self._alone and window is None:
            # What lies behind a long chunk is seen by all of it: many blocks at once, and no mask.
            whole = self._spans[0].start // KV_BLOCK
            if whole > first:
                yield _Call(first, whole - first, 1, 0, self._pages(1, first, whole - first), None, None)
        for block in range(whole, -(-self._spans[0].stop // KV_BLOCK)):
            yield self._masked_call(block, window)

    def _masked_call(self, block: int, window: int | None) -> _Call:
        begin, end = block * KV_BLOCK, (block + 1) * KV_BLOCK
        spans = sum(span.stop > begin for span in self._spans)
        first_row = 0
        if self._alone:  # tokens before the block see nothing of it
            skipped = max(0, begin - self._spans[0].start) * self._layout.group_size
            first_row = skipped // ROW_MULTIPLE * ROW_MULTIPLE
        positions = self._positions[:spans, first_row:, None]
        keys = torch.arange(begin, end, device=self._layout.device)
        seen = keys <= positions
        if window is not None:
            seen &= keys > positions - window
        mask = torch.zeros(seen.shape, dtype=self._layout.dtype, device=self._layout.device)
        return _Call(
            block,
            1,
            spans,
            first_row,
            self._pages(spans, block, 1),
            mask.masked_fill_(~seen, float("-inf")).unsqueeze(1),
            ~seen.any(-1).unsqueeze(1),
        )

    def _pages(self, spans: int, block: int, blocks: int) -> Tensor:
        size = self._layout.block_pages
        pages: list[int] = []
        for span in self._spans[:spans]:
            used = span.pages[block * size : (block + blocks) * size]
            pages += used + [0] * (blocks * size - len(used))
        return torch.tensor(pages, dtype=torch.int64, device=self._layout.device)


class _Merge:
    """Outputs of blocks into one, weighted by exp(lse), added from the first block to the last."""

    def __init__(self, shape: torch.Size) -> None:
        self._shape = shape
        self._parts: list[tuple[Tensor, Tensor, _Call]] = []

    def add(self, partial: Tensor, lse: Tensor, call: _Call) -> None:
        self._parts.append((partial, lse, call))

    def result(self) -> Tensor:
        """[B, KH, R, D]. Rows with one block have it as it is: exp(0) is 1."""
        if len(self._parts) == 1 and self._parts[0][2].blocks == 1 and self._parts[0][0].shape == self._shape:
            return self._parts[0][0]
        top = self._parts[0][1].new_full(self._shape[:-1], float("-inf"))
        for _, lse, call in self._parts:
            part = top[: call.spans, :, call.first_row :]
            torch.maximum(part, lse.amax(0, keepdim=True) if call.blocks > 1 else lse, out=part)
        # A row that fills a tile may see nothing at all.
        top = top.masked_fill_(top.isneginf(), 0.0).double()
        total = torch.zeros(self._shape[:-1], dtype=torch.float32, device=top.device)
        out = torch.zeros(self._shape, dtype=torch.float32, device=top.device)
        for partial, lse, call in self._parts:
            here = (slice(call.spans), slice(None), slice(call.first_row, None))
            for index in range(call.blocks):
                piece = slice(index, index + 1) if call.blocks > 1 else slice(None)
                # The exponential in fp64: vector and scalar code differ in the last bit, which fp32 then drops.
                weight = (lse[piece].double() - top[here]).exp_().float()
                total[here] += weight
                out[here] += partial[piece].float() * weight.unsqueeze(-1)
        return out.div_(total.unsqueeze(-1))
