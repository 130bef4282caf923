"""`quarry up` without starting anything: which model it settles for, and how it tells."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import inference.pull
from cli import service
from inference.catalogue import FALLBACK, CatalogueError
from pipeline.settings import Settings

DEFAULT = str(Settings.model_fields["model"].default)


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The default model can't be had, everything else can; the names that were pulled."""
    names: list[str] = []

    def pull(name: str, home: Path, *, progress: Callable[[int, int], None], notice: Callable[[str], None]) -> Path:
        if name == DEFAULT:
            raise CatalogueError(f"{name} can't be had")
        progress(1, 2)
        names.append(name)
        return home / "models" / name

    monkeypatch.setattr(inference.pull, "pull", pull)
    return names


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_default_falls_back_and_says_so(tmp_path: Path, console: Console, pulled: list[str]) -> None:
    settings = service._with_models(Settings(home=tmp_path, model=DEFAULT), console)
    assert settings.model == FALLBACK
    assert pulled == [FALLBACK, settings.embedder]
    assert f"Going on with {FALLBACK}" in shown(console)


def test_a_model_that_was_named_is_never_replaced(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull(name: str, home: Path, **_: object) -> Path:
        raise CatalogueError(f"{name} can't be had")

    monkeypatch.setattr(inference.pull, "pull", pull)
    with pytest.raises(service.ServiceError, match=r"1\.5b-instruct can't be had"):
        service._with_models(Settings(home=tmp_path, model="qwen2.5-coder-1.5b-instruct"), console)
    with pytest.raises(service.ServiceError, match="no model 'unheard-of' in the catalogue"):
        service._with_models(Settings(home=tmp_path, model="unheard-of"), console)


def test_what_is_here_or_elsewhere_is_not_pulled(tmp_path: Path, console: Console, pulled: list[str]) -> None:
    mine = tmp_path / "mine.gguf"
    mine.touch()
    present = tmp_path / "models" / "all-minilm-l6-v2"
    present.mkdir(parents=True)
    (present / "manifest.json").touch()
    settings = Settings(home=tmp_path, model=str(mine))
    assert service._with_models(settings, console) == settings
    remote = Settings(home=tmp_path, engine_url="http://engine", model="theirs")
    assert service._with_models(remote, console) == remote
    assert pulled == []
    assert shown(console) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.9, "59 s"), (61, "1 min 1 s"), (3660, "1 h 1 min"), (90_000, "1 d 1 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert service._duration(seconds) == text
