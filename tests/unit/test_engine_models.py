"""Decoders and loaders: logits against transformers, from safetensors and GGUF, and what a wrong checkpoint says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quantization
from safetensors.torch import load_file, save_file

from inference.config import EngineConfig
from inference.gguf_file import open_gguf
from inference.memory.pages import PagePool
from inference.memory.prefix import root_hash
from inference.models.config import UnsupportedModel
from inference.models.loader import load_decoder, read_state_dict
from inference.models.sources import CheckpointError, open_source
from inference.request import Request
from inference.runner import Runner
from inference.scheduler import Scheduler
from inference.sequence import Sequence
from tests.tiny_models import gguf_name, make_model, save, save_gguf

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-wide-head": ("llama", {"head_dim": 32}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama-no-groups": ("llama", {"num_key_value_heads": 4}),
    "llama3-rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
}
TEXT = [(i * i * 7 + 3 * i) % 250 for i in range(90)]


def logits_of(
    path: Path, tokens: list[int], prompt: int, *, chunk: int = 1024, page_size: int = 8, dtype: str = "float32"
) -> torch.Tensor:
    """Logits for the positions prompt-1 .. end: the prompt in chunks, then one token per step, the text given."""
    runner = Runner(EngineConfig(path, dtype=dtype, page_size=page_size, max_num_seqs=1, num_threads=1))
    scheduler = Scheduler(
        PagePool(runner.pages), page_size=page_size, max_num_seqs=1, max_num_batched_tokens=chunk, prefix_cache=False
    )
    sequence = Sequence(Request("a", tuple(tokens[:prompt])), 0, 0.0, root_hash(""))
    scheduler.add(sequence)
    rows = []
    while len(sequence.tokens) <= len(tokens):
        plan = scheduler.plan()
        logits = runner.forward(plan)
        assert logits.shape[0] == len(plan.logits)
        for item in plan:
            scheduler.commit(item)
        if plan.logits:
            rows.append(logits[0])
            if len(sequence.tokens) == len(tokens):
                break
            sequence.tokens.append(tokens[len(sequence.tokens)])
    return torch.stack(rows)


def reference(model: Any, tokens: list[int], prompt: int) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0, prompt - 1 :]


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, relative: float = 1e-4) -> None:
    assert ours.shape == theirs.shape
    error = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)
    assert error.max() < relative, f"relative error {error.max():.2e}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_agree_with_transformers(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    model = make_model(family, **changes)
    path = save(model, tmp_path)
    assert_close(logits_of(path, TEXT, prompt=40), reference(model, TEXT, 40))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
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


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [False, True])
def test_gguf_round_trip_is_exact(family: str, tied: bool, tmp_path: Path) -> None:
    model = make_model(family, tie_word_embeddings=tied)
    path = save_gguf(model, tmp_path / "tiny.gguf")
    _, tensors = read_state_dict(path)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    assert_close(logits_of(path, TEXT, prompt=40), reference(model, TEXT, 40))


@pytest.mark.parametrize(
    "kind",
    [Quantization.F16, Quantization.BF16, Quantization.Q4_0, Quantization.Q4_1, Quantization.Q5_0, Quantization.Q8_0],
)
def test_quantised_gguf_is_read_as_its_values(kind: Quantization, tmp_path: Path) -> None:
    model = make_model("qwen2")
    _, tensors = read_state_dict(save_gguf(model, tmp_path / "tiny.gguf", kind))
    name = "model.layers.1.mlp.up_proj.weight"
    original = model.state_dict()[name]
    expected = gguf.quants.dequantize(gguf.quants.quantize(original.numpy(), kind), kind)
    assert torch.equal(tensors[name], torch.from_numpy(expected))
    assert 0 < (tensors[name] - original).norm() / original.norm() < 0.12


@pytest.mark.parametrize("kind", [Quantization.Q4_K, Quantization.Q5_K, Quantization.Q6_K])
def test_k_quants_are_read(kind: Quantization, tmp_path: Path) -> None:
    """The library reads but does not write these, so the blocks are random bytes with sane scales."""
    model = make_model("llama", hidden_size=256, num_attention_heads=8)
    path = save_gguf(model, tmp_path / "plain.gguf")
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = model.state_dict()["lm_head.weight"].shape
    raw = torch.randint(0, 60, (rows, columns // block * size), dtype=torch.uint8).numpy()
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            value = field.contents()
            writer.add_key_value(key, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        if tensor.name == "output.weight":
            writer.add_tensor(tensor.name, raw, raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _, tensors = read_state_dict(tmp_path / "k.gguf")
    assert torch.equal(tensors["lm_head.weight"], torch.from_numpy(gguf.quants.dequantize(raw, kind)))
    assert tensors["lm_head.weight"].isfinite().all()


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
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn"),
        ({"attention_bias": True}, "bias"),
    ],
)
def test_an_unknown_kind_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = save(make_model("llama"), tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(UnsupportedModel, match=words):
        load_decoder(path, torch.float32, torch.device("cpu"))


def test_gguf_names_cover_every_tensor() -> None:
    names = [gguf_name(name) for name in make_model("qwen2").state_dict()]
    assert len(set(names)) == len(names)


def test_metadata_arrays_are_read_as_the_library_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "arrays.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("words", ["plain", "", "é ü", "x" * 300])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("reals", [0.5, 1.5])
    writer.add_array("flags", [True, False])
    writer.add_string("after", "all")
    writer.add_tensor("t", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours, theirs = open_gguf(path), gguf.GGUFReader(path)
    assert list(ours.fields) == list(theirs.fields)
    for key, field in theirs.fields.items():
        assert ours.fields[key].contents() == field.contents(), key
    assert np.array_equal(ours.tensors[0].data, theirs.tensors[0].data)


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    path = save_gguf(make_model("llama"), tmp_path / "whole.gguf")
    cut = tmp_path / "cut.gguf"
    for share in (0.001, 0.02, 0.5):
        cut.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            open_source(cut)
