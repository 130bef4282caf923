"""Every op in plain torch: the CPU backend, and the oracle that faster twins are compared with.

Shapes use T tokens of a step, H query heads, G query heads per KV head, KH KV heads, D head size, S page size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., N] and weight [N], any float dtype -> like x. The mean is taken in fp32 (Zhang and Sennrich 2019).

    A weight of x's dtype multiplies what has been rounded to that dtype, as Llama has it; one in fp32 multiplies
    before the rounding, as Gemma has it.
    """
    wide = x.to(torch.float32, copy=True)
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    # In place: at 1,024 tokens this op is bound by memory, and takes half the time of one that allocates at each step.
    if weight.dtype == torch.float32:
        return wide.mul_(scale).mul_(weight).to(x.dtype)
    return wide.mul_(scale).to(x.dtype).mul(weight)


def gated_mul(gate_up: Tensor, activation: str = "silu") -> Tensor:
    """gate_up [T, 2F] -> f(first half) * second half, [T, F] (Shazeer 2020), f one of silu and gelu_tanh."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up


def rope_tables(inv_freq: Tensor, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """inv_freq [D/2] fp32 -> cos and signed sin, each [length, D], computed in fp32 and rounded once to `dtype`.

    The first half of the sines is negated, as `rope` wants it.
    """
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=inv_freq.device), inv_freq)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [T, heads, D] by the rows cos, sin [T, D] of `rope_tables`; element i is paired with i + D/2, as in
    GPT-NeoX (Su et al. 2021)."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos.unsqueeze(1), swapped, sin.unsqueeze(1))


def write_cache(cache: Tensor, values: Tensor, slots: Tensor) -> None:
    """Put values [T, KH, D] into cache [pages, S, KH, D] at slots [T] int64 (page * S + offset), in place."""
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, values)


def decode_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, pages: Tensor, mask: Tensor, scale: float
) -> Tensor:
    """One query token per request over its pages.

    query [B, H, D]; caches [pages, S, KH, D]; pages [B, P] int64, short rows padded with the dummy page 0;
    mask [B, 1, 1, P*S], 0 where a token exists and -inf elsewhere, in the query's dtype -> [B, H, D].
    The G query heads of a KV head stand in the place of query positions: each page is read once for all of them.
    """
    batch, heads, size = query.shape
    kv_heads = key_cache.shape[2]
    key = key_cache.index_select(0, pages.flatten()).view(batch, -1, kv_heads, size).transpose(1, 2)
    value = value_cache.index_select(0, pages.flatten()).view(batch, -1, kv_heads, size).transpose(1, 2)
    out = F.scaled_dot_product_attention(
        query.view(batch, kv_heads, heads // kv_heads, size), key, value, attn_mask=mask, scale=scale
    )
    return out.reshape(batch, heads, size)


def prefill_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """A chunk of one request: query [n, H, D] are the last n of the L positions of key, value [L, KH, D] -> [n, H, D].

    mask [n, L] from `chunk_mask`, or None when the chunk is the whole context (n = L).
    """
    out = F.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        key.transpose(0, 1).unsqueeze(0),
        value.transpose(0, 1).unsqueeze(0),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=True,
    )
    return out.squeeze(0).transpose(0, 1)


def chunk_mask(count: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Causal mask for the last `count` of `length` positions: [count, length], 0 where visible and -inf elsewhere."""
    positions = torch.arange(length, device=device)
    hidden = positions > positions[length - count :].unsqueeze(1)
    return torch.zeros(count, length, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
