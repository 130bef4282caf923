"""From a checkpoint to a decoder: read, check, merge and place the weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from inference.models.config import ModelConfig
from inference.models.decoder import Decoder, DecoderWeights, LayerWeights
from inference.models.sources import GGUFSource, open_source
from inference.models.tensors import check_tensors, expected_tensors
from kernels.ops import GatedLinear, Linear


def load_decoder(path: Path, dtype: torch.dtype, device: torch.device) -> Decoder:
    """The decoder of the checkpoint at `path`, its queries, keys and values merged into one product.

    Tensors are read one by one, so that host memory holds the model once. Raises CheckpointError, UnsupportedModel.
    """
    source = open_source(path)
    config = source.config()
    expected = expected_tensors(config, is_gguf=isinstance(source, GGUFSource))
    check_tensors(source, expected, config)

    def read(name: str) -> Tensor:
        return source.read(expected[name].name).to(device=device, dtype=dtype)

    def read_if(wanted: bool, name: str) -> Tensor | None:
        return read(name) if wanted else None

    def merge(names: Iterable[str]) -> Tensor:
        return torch.cat([read(name) for name in names])

    def layer(i: int) -> LayerWeights:
        bias = merge((f"{i}.q_bias", f"{i}.k_bias", f"{i}.v_bias")) if config.qkv_bias else None
        return LayerWeights(
            input_norm=read(f"{i}.input_norm"),
            qkv=Linear(merge((f"{i}.q", f"{i}.k", f"{i}.v")), bias),
            q_norm=read_if(config.qk_norm, f"{i}.q_norm"),
            k_norm=read_if(config.qk_norm, f"{i}.k_norm"),
            o=Linear(read(f"{i}.o")),
            mlp_norm=read(f"{i}.mlp_norm"),
            gated=GatedLinear(read(f"{i}.gate"), read(f"{i}.up")),
            down=Linear(read(f"{i}.down")),
        )

    embedding = read("embedding")
    weights = DecoderWeights(
        embedding=embedding,
        layers=[layer(i) for i in range(config.num_layers)],
        norm=read("norm"),
        head=Linear(embedding if config.tie_word_embeddings else read("head")),
    )
    return Decoder(config, weights, dtype, device)


def read_state_dict(path: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The checkpoint as Hugging Face names -> fp32 tensors: how a benchmark runs a rival on the same weights."""
    source = open_source(path)
    config = source.config()
    is_gguf = isinstance(source, GGUFSource)
    theirs = expected_tensors(config, is_gguf=False)
    ours = expected_tensors(config, is_gguf=is_gguf)
    check_tensors(source, ours, config)
    return config, {theirs[key].name: source.read(item.name).float() for key, item in ours.items()}
