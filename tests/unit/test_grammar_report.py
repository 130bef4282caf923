"""`quarry schema add` says what the engine leaves to a check afterwards, and what it will refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from cli import schema as command

PROPERTIES = {
    "plain": {"type": "string", "pattern": "^[a-z]+$"},
    "ahead": {"type": "string", "pattern": "^(?=a)[a-z]+$"},
    "price": {"type": "number", "multipleOf": 0.01},
    "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
}


class Registry:
    def add_schema(self, name: str, schema: Any, instructions: str, examples: Any) -> SimpleNamespace:
        return SimpleNamespace(name=name, version=1, columns=[None] * len(schema["properties"]), view=name)


def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: dict[str, Any]) -> str:
    @contextmanager
    def connected() -> Iterator[Registry]:
        yield Registry()

    monkeypatch.setattr(command, "connect", connected)
    monkeypatch.setenv("COLUMNS", "200")
    file = tmp_path / "thing.json"
    file.write_text(json.dumps({"type": "object", "properties": properties, "required": list(properties)}))
    result = CliRunner().invoke(command.app, ["add", str(file)])
    assert result.exit_code == 0, result.output
    return result.output


def test_what_is_only_checked_afterwards_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = added(tmp_path, monkeypatch, PROPERTIES)
    for place in ("#/properties/ahead/pattern", "#/properties/price/multipleOf", "$.properties.tags.uniqueItems"):
        assert output.count(f"note: {place}") == 1
    assert "plain" not in output
    assert "thing version 1: 4 columns" in output


def test_a_schema_that_the_engine_will_refuse_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = added(tmp_path, monkeypatch, {"a": {"allOf": [{"type": "string"}, {"type": "integer"}]}})
    assert "the engine will refuse this schema: Unsatisfiable schema" in output
