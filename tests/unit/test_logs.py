"""Logs: one line per event on standard error, the same for both logging libraries, without secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from pipeline.settings import Settings
from workers.logs import mask, set_up_logging


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ("postgresql://me:hunter2@host/db", "postgresql://me:***@host/db"),
        ("redis://:hunter2@host:6379/0 went away", "redis://:***@host:6379/0 went away"),
        ("postgresql+psycopg://me:a%40b@host/db", "postgresql+psycopg://me:***@host/db"),
        ("http://host:8000/health", "http://host:8000/health"),
        ("a: b@c", "a: b@c"),
        ("postgresql://quarry@/quarry?host=/tmp/x", "postgresql://quarry@/quarry?host=/tmp/x"),
    ],
)
def test_passwords_in_addresses_are_masked(value: str, masked: str) -> None:
    assert mask(value) == masked


@pytest.mark.parametrize(
    ("name", "hidden"),
    [("password", True), ("langfuse_secret_key", True), ("api_key", True), ("output_tokens", False), ("key", False)],
)
def test_what_is_called_a_secret_is_hidden(name: str, hidden: bool) -> None:
    assert (mask("hunter2", name) == "***") is hidden


def test_json_lines_from_both_libraries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(Settings(home=tmp_path, log_format="json"))
    structlog.get_logger("ours").info("stored", item=7, url="redis://:hunter2@host/0")
    logging.getLogger("theirs").warning("lost %s", "redis://:hunter2@host/0", extra={"password": "hunter2"})
    captured = capsys.readouterr()
    assert captured.out == ""
    ours, theirs = map(json.loads, captured.err.splitlines())
    assert (ours["event"], ours["item"], ours["level"], ours["logger"]) == ("stored", 7, "info", "ours")
    assert (theirs["event"], theirs["level"]) == ("lost redis://:***@host/0", "warning")
    assert "hunter2" not in captured.err


def test_text_lines_and_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(Settings(home=tmp_path), at_least=logging.WARNING)
    structlog.get_logger("ours").info("quiet")
    structlog.get_logger("ours").warning("loud", item=7)
    [line] = capsys.readouterr().err.splitlines()
    assert "loud" in line
    assert "item=7" in line


def test_an_error_has_its_traceback_without_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(Settings(home=tmp_path, log_format="json"))
    try:
        raise ConnectionError("redis://:hunter2@host/0")
    except ConnectionError:
        structlog.get_logger("ours").exception("failed")
    [line] = map(json.loads, capsys.readouterr().err.splitlines())
    assert "ConnectionError" in line["exception"]
    assert "hunter2" not in line["exception"]


def test_an_unknown_level_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="LOUD"):
        set_up_logging(Settings(home=tmp_path, log_level="LOUD"))
