"""The ops of a GPU's forward in plain torch, with the signatures of their Triton twins: what runs where no GPU is.

Slow and exact; what they promise stands in the twins' docstrings, or in `kernels.ops`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import reference
from kernels.attention_paged_reference import paged_attention_plain
from kernels.drawing import draw
from kernels.kv_layout import KVLayout
from kernels.linear import Activation
from kernels.operands import HeadNorms, History, KVScales, Quantized
from kernels.sampling import argmax

PREFILL_TILE_TOKENS = 32

add_rms_norm = reference.add_rms_norm


def quantize_rows(x: Tensor) -> Quantized:
    return Quantized(*reference.quantize_rows(x))


def add_rms_norm_fp8(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Quantized:
    return quantize_rows(add_rms_norm(x, residual, weight, eps))


def gated_mul(gate_up: Tensor, activation: Activation = "silu") -> Tensor:
    return reference.gated_mul(gate_up.float(), activation).to(gate_up.dtype)  # one rounding, as in the kernel


def gated_mul_fp8(gate_up: Tensor, activation: Activation = "silu") -> Quantized:
    return quantize_rows(gated_mul(gate_up, activation))


class Linear:
    def __init__(self, weight: Tensor | Quantized, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias
        self.out_features, self.in_features = (weight.codes if isinstance(weight, Quantized) else weight).shape

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        if isinstance(x, Quantized) != isinstance(self._weight, Quantized):
            raise ValueError("quantised weights take quantised rows, and plain ones plain rows")
        if not isinstance(x, Quantized) or not isinstance(self._weight, Quantized):
            return F.linear(x, self._weight, self._bias)  # type: ignore[arg-type]
        product = x.codes.float() @ self._weight.codes.float().T
        product *= self._weight.scales * x.scales.unsqueeze(1)
        return (product if self._bias is None else product + self._bias).bfloat16()


def rope_and_cache(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    cache: tuple[Tensor, Tensor],
    layout: KVLayout,
    norms: HeadNorms | None = None,
    scales: KVScales | None = None,
) -> Tensor:
    layout.admit(qkv.dtype, scales)
    heads = qkv.shape[1] // layout.head_size - 2 * layout.kv_heads
    parts = qkv.view(len(qkv), -1, layout.head_size).split([heads, layout.kv_heads, layout.kv_heads], dim=1)
    query, key, value = parts
    if norms is not None:
        query = reference.rms_norm(query, norms.query, norms.eps)
        key = reference.rms_norm(key, norms.key, norms.eps)
    rotation = cos[positions].float(), sin[positions].float()
    query, key = (reference.rope(x.float(), *rotation).to(qkv.dtype) for x in (query, key))
    if scales is not None:
        key, value = (
            (x.float() * scale.reciprocal()[:, None]).clamp(-448, 448).to(layout.dtype)
            for x, scale in ((key, scales.key), (value, scales.value))
        )
    layout.write(cache, key, value, slots)
    return query.contiguous()


class DecodePlan:
    """Holds what the attention of a step needs to know; without splits there is nothing to plan."""

    def __init__(
        self,
        requests: int,
        layout: KVLayout,
        *,
        group_size: int,
        max_query: int,
        device: torch.device,
        window: int | None = None,
        split_length: int | None = None,
        max_length: int | None = None,
    ) -> None:
        self.requests, self.layout, self.window = requests, layout, window

    def update(self, lengths: Tensor, starts: Tensor) -> None:
        pass


def attend_decode(
    out: Tensor,
    query: Tensor,
    caches: tuple[Tensor, Tensor],
    table: Tensor,
    lengths: Tensor,
    starts: Tensor,
    plan: DecodePlan,
    scale: float,
    *,
    softcap: float = 0.0,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
) -> None:
    rows = slice(int(starts[0]), int(starts[plan.requests]))
    out[rows] = paged_attention_plain(
        query, caches, plan.layout, table, lengths[: plan.requests], starts, scale,
        window=plan.window, softcap=softcap, key_scale=key_scale, value_scale=value_scale,
    )[rows].to(out.dtype)  # fmt: skip


def attend_prefill(
    out: Tensor,
    query: Tensor,
    caches: tuple[Tensor, Tensor],
    table: Tensor,
    lengths: Tensor,
    starts: Tensor,
    tiles: Tensor,
    layout: KVLayout,
    scale: float,
    *,
    window: int | None = None,
    softcap: float = 0.0,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
) -> None:
    for request in tiles[:, 0].unique().tolist():
        here = slice(request, request + 1)
        rows = slice(int(starts[request]), int(starts[request + 1]))
        out[rows] = paged_attention_plain(
            query, caches, layout, table[here], lengths[here], starts[request:], scale,
            window=window, softcap=softcap, key_scale=key_scale, value_scale=value_scale,
        )[rows].to(out.dtype)  # fmt: skip


def prefill_tile_tokens(layout: KVLayout, group_size: int) -> int:
    return PREFILL_TILE_TOKENS


def adjust(
    logits: Tensor,
    vocab: int,
    masks: tuple[Tensor, Tensor] | None = None,
    histories: tuple[Tensor, History] | None = None,
) -> None:
    known = logits[:, :vocab]
    if masks is not None:
        lines, words = masks
        some = lines >= 0
        known[some] = known[some].masked_fill(~_bits(words[lines[some].long()], vocab), float("-inf"))
    if histories is not None:
        pasts, history = histories
        some = pasts >= 0
        past = pasts[some].long()
        value, factor = known[some], history.repetition[past].unsqueeze(1)
        penalized = torch.where(value > 0, value / factor, value * factor)
        value = torch.where(_bits(history.seen[past], vocab), penalized, value)
        count = history.made[past].float()
        loss = history.presence[past].unsqueeze(1) + history.frequency[past].unsqueeze(1) * count
        known[some] = torch.where(count > 0, value - loss, value)
    logits[:, vocab:] = float("-inf")


def _bits(words: Tensor, vocab: int) -> Tensor:
    """[R, ceil(vocab / 32)] int32 -> [R, vocab] bool."""
    shifts = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words.unsqueeze(-1) >> shifts) & 1).flatten(1)[:, :vocab].bool()


def choose_tokens(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    tokens = argmax(logits)
    random = temperature > 0
    if bool(random.any()):
        options = (x[random] for x in (temperature, top_k, top_p, min_p, uniform))
        tokens[random] = draw(logits[random].contiguous(), *options)
    return tokens
