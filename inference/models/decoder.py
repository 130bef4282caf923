"""The decoder: Llama- and Qwen2-family transformers with grouped-query attention over a paged cache.

One forward takes the tokens of a whole step, of any number of requests, side by side and without padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.memory.cache import KVCache
from inference.models.config import ModelConfig
from kernels import ops
from kernels.ops import GatedLinear, Linear


@dataclass(frozen=True)
class LayerWeights:
    input_norm: Tensor
    qkv: Linear
    o: Linear
    post_norm: Tensor
    gated: GatedLinear
    down: Linear


@dataclass(frozen=True)
class DecoderWeights:
    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Linear


@dataclass(frozen=True)
class DecodeGroup:
    """Requests with one token in this step and contexts of similar length. B requests, P pages at most."""

    rows: Tensor  # [B] int64, their rows in the step
    pages: Tensor  # [B, P] int64, padded with the dummy page 0
    mask: Tensor  # [B, 1, 1, P * page_size], 0 or -inf


@dataclass(frozen=True)
class PrefillSegment:
    """A request with several tokens in this step: rows start..stop, of a context of `length` tokens."""

    start: int
    stop: int
    length: int
    # [length] int64, the context's slots, and [stop - start, length]; None when the rows are the whole context
    slots: Tensor | None
    mask: Tensor | None


@dataclass(frozen=True)
class StepTensors:
    """All that a forward needs besides weights. T tokens."""

    tokens: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64, where each token's key and value go
    decode: tuple[DecodeGroup, ...]
    prefill: tuple[PrefillSegment, ...]
    logits_rows: Tensor  # [R] int64, rows whose logits are wanted


class Decoder:
    """Weights and arithmetic; holds no request and no cache."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self._weights = weights
        self._scale = config.head_dim**-0.5
        self._inv_freq = torch.tensor(config.inv_freq(), dtype=torch.float32, device=device)
        self._cos, self._sin = ops.rope_tables(self._inv_freq, 0, dtype)

    @property
    def parameters(self) -> int:
        """Number of weights, the tied head counted once."""
        c = self.config
        attention = c.hidden_size * c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads)
        attention += c.head_dim * (c.num_heads + 2 * c.num_kv_heads) if c.qkv_bias else 0
        mlp = 3 * c.hidden_size * c.intermediate_size
        tables = c.vocab_size * c.hidden_size * (1 if c.tie_word_embeddings else 2)
        return tables + c.num_layers * (attention + mlp + 2 * c.hidden_size) + c.hidden_size

    def reserve(self, length: int) -> None:
        """Make the rotary tables reach `length` positions."""
        if self._cos.shape[0] < length:
            self._cos, self._sin = ops.rope_tables(self._inv_freq, length, self.dtype)

    def forward(self, step: StepTensors, cache: KVCache) -> Tensor:
        """Run the step, writing its keys and values into `cache` -> logits [R, vocab_size] fp32."""
        weights = self._weights
        cos, sin = self._cos[step.positions], self._sin[step.positions]
        hidden = F.embedding(step.tokens, weights.embedding)
        last = len(weights.layers) - 1
        for index, layer in enumerate(weights.layers):
            normed = ops.rms_norm(hidden, layer.input_norm, self.config.rms_norm_eps)
            attended = self._attention(layer, index, normed, cos, sin, step, cache)
            if index == last:  # from here on rows do not meet: only those that sample go on
                hidden, attended = hidden[step.logits_rows], attended[step.logits_rows]
            hidden = layer.o.add(attended, hidden)
            normed = ops.rms_norm(hidden, layer.post_norm, self.config.rms_norm_eps)
            hidden = layer.down.add(layer.gated(normed), hidden)
        return weights.head(ops.rms_norm(hidden, weights.norm, self.config.rms_norm_eps)).float()

    def _attention(
        self, layer: LayerWeights, index: int, x: Tensor, cos: Tensor, sin: Tensor, step: StepTensors, cache: KVCache
    ) -> Tensor:
        config = self.config
        heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
        qkv = layer.qkv(x).view(-1, heads + 2 * kv_heads, size)
        rotated = ops.rope(qkv[:, : heads + kv_heads], cos, sin)
        query, key, value = rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :]
        keys, values = cache.keys[index], cache.values[index]
        ops.write_cache(keys, key, step.slots)
        ops.write_cache(values, value, step.slots)

        out = torch.empty_like(query)
        for group in step.decode:
            out[group.rows] = ops.decode_attention(
                query[group.rows], keys, values, group.pages, group.mask, self._scale
            )
        for segment in step.prefill:
            rows = slice(segment.start, segment.stop)
            if segment.slots is None:
                past_key, past_value = key[rows], value[rows]
            else:
                past_key, past_value = cache.gather(index, segment.slots)
            out[rows] = ops.prefill_attention(query[rows], past_key, past_value, segment.mask, self._scale)
        return out.view(-1, heads * size)
