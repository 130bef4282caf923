"""Doctor's words for faults. Sound servers are checked in the integration tests."""

from __future__ import annotations

import hashlib
import json
import socket
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from pipeline.settings import Settings
from tests.fake_engine import serve
from workers import doctor
from workers.doctor import Check, Status


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port that is taken by nobody who answers."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def only(checks: Iterator[Check]) -> Check:
    [check] = checks
    return check


def test_every_check_ends_with_a_status_and_faults_with_advice(tmp_path: Path) -> None:
    """Nothing runs, nothing is there: no check raises, and each fault says what to do."""
    checks = list(doctor.run_checks(Settings(home=tmp_path)))
    failed = {check.name: check for check in checks if check.status is Status.FAIL}
    assert {"database", "broker", "engine", "workers"} <= set(failed)
    assert all(check.fix for check in failed.values())
    assert "quarry up" in failed["database"].fix


def test_a_check_that_breaks_is_a_fault_without_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def breaks(_settings: Settings) -> Iterator[Check]:
        raise RuntimeError("at redis://:hunter2@host/0")
        yield

    monkeypatch.setattr(doctor, "CHECKS", {"odd": breaks, "python": doctor.check_python})
    first, second = doctor.run_checks(Settings(home=tmp_path))
    assert first.status is Status.FAIL
    assert "hunter2" not in first.detail
    assert second.name == "python"


def test_a_database_that_is_down(tmp_path: Path, dead_port: int) -> None:
    settings = Settings(home=tmp_path, database_url=f"postgresql://me:hunter2@127.0.0.1:{dead_port}/quarry")
    check = only(doctor.check_database(settings))
    assert check.status is Status.FAIL
    assert "hunter2" not in check.detail
    assert "QUARRY_DATABASE_URL" in check.fix


@pytest.mark.services
def test_a_database_without_its_tables(tmp_path: Path, postgres: str) -> None:
    checks = {check.name: check for check in doctor.check_database(Settings(home=tmp_path, database_url=postgres))}
    assert checks["database"].status is Status.OK
    assert checks["migrations"].status is Status.FAIL
    assert "workers.migrate" in checks["migrations"].fix


@pytest.mark.services
def test_a_migrated_database_is_sound(tmp_path: Path, database_url: str) -> None:
    checks = list(doctor.check_database(Settings(home=tmp_path, database_url=database_url)))
    assert {check.name for check in checks} == {"database", "pgvector", "migrations", "role"}
    assert {check.status for check in checks} == {Status.OK}


@pytest.mark.services
def test_a_redis_that_evicts(tmp_path: Path, broker_url: str) -> None:
    import redis

    with redis.Redis.from_url(broker_url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            checks = {
                check.name: check for check in doctor.check_broker(Settings(home=tmp_path, broker_url=broker_url))
            }
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert checks["broker"].status is Status.OK
    assert checks["eviction"].status is Status.WARN
    assert "noeviction" in checks["eviction"].fix


def test_an_engine_with_another_model(tmp_path: Path) -> None:
    with serve() as engine:
        wrong = only(doctor.check_engine(Settings(home=tmp_path, engine_url=engine.url, model="other")))
        right = only(doctor.check_engine(Settings(home=tmp_path, engine_url=engine.url, model="fake")))
    assert right.status is Status.OK
    assert wrong.status is Status.FAIL
    assert "QUARRY_MODEL" in wrong.fix


def write_model(home: Path, name: str, content: bytes, sha256: str) -> None:
    folder = home / "models" / name
    folder.mkdir(parents=True)
    (folder / "model.gguf").write_bytes(content)
    (folder / "manifest.json").write_text(json.dumps({"file": "model.gguf", "size": len(content), "sha256": sha256}))


def test_models_are_there_and_whole(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, model="good", embedder="bad")
    write_model(tmp_path, "good", b"weights", hashlib.sha256(b"weights").hexdigest())
    write_model(tmp_path, "bad", b"weights", hashlib.sha256(b"others").hexdigest())
    good, bad = doctor.check_models(settings)
    assert (good.status, bad.status) == (Status.OK, Status.FAIL)
    assert "quarry model pull bad" in bad.fix
    missing = next(doctor.check_models(Settings(home=tmp_path, model="none", embedder="good")))
    assert missing.status is Status.FAIL
    assert "quarry model pull none" in missing.fix


@pytest.mark.parametrize(("free", "status"), [(0.5, Status.FAIL), (3, Status.WARN), (50, Status.OK)])
def test_disk_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: float, status: Status) -> None:
    usage = namedtuple("usage", "total used free")(0, 0, int(free * doctor.GIB))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _path: usage)
    home, disk = doctor.check_home(Settings(home=tmp_path))
    assert home.status is Status.OK
    assert disk.status is status


def test_a_home_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check = only(doctor.check_home(Settings(home=tmp_path / "file")))
    assert check.status is Status.FAIL
    assert "QUARRY_HOME" in check.fix


@pytest.mark.parametrize(
    ("gpus", "device", "status"),
    [
        ([], "auto", Status.OK),
        ([], "cuda", Status.FAIL),
        (["GPU, 80 GiB"], "auto", Status.OK),
        (["GPU, 80 GiB"], "cpu", Status.WARN),
    ],
)
def test_the_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: list[str], device: str, status: Status
) -> None:
    monkeypatch.setattr(doctor, "_gpus", lambda: gpus)
    assert only(doctor.check_device(Settings(home=tmp_path, device=device))).status is status


def test_langfuse_is_never_more_than_a_warning(tmp_path: Path, dead_port: int) -> None:
    keys: dict[str, Any] = {"langfuse_public_key": "pk", "langfuse_secret_key": SecretStr("hunter2")}
    assert only(doctor.check_langfuse(Settings(home=tmp_path))).status is Status.OK
    half = only(doctor.check_langfuse(Settings(home=tmp_path, langfuse_public_key="pk")))
    assert half.status is Status.WARN
    assert "LANGFUSE_SECRET_KEY" in half.detail
    down = Settings(home=tmp_path, langfuse_host=f"http://127.0.0.1:{dead_port}", **keys)
    check = only(doctor.check_langfuse(down))
    assert check.status is Status.WARN
    assert "hunter2" not in check.detail
