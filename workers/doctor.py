"""Is everything there, new enough and reachable? Each check ends in a status, what was found, and what to do."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import httpx
import psutil
from packaging.requirements import Requirement
from packaging.version import Version
from pydantic import SecretStr

from pipeline.settings import NotConfigured, Settings
from workers.logs import MASK, mask

GIB = 2**30
NEWEST_PYTHON = (3, 13)  # the newest that the tests run on
POSTGRES_AT_LEAST = 150000
PGVECTOR_AT_LEAST = Version("0.8")
REDIS_AT_LEAST = Version("6.2")
TIMEOUT_SECONDS = 3


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"  # works, with a limit
    FAIL = "fail"  # does not work


@dataclass(frozen=True)
class Check:
    """`fix` says what to do; empty when nothing is to be done."""

    name: str
    status: Status
    detail: str
    fix: str = ""


def run_checks(settings: Settings) -> Iterator[Check]:
    """All checks, each as soon as it is done. A check that breaks is a failed check; none stops the rest."""
    for name, check in CHECKS.items():
        try:
            yield from check(settings)
        except NotConfigured as error:
            yield Check(name, Status.FAIL, str(error), "run `quarry up`")
        except Exception as error:
            # A check exists to meet the unexpected.
            yield Check(name, Status.FAIL, f"{type(error).__name__}: {mask(str(error))}", "see docs/operating.md")


def shown_settings(settings: Settings) -> list[tuple[str, str, bool]]:
    """(environment variable, value without secrets, set by the user) of every setting."""
    rows = []
    for name, field in type(settings).model_fields.items():
        value: Any = getattr(settings, name)
        if isinstance(value, SecretStr):
            value = MASK
        variable = str(field.validation_alias or f"QUARRY_{name.upper()}")
        rows.append((variable, "" if value is None else str(mask(str(value))), name in settings.model_fields_set))
    return rows


def check_python(_settings: Settings) -> Iterator[Check]:
    found = platform.python_version()
    if sys.version_info[:2] > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        yield Check("python", Status.WARN, f"{found}, newer than what is tested", f"use Python 3.11 to {newest}")
    else:
        yield Check("python", Status.OK, found)


def check_packages(_settings: Settings) -> Iterator[Check]:
    wrong = []
    for line in requires("quarry") or []:
        wanted = Requirement(line)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            wrong.append(f"{wanted.name} is missing")
            continue
        if not wanted.specifier.contains(found, prereleases=True):
            wrong.append(f"{wanted.name} is {found}, needed is {wanted.specifier}")
    if wrong:
        yield Check("packages", Status.FAIL, "; ".join(wrong), "run `make setup` in Quarry's folder")
    else:
        yield Check("packages", Status.OK, f"quarry {version('quarry')} and all it depends on")


def check_home(settings: Settings) -> Iterator[Check]:
    home = settings.home
    try:
        home.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=home).close()
    except OSError as error:
        yield Check("home", Status.FAIL, f"{home} can't be written: {error}", "set QUARRY_HOME to a folder you own")
        return
    yield Check("home", Status.OK, str(home))
    free = shutil.disk_usage(home).free / GIB
    detail = f"{free:.1f} GiB free at {home}"
    if free < 1:
        yield Check("disk", Status.FAIL, detail, "free at least 1 GiB, or set QUARRY_HOME to another disk")
    elif free < 5:
        yield Check("disk", Status.WARN, detail, "a model and a few thousand pages take about 5 GiB")
    else:
        yield Check("disk", Status.OK, detail)


def check_memory(_settings: Settings) -> Iterator[Check]:
    memory = psutil.virtual_memory()
    detail = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB available, {psutil.cpu_count()} cores"
    if memory.available < 2 * GIB:
        yield Check(
            "memory", Status.WARN, detail, "close other programs, or use an engine elsewhere: QUARRY_ENGINE_URL"
        )
    else:
        yield Check("memory", Status.OK, detail)


def check_models(settings: Settings) -> Iterator[Check]:
    """The files are those that were pulled: size and sha256 as in their manifests."""
    if settings.engine_url is not None:
        yield Check("models", Status.OK, "the engine is elsewhere: its models are its own")
        return
    for name in (settings.model, settings.embedder):
        if Path(name).expanduser().exists():
            yield Check(f"model {name}", Status.OK, "a path of your own")
            continue
        folder = settings.home / "models" / name
        fix = f"run `quarry model pull {name}`"
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            with (folder / manifest["file"]).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            yield Check(f"model {name}", Status.FAIL, f"not in {folder}", fix)
            continue
        if digest == manifest["sha256"]:
            yield Check(f"model {name}", Status.OK, f"{manifest['size'] / 2**20:.0f} MiB, sha256 {digest[:12]}…")
        else:
            fix = f"remove {folder}, then {fix}"
            yield Check(f"model {name}", Status.FAIL, f"sha256 is {digest[:12]}…, not {manifest['sha256'][:12]}…", fix)


def check_device(settings: Settings) -> Iterator[Check]:
    """Without torch: what the driver and the kernel say."""
    gpus = _gpus()
    if settings.engine_url is not None:
        yield Check("device", Status.OK, "the engine is elsewhere: its device is its own")
    elif gpus and settings.device == "cpu":
        yield Check("device", Status.WARN, f"{'; '.join(gpus)}, not used", "unset QUARRY_DEVICE, or set it to cuda")
    elif gpus:
        yield Check("device", Status.OK, "; ".join(gpus))
    elif settings.device == "cuda":
        yield Check("device", Status.FAIL, "QUARRY_DEVICE is cuda, but no NVIDIA driver answers", "set it to auto")
    else:
        yield Check("device", Status.OK, f"CPU, {_cpu_arithmetic()}")


def _gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return found.stdout.strip().splitlines()


def _cpu_arithmetic() -> str:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "bfloat16 unknown"
    names = [name for name in ("amx_bf16", "avx512_bf16") if name in flags]
    return f"bfloat16 in hardware ({', '.join(names)})" if names else "no bfloat16 in hardware: float32 is used"


def check_database(settings: Settings) -> Iterator[Check]:
    import psycopg

    from db import migrate
    from db.session import describe, sqlalchemy_url

    url = settings.endpoint("database_url")
    plain = sqlalchemy_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        connection = psycopg.connect(plain, connect_timeout=TIMEOUT_SECONDS, autocommit=True)
    except psycopg.Error as error:
        words = str(mask(str(error).strip().splitlines()[0]))
        fix = "check QUARRY_DATABASE_URL" if settings.database_url else "run `quarry up`"
        yield Check("database", Status.FAIL, f"{describe(url)}: {words}", fix)
        return
    with connection:
        number = connection.info.server_version
        release = f"PostgreSQL {number // 10000}.{number % 10000} at {describe(url)}"
        if number < POSTGRES_AT_LEAST:
            yield Check("database", Status.FAIL, release, "PostgreSQL 15 or newer is needed")
        else:
            yield Check("database", Status.OK, release)
        yield _pgvector(connection)
        current, head = migrate.current(url), migrate.head()
        if current == head:
            yield Check("migrations", Status.OK, f"at revision {head}")
        else:
            detail = f"at revision {current or 'none'}, newest is {head}"
            yield Check("migrations", Status.FAIL, detail, "run `python -m workers.migrate`")
        yield _role(connection)


def _pgvector(connection: Any) -> Check:
    row = connection.execute(
        "SELECT installed_version, default_version FROM pg_available_extensions WHERE name = 'vector'"
    ).fetchone()
    if row is None:
        return Check("pgvector", Status.FAIL, "not on the server", "install pgvector 0.8 or newer on the server")
    installed, available = row
    if installed is None:
        fix = "as a superuser, in this database: CREATE EXTENSION vector"
        return Check("pgvector", Status.FAIL, f"{available} is there, but not in this database", fix)
    if Version(installed) < PGVECTOR_AT_LEAST:
        fix = "as a superuser: ALTER EXTENSION vector UPDATE (after installing 0.8 on the server)"
        return Check("pgvector", Status.FAIL, f"{installed}; 0.8 is needed for iterative scans", fix)
    return Check("pgvector", Status.OK, installed)


def _role(connection: Any) -> Check:
    user, is_superuser, reader, may_read = connection.execute(
        "SELECT current_user, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),"
        " EXISTS (SELECT FROM pg_roles WHERE rolname = 'quarry_reader'),"
        " EXISTS (SELECT FROM pg_roles WHERE rolname = 'quarry_reader' AND pg_has_role(oid, 'MEMBER'))"
    ).fetchone()
    if not reader:
        return Check("role", Status.FAIL, "there is no role quarry_reader", "run `python -m workers.migrate`")
    if not may_read:
        fix = f"as a superuser: GRANT quarry_reader TO {user}"
        return Check("role", Status.FAIL, f"{user} may not act as quarry_reader, which `quarry sql` does", fix)
    if is_superuser:
        return Check("role", Status.WARN, f"{user} is a superuser", "use a role that owns only Quarry's database")
    return Check("role", Status.OK, f"{user}, may act as quarry_reader")


def check_broker(settings: Settings) -> Iterator[Check]:
    import redis

    url = settings.endpoint("broker_url")
    if not url.startswith(("redis://", "rediss://", "unix://")):
        yield Check("broker", Status.WARN, f"{mask(url)} is no Redis", "only Redis is tested as a broker")
        return
    try:
        with redis.Redis.from_url(
            url, socket_connect_timeout=TIMEOUT_SECONDS, socket_timeout=TIMEOUT_SECONDS, decode_responses=True
        ) as client:
            info: dict[str, Any] = client.info()
    except (redis.RedisError, OSError) as error:
        fix = "check QUARRY_BROKER_URL" if settings.broker_url else "run `quarry up`"
        yield Check("broker", Status.FAIL, f"{mask(url)}: {error}", fix)
        return
    found = str(info["redis_version"])
    if Version(found) < REDIS_AT_LEAST:
        yield Check("broker", Status.FAIL, f"Redis {found} at {mask(url)}", "Redis 6.2 or newer is needed")
    else:
        yield Check("broker", Status.OK, f"Redis {found} at {mask(url)}")
    policy = str(info.get("maxmemory_policy", "unknown"))
    if policy == "noeviction":
        yield Check("eviction", Status.OK, policy)
    else:
        fix = "set `maxmemory-policy noeviction`: a full Redis would drop messages without a word"
        yield Check("eviction", Status.WARN, f"maxmemory-policy is {policy}", fix)


def check_engine(settings: Settings) -> Iterator[Check]:
    url = settings.endpoint("engine_url").rstrip("/")
    headers = {}
    if settings.engine_api_key:
        headers["Authorization"] = f"Bearer {settings.engine_api_key.get_secret_value()}"
    try:
        with httpx.Client(headers=headers, timeout=TIMEOUT_SECONDS) as client:
            health = client.get(f"{url}/health")
            models = client.get(f"{url}/v1/models")
    except httpx.HTTPError as error:
        fix = "check QUARRY_ENGINE_URL" if settings.engine_url else "run `quarry up`; see logs/engine.log"
        yield Check("engine", Status.FAIL, f"{mask(url)}: {error}", fix)
        return
    if not health.is_success or not models.is_success:
        detail = f"{mask(url)}: /health says {health.status_code}, /v1/models says {models.status_code}"
        yield Check("engine", Status.FAIL, detail, "see logs/engine.log, or the log of the server behind the URL")
        return
    names = [str(entry.get("id")) for entry in models.json().get("data", [])]
    detail = f"{mask(url)} serves {', '.join(names) or 'nothing'}"
    if settings.model in names:
        yield Check("engine", Status.OK, detail)
    else:
        fix = f"set QUARRY_MODEL to one of them, or start the engine with {settings.model}"
        yield Check("engine", Status.FAIL, f"{detail}, not {settings.model}", fix)


def check_workers(settings: Settings) -> Iterator[Check]:
    from celery import Celery

    from pipeline.messages import configuration

    with Celery("quarry-doctor", set_as_current=False) as app:
        app.conf.update(configuration(settings.endpoint("broker_url")))
        with app.connection_for_write(connect_timeout=TIMEOUT_SECONDS) as connection:
            connection.ensure_connection(max_retries=1, timeout=TIMEOUT_SECONDS)
            answers = app.control.inspect(timeout=1.5, connection=connection).active_queues() or {}
    for name in ("ingest", "extract"):
        nodes = [node for node, queues in answers.items() if any(queue["name"] == name for queue in queues)]
        if nodes:
            yield Check(f"worker {name}", Status.OK, ", ".join(sorted(nodes)))
        else:
            fix = "run `quarry up`; a worker that is busy starting answers a few seconds later"
            yield Check(f"worker {name}", Status.FAIL, "nobody answers", fix)


def check_langfuse(settings: Settings) -> Iterator[Check]:
    public, secret = settings.langfuse_public_key, settings.langfuse_secret_key
    host = settings.langfuse_host or "https://cloud.langfuse.com"
    if not public and not secret:
        yield Check("langfuse", Status.OK, "no keys set: spans stay in the database")
        return
    if not public or not secret:
        missing = "LANGFUSE_SECRET_KEY" if public else "LANGFUSE_PUBLIC_KEY"
        yield Check("langfuse", Status.WARN, f"{missing} is not set: nothing is mirrored", "set both keys, or neither")
        return
    address = f"{host.rstrip('/')}/api/public/projects"
    try:
        answer = httpx.get(address, auth=(public, secret.get_secret_value()), timeout=TIMEOUT_SECONDS)
    except httpx.HTTPError as error:
        fix = "check LANGFUSE_HOST; nothing waits for it"
        yield Check("langfuse", Status.WARN, f"{mask(host)}: {error}", fix)
        return
    if answer.is_success:
        yield Check("langfuse", Status.OK, str(mask(host)))
    else:
        yield Check("langfuse", Status.WARN, f"{mask(host)} answers {answer.status_code}", "check the keys")


CHECKS: dict[str, Callable[[Settings], Iterator[Check]]] = {
    "python": check_python,
    "packages": check_packages,
    "home": check_home,
    "memory": check_memory,
    "models": check_models,
    "device": check_device,
    "database": check_database,
    "broker": check_broker,
    "engine": check_engine,
    "workers": check_workers,
    "langfuse": check_langfuse,
}
