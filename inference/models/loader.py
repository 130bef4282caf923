"""From a checkpoint to a decoder: read, check, merge and place the weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from inference.models.config import ModelConfig
from inference.models.decoder import Decoder, DecoderWeights, LayerWeights
from inference.models.formats import WeightFormat
from inference.models.sources import GGUFSource, open_source
from inference.models.tensors import check_tensors, expected_tensors


class _Reader:
    """A checkpoint that fits its configuration, read by our names."""

    def __init__(self, path: Path) -> None:
        self._source = open_source(path)
        self.config = self._source.config()
        is_gguf = isinstance(self._source, GGUFSource)
        self.expected = expected_tensors(self.config, is_gguf=is_gguf)
        check_tensors(self._source, self.expected, self.config)
        # Hugging Face stores Gemma's norm weights less one; llama.cpp's converter adds it.
        self.norm_offset = 1.0 if self.config.family == "gemma3_text" and not is_gguf else 0.0

    def weight(self, name: str) -> Tensor:
        return self._source.read(self.expected[name].name)

    def norm(self, name: str) -> Tensor:
        weight = self.weight(name)
        return weight.float() + self.norm_offset if self.norm_offset else weight


def load_decoder(path: Path, format: WeightFormat, device: torch.device) -> Decoder:
    """The decoder of the checkpoint at `path`, its queries, keys and values merged into one product.

    Tensors are read one by one, so that host memory holds the model once. Raises CheckpointError, UnsupportedModel.
    """
    reader = _Reader(path)
    config = reader.config

    def read(name: str) -> Tensor:
        return reader.weight(name).to(device=device, dtype=format.dtype)

    def norm(name: str) -> Tensor:
        return reader.norm(name).to(device=device, dtype=torch.float32 if config.wide_norms else format.dtype)

    def norm_if(wanted: bool, name: str) -> Tensor | None:
        return norm(name) if wanted else None

    def merge(names: Iterable[str]) -> Tensor:
        return torch.cat([read(name) for name in names])

    def layer(i: int) -> LayerWeights:
        bias = merge((f"{i}.q_bias", f"{i}.k_bias", f"{i}.v_bias")) if config.qkv_bias else None
        return LayerWeights(
            input_norm=norm(f"{i}.input_norm"),
            qkv=format.linear(merge((f"{i}.q", f"{i}.k", f"{i}.v")), bias),
            q_norm=norm_if(config.qk_norm, f"{i}.q_norm"),
            k_norm=norm_if(config.qk_norm, f"{i}.k_norm"),
            o=format.linear(read(f"{i}.o")),
            o_norm=norm_if(config.output_norms, f"{i}.o_norm"),
            mlp_norm=norm(f"{i}.mlp_norm"),
            gated=format.gated(read(f"{i}.gate"), read(f"{i}.up"), config.activation),
            down=format.linear(read(f"{i}.down")),
            down_norm=norm_if(config.output_norms, f"{i}.down_norm"),
        )

    embedding = read("embedding")
    weights = DecoderWeights(
        embedding=format.table(embedding),
        layers=[layer(i) for i in range(config.num_layers)],
        norm=norm("norm"),
        head=format.linear(embedding if config.tie_word_embeddings else read("head")),
    )
    return Decoder(config, weights, format.dtype, device)


def read_state_dict(path: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The checkpoint as Hugging Face names and values, fp32: how a benchmark runs a rival on the same weights."""
    reader = _Reader(path)
    theirs = expected_tensors(reader.config, is_gguf=False)
    offset = 1.0 if reader.config.family == "gemma3_text" else 0.0

    def value(name: str) -> Tensor:
        return reader.norm(name).float() - offset if name.endswith("norm") else reader.weight(name).float()

    return reader.config, {theirs[name].name: value(name) for name in reader.expected}
