"""GGUF files: each family and storage type read as its values, and what a wrong file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quantization

from inference.gguf_file import open_gguf
from inference.models.config import UnsupportedModel
from inference.models.formats import whole
from inference.models.loader import load_decoder, read_state_dict
from inference.models.sources import CheckpointError, open_source
from tests.logits import TEXT, assert_close, logits_of, reference
from tests.tiny_gguf import K_QUANTS, gguf_name, save_gguf
from tests.tiny_models import FAMILIES, make_model

KINDS = [
    Quantization.F16,
    Quantization.BF16,
    Quantization.Q4_0,
    Quantization.Q4_1,
    Quantization.Q5_0,
    Quantization.Q8_0,
    *K_QUANTS,
]
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_family_is_read_from_gguf(family: str, tied: bool, tmp_path: Path) -> None:
    model = make_model(family, tie_word_embeddings=tied)
    path = save_gguf(model, tmp_path / "tiny.gguf")
    _, tensors = read_state_dict(path)
    assert len(tensors) == len(model.state_dict()) - tied
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, model.state_dict()[name], msg=name, rtol=1e-6, atol=1e-6)
    assert_close(logits_of(path, TEXT, prompt=40), reference(model, TEXT, 40))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_logits_of_a_quantised_file_are_those_of_its_values(kind: Quantization, tmp_path: Path) -> None:
    # K-quants come in blocks of 256, so every row is as long.
    shape = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8}
    model = make_model("llama", **shape)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    path = save_gguf(model, tmp_path / "tiny.gguf", kind)
    _, tensors = read_state_dict(path)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, model.state_dict()[name]), name
        assert tensor.ndim == 1 or not torch.equal(tensor, before[name]), f"{name} was not rounded"
    assert_close(logits_of(path, TEXT, prompt=40), reference(model, TEXT, 40))


def test_a_tensor_of_divisors_scales_the_rotary_embedding(tmp_path: Path) -> None:
    """Llama 3.1's scaling: llama.cpp's converter works it out and stores it as `rope_freqs`."""
    model = make_model("llama", rope_parameters=LLAMA3_ROPE)
    plain = make_model("llama").model.rotary_emb.inv_freq
    divisors = plain / model.model.rotary_emb.inv_freq
    assert divisors.min() == 1
    assert divisors.max() == 8
    path = save_gguf(model, tmp_path / "tiny.gguf", divisors=divisors.tolist())
    assert_close(logits_of(path, TEXT, prompt=40), reference(model, TEXT, 40))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "rope_theta": 5_000.0, "factor": 4.0},
        {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32},
    ],
    ids=["linear", "yarn"],
)
def test_rotary_scaling_in_the_metadata(rope: dict[str, Any], tmp_path: Path) -> None:
    model = make_model("qwen2", rope_parameters=rope)
    assert_close(logits_of(save_gguf(model, tmp_path / "tiny.gguf"), TEXT, prompt=40), reference(model, TEXT, 40))


def test_the_largest_gemma_is_known_by_its_layers(tmp_path: Path) -> None:
    """62 layers: scores are scaled by hidden size over heads, not by the head size, and the file does not say so."""
    shape = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "query_pre_attn_scalar": 16}
    model = make_model("gemma3", num_hidden_layers=62, sliding_window_pattern=6, initializer_range=0.1, **shape)
    assert_close(logits_of(save_gguf(model, tmp_path / "tiny.gguf"), TEXT, prompt=40), reference(model, TEXT, 40))


@pytest.mark.parametrize("base", [10_000.0, 500.0], ids=["the usual base", "a base of its own"])
@pytest.mark.parametrize("period", [2, 6])
def test_gemma_stretches_its_global_layers_alone(base: float, period: int, tmp_path: Path) -> None:
    ropes = {
        "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": base},
    }
    model = make_model("gemma3", rope_parameters=ropes, sliding_window_pattern=period, num_hidden_layers=7)
    assert_close(logits_of(save_gguf(model, tmp_path / "tiny.gguf"), TEXT, prompt=40), reference(model, TEXT, 40))


def test_a_linear_scaling_of_before_there_were_types(tmp_path: Path) -> None:
    model = make_model("llama", rope_parameters={"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0})
    changes = {"llama.rope.scaling.type": None, "llama.rope.scaling.factor": None, "llama.rope.scale_linear": 4.0}
    path = save_gguf(model, tmp_path / "tiny.gguf", changes=changes)
    assert_close(logits_of(path, TEXT, prompt=40), reference(model, TEXT, 40))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"llama.expert_count": 8}, "8 experts"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
        ({"llama.rope.scaling.type": "linear"}, "without llama.rope.scaling.factor"),
        ({"llama.rope.scaling.attn_factor": 1.5}, "attn_factor 1.5"),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 2.0,
                "llama.rope.scaling.yarn_ext_factor": 0.5,
            },
            "yarn_ext_factor 0.5",
        ),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8"),
        ({"llama.feed_forward_length": [96, 64, 96]}, "feed_forward_length differs by layer"),
        ({"llama.context_length": None}, "llama.context_length is missing"),
    ],
)
def test_what_the_engine_does_not_run_is_refused_in_words(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = save_gguf(make_model("llama"), tmp_path / "tiny.gguf", changes=changes)
    with pytest.raises(UnsupportedModel, match=words):
        load_decoder(path, whole(torch.float32), torch.device("cpu"))


def test_divisors_of_another_head_size_are_refused(tmp_path: Path) -> None:
    path = save_gguf(make_model("llama"), tmp_path / "tiny.gguf", divisors=[1.0] * 5)
    with pytest.raises(UnsupportedModel, match=r"has 5 values; a head of 16 has 8"):
        load_decoder(path, whole(torch.float32), torch.device("cpu"))


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = save_gguf(make_model("llama"), tmp_path / "tiny.gguf", changes={"general.architecture": "mamba"})
    with pytest.raises(UnsupportedModel, match="mamba"):
        open_source(path).config()


def test_a_storage_type_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Q8_K is llama.cpp's own intermediate; the library has no reader for it."""
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    size = gguf.GGML_QUANT_SIZES[Quantization.Q8_K][1]
    writer.add_tensor("odd.weight", np.zeros((2, size), dtype=np.uint8), raw_dtype=Quantization.Q8_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"odd\.weight is stored as Q8_K"):
        open_source(path).read("odd.weight")


@pytest.mark.parametrize("family", FAMILIES)
def test_names_cover_every_tensor(family: str) -> None:
    model = make_model(family)
    names = [gguf_name(name, model.config.model_type) for name in model.state_dict()]
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
