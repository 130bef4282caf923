"""Which models there are, which are here, and where the files of a name lie. Imports no torch.

A model is a folder `QUARRY_HOME/models/NAME` with its weights, tokenizer.json and manifest.json; the folder appears in
one rename, after the checksum has been found right.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

MANIFEST = "manifest.json"
FALLBACK = "smollm2-135m-instruct"


class CatalogueError(ValueError):
    """No such model, or it cannot be had. The message says which name or file, and what to do."""


@dataclass(frozen=True)
class HubSource:
    """A file of a repository on the model hub; files named in `beside` come from the same repository."""

    repository: str
    file: str


@dataclass(frozen=True)
class PackageSource:
    """Wheels of the package index, numbered 1..count where `{n}` stands in the name; each holds `member`."""

    name: str
    version: str
    count: int
    member: str


@dataclass(frozen=True)
class Model:
    """One entry of the catalogue."""

    name: str
    kind: str  # generation or embedding
    licence: str
    architecture: str
    parameters: str
    quantisation: str
    file: str
    size: int  # bytes of `file`
    sha256: str
    beside: tuple[str, ...] = ()
    hub: HubSource | None = None
    packages: PackageSource | None = None


@dataclass(frozen=True)
class Listed:
    """A model and whether it is here."""

    model: Model
    path: Path | None = field(default=None)


@lru_cache(maxsize=1)
def catalogue() -> dict[str, Model]:
    """All models by name."""
    raw = tomllib.loads((Path(__file__).parent / "catalogue.toml").read_text(encoding="utf-8"))
    models = {}
    for entry in raw["model"]:
        entry["beside"] = tuple(entry.get("beside", ()))
        entry["hub"] = HubSource(**entry["hub"]) if "hub" in entry else None
        entry["packages"] = PackageSource(**entry["packages"]) if "packages" in entry else None
        models[entry["name"]] = Model(**entry)
    return models


def find(name: str) -> Model:
    """Raises CatalogueError."""
    model = catalogue().get(name)
    if model is None:
        raise CatalogueError(f"no model {name!r} in the catalogue; there is {', '.join(catalogue())}")
    return model


def model_dir(name: str, home: Path) -> Path:
    return home / "models" / name


def is_present(name: str, home: Path) -> bool:
    """True when the model has been pulled and verified."""
    return (model_dir(name, home) / MANIFEST).exists()


def list_models(home: Path) -> list[Listed]:
    """The catalogue, in its order, with what is under `home`."""
    return [
        Listed(model, model_dir(name, home) if is_present(name, home) else None) for name, model in catalogue().items()
    ]


def locate(name_or_path: str, home: Path) -> Path:
    """Where to load a model from: a path as it is, a name under `home`. Raises CatalogueError when it is not here."""
    path = Path(name_or_path).expanduser()
    if path.exists():
        if (path / MANIFEST).exists():
            return _weights(path)
        return path
    folder = model_dir(name_or_path, home)
    if (folder / MANIFEST).exists():
        return _weights(folder)
    if name_or_path in catalogue():
        raise CatalogueError(f"the model {name_or_path} is not under {home}; run `quarry model pull {name_or_path}`")
    raise CatalogueError(
        f"{name_or_path!r} is neither a file or folder nor a name of the catalogue ({', '.join(catalogue())})"
    )


def _weights(folder: Path) -> Path:
    """A pulled GGUF model is its file (the tokenizer beside it is found from there); others are their folder."""
    file = folder / json.loads((folder / MANIFEST).read_text())["file"]
    return file if file.suffix == ".gguf" else folder


def display_name(name_or_path: str) -> str:
    """The name to serve a model under: its own, or that of the folder it was pulled into, or of the file."""
    path = Path(name_or_path).expanduser()
    if not path.exists():
        return name_or_path
    return path.name if path.is_dir() else path.stem
