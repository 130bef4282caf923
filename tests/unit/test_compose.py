"""docker-compose.yml, without Docker: what it names exists, and no secret is written into it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service.get("image") == "quarry"]
LANGFUSE = {"web", "worker", "postgres", "clickhouse", "minio", "redis"}
SECRET = re.compile(r"PASSWORD|SECRET|SALT|ENCRYPTION_KEY|REDIS_AUTH|PUBLIC_KEY")


def variables() -> set[str]:
    """The environment variables that Settings reads."""
    return {str(field.validation_alias or f"QUARRY_{name.upper()}") for name, field in Settings.model_fields.items()}


def test_all_parts_are_there() -> None:
    assert set(OURS) == {"migrate", "engine", "ingest", "extract", "sweeper"}
    assert {"postgres", "redis"} < set(SERVICES)
    profile = {name for name, service in SERVICES.items() if service.get("profiles") == ["langfuse"]}
    assert profile == {f"langfuse-{part}" for part in LANGFUSE}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_an_image_and_waits_for_services_that_tell(name: str) -> None:
    service = SERVICES[name]
    assert service.get("image") or service.get("build")
    for needed, how in service.get("depends_on", {}).items():
        assert needed in SERVICES
        if how["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[needed]
        else:
            assert SERVICES[needed]["restart"] == "no"
    for volume in service.get("volumes", []):
        assert volume.split(":")[0] in COMPOSE["volumes"]


@pytest.mark.parametrize("name", OURS)
def test_our_commands_run_modules_that_exist(name: str) -> None:
    command = SERVICES[name]["command"]
    match command:
        case ["python", "-m", module, *_]:
            assert find_spec(module) is not None
        case ["celery", "-A", module, "worker", *_]:
            assert find_spec(module) is not None
        case ["quarry", subcommand, *_]:
            import typer

            from cli.main import app

            assert subcommand in typer.main.get_command(app).commands  # type: ignore[attr-defined]
        case _:
            pytest.fail(f"unknown command {command}")


@pytest.mark.parametrize("name", OURS)
def test_our_environment_is_what_settings_read(name: str) -> None:
    assert set(SERVICES[name]["environment"]) <= variables()


def test_no_secret_is_written_down() -> None:
    """Passwords are `${NAME:?…}`, which Compose refuses to start without; optional keys are empty by default."""
    wrong = []
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if SECRET.search(variable) and not re.fullmatch(r"\$\{\w+:(\?.+|-)\}", str(value)):
                wrong.append(f"{name}: {variable}")
            if "://" in str(value) and "@" in str(value):
                assert re.search(r"://\w+:\$\{\w+:\?.+\}@", str(value)), f"{name}: {variable}"
    assert wrong == []


def test_the_line_in_the_docs_makes_every_required_variable() -> None:
    required = set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text("utf-8")))
    text = (ROOT / "docs" / "deploying.md").read_text("utf-8")
    made = re.search(r"^for name in (.+?); do", text, re.MULTILINE | re.DOTALL)
    assert made is not None
    assert required <= set(re.findall(r"\w+", made[1]))
