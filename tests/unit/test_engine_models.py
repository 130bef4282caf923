"""Decoders and loaders: logits against transformers, from safetensors and GGUF, and what a wrong checkpoint says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.models.config import UnsupportedModel
from inference.models.loader import load_decoder
from inference.models.sources import CheckpointError, open_source
from tests.logits import TEXT, assert_close, logits_of, reference
from tests.tiny_models import FAMILIES, make_model, save

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
# SmolLM2-135M's proportions: an odd number of heads, three to a KV head, one matrix for embedding and head.
SMOLLM2 = {
    "hidden_size": 72,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-wide-head": ("llama", {"head_dim": 32}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama-no-groups": ("llama", {"num_key_value_heads": 4}),
    "llama3-rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-linear-rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "llama-yarn-as-deepseek": ("llama", {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}}),
    "llama-yarn-own-factor": ("llama", {"rope_parameters": {**YARN, "attention_factor": 1.2, "truncate": False}}),
    "smollm2": ("llama", SMOLLM2),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2.5-yarn": ("qwen2", {"rope_parameters": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0}}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_agree_with_transformers(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    model = make_model(family, **changes)
    path = save(model, tmp_path)
    assert_close(logits_of(path, TEXT, prompt=40), reference(model, TEXT, 40))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("chunk", "page_size"), [(1, 4), (7, 8), (16, 16), (33, 5)])
def test_chunks_and_pages_do_not_change_the_logits(family: str, chunk: int, page_size: int, tmp_path: Path) -> None:
    model = make_model(family)
    path = save(model, tmp_path)
    ours = logits_of(path, TEXT, prompt=60, chunk=chunk, page_size=page_size)
    assert_close(ours, reference(model, TEXT, 60))


def test_bfloat16_stays_within_its_rounding(tmp_path: Path) -> None:
    model = make_model("qwen2", initializer_range=0.1)
    path = save(model, tmp_path)
    theirs = reference(model, TEXT, 40)
    rounded = reference(make_model("qwen2", initializer_range=0.1).to(torch.bfloat16), TEXT, 40).float()
    rounding = ((rounded - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max().item()
    # A prompt in one go and in chunks, so that steps without logits are run in this dtype too.
    for chunk in (1024, 16):
        assert_close(logits_of(path, TEXT, prompt=40, chunk=chunk, dtype="bfloat16"), theirs, 1.5 * rounding)


def test_sharded_safetensors(tmp_path: Path) -> None:
    model = make_model("llama")
    path = save(model, tmp_path, max_shard_size="60KB")
    assert len(list(path.glob("*.safetensors"))) > 1
    assert_close(logits_of(path, TEXT, prompt=40), reference(model, TEXT, 40))
    shard = sorted(path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=shard.name):
        load_decoder(path, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "missing model.layers.1.mlp.up_proj.weight"),
        (lambda t: t.update({"model.layers.9.extra": torch.ones(2)}), "surplus model.layers.9.extra"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(7)}),
            r"model.norm.weight has shape \[7\], not \[64\]",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(change: Any, words: str, tmp_path: Path) -> None:
    path = save(make_model("qwen2"), tmp_path)
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=words):
        load_decoder(path, torch.float32, torch.device("cpu"))


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        open_source(tmp_path / "absent.gguf")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_source(tmp_path)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\x00" * 40)
    with pytest.raises(CheckpointError, match=r"broken\.gguf"):
        open_source(tmp_path / "broken.gguf")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(CheckpointError, match="safetensors"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
        ({"attention_bias": True}, "bias"),
    ],
)
def test_an_unknown_kind_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = save(make_model("llama"), tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(UnsupportedModel, match=words):
        load_decoder(path, torch.float32, torch.device("cpu"))
