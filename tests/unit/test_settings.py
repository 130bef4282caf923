"""Settings: what wins over what, and that docs/settings.md tells of each one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from pipeline.settings import NotConfigured, Settings, get_settings
from workers.doctor import shown_settings

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(?P<name>[A-Z_]+)` \| (?:`(?P<default>[^`]*)`|–) \| \S.* \|$", re.MULTILINE)


def expected_default(value: Any) -> str | None:
    return None if value is None else str(value)


def test_the_page_has_every_setting_with_its_default() -> None:
    found = {row["name"]: row["default"] for row in ROW.finditer((ROOT / "docs" / "settings.md").read_text("utf-8"))}
    defaults = {
        str(field.validation_alias or f"QUARRY_{name.upper()}"): expected_default(field.default)
        for name, field in Settings.model_fields.items()
    }
    assert found == defaults


def test_an_address_is_what_was_set_else_what_up_wrote_else_an_error(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, database_url="postgresql://mine")
    with pytest.raises(NotConfigured, match=r"quarry up.*QUARRY_BROKER_URL"):
        settings.endpoint("broker_url")
    settings.run_dir.mkdir()
    settings.endpoints_file.write_text(json.dumps({"database_url": "postgresql://theirs", "broker_url": "redis://up"}))
    assert settings.endpoint("database_url") == "postgresql://mine"
    assert settings.endpoint("broker_url") == "redis://up"
    settings.endpoints_file.write_text("half a fi")
    with pytest.raises(NotConfigured):
        settings.endpoint("broker_url")


def test_the_model_is_the_one_that_runs_unless_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUARRY_HOME", str(tmp_path))
    monkeypatch.delenv("QUARRY_MODEL", raising=False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "endpoints.json").write_text(json.dumps({"model": "fallback"}))
    get_settings.cache_clear()
    assert get_settings().model == "fallback"
    monkeypatch.setenv("QUARRY_MODEL", "named")
    get_settings.cache_clear()
    assert get_settings().model == "named"
    get_settings.cache_clear()


def test_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    settings = Settings(
        home=tmp_path,
        database_url="postgresql://me:hunter2@db/quarry",
        broker_url="redis://:hunter2@redis:6379/0",
        engine_api_key=SecretStr("hunter2"),
        langfuse_secret_key=SecretStr("hunter2"),
    )
    shown = {name: (value, is_set) for name, value, is_set in shown_settings(settings)}
    assert "hunter2" not in str(shown)
    assert shown["QUARRY_DATABASE_URL"] == ("postgresql://me:***@db/quarry", True)
    assert shown["QUARRY_ENGINE_API_KEY"] == ("***", True)
    assert shown["QUARRY_ENGINE_URL"] == ("", False)
    assert shown["LANGFUSE_SECRET_KEY"] == ("***", True)
