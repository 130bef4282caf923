"""The decoder: transformers of the Llama, Qwen and related families, with grouped-query attention over a paged cache.

One forward takes the tokens of a whole step, of any number of requests, side by side and without padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.models.config import ModelConfig
from inference.models.kv_cache import KVCache
from inference.models.rope import Rope
from inference.models.tensors import parameter_count
from kernels import ops
from kernels.ops import AttentionBatch, GatedLayer, LinearLayer


@dataclass(frozen=True)
class LayerWeights:
    input_norm: Tensor
    qkv: LinearLayer
    q_norm: Tensor | None  # [D], as k_norm
    k_norm: Tensor | None
    o: LinearLayer
    o_norm: Tensor | None  # [hidden], as down_norm
    mlp_norm: Tensor
    gated: GatedLayer
    down: LinearLayer
    down_norm: Tensor | None


@dataclass(frozen=True)
class DecoderWeights:
    embedding: Tensor  # [vocab_size, hidden], perhaps in fewer bits than the model computes in
    layers: list[LayerWeights]
    norm: Tensor
    head: LinearLayer


@dataclass(frozen=True)
class StepTensors:
    """All that a forward needs besides weights. T tokens."""

    tokens: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64, where each token's key and value go
    attention: AttentionBatch
    logits_rows: Tensor  # [R] int64, rows whose logits are wanted


class Decoder:
    """Weights and arithmetic; holds no request and no cache."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self._weights = weights
        # Rounded to the dtype, as Gemma was trained.
        scale = config.embedding_scale
        self._embedding_scale = None if scale == 1.0 else torch.tensor(scale, dtype=dtype, device=device)
        ropes = dict.fromkeys(layer.rope for layer in config.attention)  # most families have one for all layers
        self._inv_freq = {
            rope: torch.tensor(rope.inv_freq(config.head_dim), dtype=torch.float32, device=device) for rope in ropes
        }
        self._rotations: dict[Rope, tuple[Tensor, Tensor]] = {}
        self.reserve(0)

    @property
    def parameters(self) -> int:
        """Number of weights, the tied head counted once."""
        return parameter_count(self.config)

    def reserve(self, length: int) -> None:
        """Make the rotary tables reach `length` positions."""
        for rope, frequencies in self._inv_freq.items():
            if rope not in self._rotations or self._rotations[rope][0].shape[0] < length:
                self._rotations[rope] = ops.rope_tables(frequencies, length, self.dtype)

    def forward(self, step: StepTensors, cache: KVCache) -> Tensor:
        """Run the step, writing its keys and values into `cache` -> logits [R, vocab_size] fp32."""
        weights = self._weights
        rotations = {rope: (cos[step.positions], sin[step.positions]) for rope, (cos, sin) in self._rotations.items()}
        hidden = F.embedding(step.tokens, weights.embedding).to(self.dtype)
        if self._embedding_scale is not None:
            hidden = hidden * self._embedding_scale
        last = len(weights.layers) - 1
        for index, layer in enumerate(weights.layers):
            normed = ops.rms_norm(hidden, layer.input_norm, self.config.rms_norm_eps)
            attended = self._attention(layer, index, normed, rotations, step, cache)
            if index == last:  # from here on rows do not meet: only those that sample go on
                hidden, attended = hidden[step.logits_rows], attended[step.logits_rows]
            hidden = self._add(layer.o, attended, hidden, layer.o_norm)
            normed = ops.rms_norm(hidden, layer.mlp_norm, self.config.rms_norm_eps)
            hidden = self._add(layer.down, layer.gated(normed), hidden, layer.down_norm)
        logits = weights.head(ops.rms_norm(hidden, weights.norm, self.config.rms_norm_eps)).float()
        cap = self.config.logit_softcap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits

    def _add(self, linear: LinearLayer, x: Tensor, residual: Tensor, norm: Tensor | None) -> Tensor:
        if norm is None:
            return linear.add(x, residual)
        return residual + ops.rms_norm(linear(x), norm, self.config.rms_norm_eps)

    def _attention(
        self,
        layer: LayerWeights,
        index: int,
        x: Tensor,
        rotations: dict[Rope, tuple[Tensor, Tensor]],
        step: StepTensors,
        cache: KVCache,
    ) -> Tensor:
        config = self.config
        how = config.attention[index]
        heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
        qkv = layer.qkv(x).view(-1, heads + 2 * kv_heads, size)
        if layer.q_norm is not None and layer.k_norm is not None:
            qkv[:, :heads] = ops.rms_norm(qkv[:, :heads], layer.q_norm, config.rms_norm_eps)
            qkv[:, heads:-kv_heads] = ops.rms_norm(qkv[:, heads:-kv_heads], layer.k_norm, config.rms_norm_eps)
        rotated = ops.rope(qkv[:, : heads + kv_heads], *rotations[how.rope])
        query, key, value = rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :]
        keys, values = cache.keys[index], cache.values[index]
        ops.write_cache(keys, key, step.slots)
        ops.write_cache(values, value, step.slots)

        out = ops.paged_attention(
            query, keys, values, step.attention, how.scale, window=how.window, softcap=how.softcap
        )
        return out.view(-1, heads * size)
