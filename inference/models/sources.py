"""Where tensors come from: a GGUF file or a folder of safetensors. One interface, read tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from inference.gguf_file import GGUFFileError, dequantize, open_gguf
from inference.models.config import ModelConfig
from inference.models.gguf_config import from_gguf
from inference.models.hf_config import from_hf


class CheckpointError(ValueError):
    """The checkpoint cannot be read or does not fit its own configuration. The message names file and tensor."""


class TensorSource(Protocol):
    """A checkpoint opened for reading. Shapes are torch's: [out, in] for a linear weight."""

    path: Path

    def config(self) -> ModelConfig: ...

    def shapes(self) -> dict[str, tuple[int, ...]]: ...

    def read(self, name: str) -> Tensor:
        """The tensor as stored, or dequantised to fp32."""
        ...


# A checkpoint with images wraps the decoder, under published names or those of transformers' modules.
_WRAPPERS = {"language_model.": "", "model.language_model.": "model."}
_IMAGE_PARTS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


class SafetensorsSource:
    """A folder with config.json and one or more .safetensors files (with an index where they are several).

    Of a checkpoint with images only the decoder is seen, under the names that it has alone.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._stored: dict[str, tuple[Path, str]] = {}  # our name -> its file and its name there
        self._shapes: dict[str, tuple[int, ...]] = {}
        for file in _safetensors_files(folder):
            with safe_open(file, framework="pt") as handle:
                for stored in handle.keys():  # noqa: SIM118 - not a mapping
                    if stored.startswith(_IMAGE_PARTS):
                        continue
                    name = _unwrapped(stored)
                    self._stored[name] = file, stored
                    self._shapes[name] = tuple(handle.get_slice(stored).get_shape())

    def config(self) -> ModelConfig:
        return from_hf(self.path)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> Tensor:
        file, stored = self._stored[name]
        with safe_open(file, framework="pt") as handle:
            return handle.get_tensor(stored)


def _unwrapped(name: str) -> str:
    for wrapper, inner in _WRAPPERS.items():
        if name.startswith(wrapper):
            return inner + name.removeprefix(wrapper)
    return name


def _safetensors_files(folder: Path) -> Iterable[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        files = [folder / name for name in names]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: no .safetensors file; a checkpoint folder holds config.json and safetensors")
    if missing := [file.name for file in files if not file.exists()]:
        raise CheckpointError(f"{folder}: the index names {', '.join(missing)}, which is not there; download it again")
    return files


class GGUFSource:
    """A GGUF file, read and dequantised by the `gguf` library."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = open_gguf(path)
        except GGUFFileError as error:
            raise CheckpointError(str(error)) from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        # GGUF lists dimensions fastest first.
        self._shapes = {name: tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in self._tensors.items()}
        self._config: ModelConfig | None = None

    def config(self) -> ModelConfig:
        if self._config is None:
            # The tokenizer's arrays are long, and not needed here.
            metadata: dict[str, Any] = {
                key: field.contents() for key, field in self._reader.fields.items() if not key.startswith("tokenizer.")
            }
            self._config = from_gguf(metadata, self.shapes(), self.path, lambda name: self._values(name).tolist())
        return self._config

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def stored(self) -> list[tuple[str, str, int]]:
        """(name, storage type, bytes) of each tensor."""
        return [(name, tensor.tensor_type.name, int(tensor.n_bytes)) for name, tensor in self._tensors.items()]

    def read(self, name: str) -> Tensor:
        return self._unpermute(name, self._values(name))

    def _values(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        try:
            values = dequantize(tensor)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{self.path}: tensor {name} is stored as {tensor.tensor_type.name}, which cannot be dequantised"
            ) from error
        return torch.from_numpy(np.require(values, requirements="W")).reshape(self._shapes[name])

    def _unpermute(self, name: str, weight: Tensor) -> Tensor:
        """GGUF's llama architecture stores the rows of q and k interleaved for its own rotary layout; undo that."""
        if not name.endswith(("attn_q.weight", "attn_k.weight")) or (config := self.config()).family != "llama":
            return weight
        heads = config.num_heads if "attn_q" in name else config.num_kv_heads
        return weight.view(heads, -1, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def open_source(path: Path) -> TensorSource:
    """Open a .gguf file or a safetensors folder. Raises CheckpointError."""
    if path.is_dir():
        if not (path / "config.json").exists() and len(found := list(path.glob("*.gguf"))) == 1:
            return GGUFSource(found[0])
        if not (path / "config.json").exists():
            raise CheckpointError(f"{path}: no config.json and not exactly one .gguf file in this folder")
        return SafetensorsSource(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such file; `quarry model list` shows what can be had")
    if path.suffix != ".gguf":
        raise CheckpointError(f"{path}: give a .gguf file, or a folder with config.json and safetensors")
    return GGUFSource(path)
