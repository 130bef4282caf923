"""Decoders and loaders: logits against transformers, from safetensors and GGUF, and what a wrong checkpoint says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig, SiglipVisionConfig

from inference.models.config import UnsupportedModel
from inference.models.formats import whole
from inference.models.hf_config import from_hf
from inference.models.loader import load_decoder
from inference.models.rope import Rope
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
# Gemma 3 stretches its global layers alone.
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1_000.0},
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
    "mistral": ("mistral", {}),
    "mistral-no-window": ("mistral", {"sliding_window": None}),
    "gemma3": ("gemma3", {}),
    "gemma3-untied": ("gemma3", {"tie_word_embeddings": False}),
    "gemma3-own-scale": ("gemma3", {"query_pre_attn_scalar": 40}),
    "gemma3-no-cap": ("gemma3", {"final_logit_softcapping": None}),
    "gemma3-scaled-rope": ("gemma3", {"rope_parameters": GEMMA_ROPES}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_agree_with_transformers(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    model = make_model(family, **changes)
    path = save(model, tmp_path)
    assert_close(logits_of(path, TEXT, prompt=40), reference(model, TEXT, 40))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("chunk", "page_size"), [(1, 4), (7, 8), (16, 16), (33, 4)])
def test_chunks_and_pages_do_not_change_the_logits(family: str, chunk: int, page_size: int, tmp_path: Path) -> None:
    model = make_model(family)
    path = save(model, tmp_path)
    ours = logits_of(path, TEXT, prompt=60, chunk=chunk, page_size=page_size)
    assert_close(ours, reference(model, TEXT, 60))


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_within_its_rounding(family: str, tmp_path: Path) -> None:
    model = make_model(family, initializer_range=0.1)
    path = save(model, tmp_path)
    theirs = reference(model, TEXT, 40)
    rounded = reference(make_model(family, initializer_range=0.1).to(torch.bfloat16), TEXT, 40).float()
    rounding = ((rounded - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max().item()
    # A prompt in one go and in chunks, so that steps without logits are run in this dtype too.
    for chunk in (1024, 16):
        assert_close(logits_of(path, TEXT, prompt=40, chunk=chunk, dtype="bfloat16"), theirs, 1.5 * rounding)


def as_transformers_4(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of before rotary parameters had a place of their own and layers were listed."""
    old = {key: value for key, value in config.items() if key not in ("rope_parameters", "layer_types")}
    ropes = config["rope_parameters"]
    rope = dict(ropes.get("full_attention", ropes))
    old["rope_theta"] = rope.pop("rope_theta")
    if "sliding_attention" in ropes:
        old["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
        old["sliding_window_pattern"] = old.pop("_sliding_window_pattern", 3)
    old["rope_scaling"] = None if rope["rope_type"] == "default" else {"type": rope.pop("rope_type"), **rope}
    return old


@pytest.mark.parametrize("variant", ["llama3-rope", "llama-yarn", "qwen2", "qwen3", "gemma3", "gemma3-scaled-rope"])
def test_configurations_of_transformers_4_mean_the_same(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    path = save(make_model(family, **changes), tmp_path)
    new = from_hf(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(as_transformers_4(config)))
    assert from_hf(path) == new


def test_what_transformers_takes_for_granted_may_be_left_out(tmp_path: Path) -> None:
    """The largest Gemma 3 files say little more than this."""
    path = tmp_path / "config.json"
    few = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    path.write_text(json.dumps({"model_type": "gemma3_text", **few}))
    ours, theirs = from_hf(tmp_path), Gemma3TextConfig(**few)
    assert (ours.vocab_size, ours.num_heads, ours.num_kv_heads) == (theirs.vocab_size, 8, 4)
    assert (ours.head_dim, ours.rms_norm_eps, ours.tie_word_embeddings) == (theirs.head_dim, 1e-6, True)
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    for layer, kind in zip(ours.attention, theirs.layer_types, strict=True):
        assert layer.rope == Rope(theirs.rope_parameters[kind]["rope_theta"])
        assert layer.window == (1024 if kind == "sliding_attention" else None)
        assert layer.scale == 256**-0.5


@pytest.mark.parametrize("wrapper", ["language_model.model.", "model.language_model."])
def test_of_a_gemma_with_images_the_text_part_runs(wrapper: str, tmp_path: Path) -> None:
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    images = SiglipVisionConfig(image_size=28, patch_size=14, vision_use_head=False, **vision)
    text = make_model("gemma3")
    config = Gemma3Config(text_config=text.config.to_dict(), vision_config=images.to_dict(), mm_tokens_per_image=4)
    model = Gemma3ForConditionalGeneration(config).eval()
    model.model.language_model.load_state_dict(text.model.state_dict())
    path = save(model, tmp_path)
    if wrapper == "model.language_model.":  # the modules' own names, which transformers does not save under
        tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
        save_file(tensors, path / "model.safetensors")
    names = load_file(path / "model.safetensors")
    assert any("vision_tower" in name for name in names)
    assert any(name.startswith(wrapper) for name in names)
    assert_close(logits_of(path, TEXT, prompt=40), reference(text, TEXT, 40))


def test_sharded_safetensors(tmp_path: Path) -> None:
    model = make_model("llama")
    path = save(model, tmp_path, max_shard_size="60KB")
    assert len(list(path.glob("*.safetensors"))) > 1
    assert_close(logits_of(path, TEXT, prompt=40), reference(model, TEXT, 40))
    shard = sorted(path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=shard.name):
        load_decoder(path, whole(torch.float32), torch.device("cpu"))


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
        load_decoder(path, whole(torch.float32), torch.device("cpu"))


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
        ({"model_type": "mixtral"}, "mixtral"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, r"partial_rotary_factor 0\.5"),
        ({"attention_bias": True}, "biases"),
        ({"mlp_bias": True}, "biases"),
        ({"use_bidirectional_attention": True}, "bidirectional"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is not known for llama"),
        ({"quantization_config": {"quant_method": "gptq"}}, "'gptq'"),
        ({"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "chunked_attention"),
        ({"layer_types": ["full_attention"]}, "1 layer_types for 3 layers"),
        ({"rms_norm_eps": None}, "rms_norm_eps is missing"),
    ],
)
def test_an_unknown_kind_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = save(make_model("llama"), tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(UnsupportedModel, match=words):
        load_decoder(path, whole(torch.float32), torch.device("cpu"))
