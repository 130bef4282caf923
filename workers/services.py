"""What `quarry up` runs, as values: each service's command, what it needs first, how one sees that it answers."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import psutil

from pipeline.settings import Settings
from workers.embedded import Postgres, Redis, free_port, write_private

DRAIN_SECONDS = 30.0  # for the documents in hand; what takes longer loses its lease and is done again
# The engine gets the cores; every other process computes in one thread, so that they do not push each other aside.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Service:
    """One process of the service. `ready`, `alive` and `url` may raise nothing; `prepare` raises an error in words."""

    name: str
    command: Callable[[], list[str]]
    needs: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], bool] = lambda: True
    prepare: Callable[[], None] = _nothing  # before each start
    provision: Callable[[], None] = _nothing  # once it answers, before others start
    find: Callable[[], psutil.Process | None] | None = None  # its process, where it can tell without our notes
    one_shot: bool = False  # runs to its end, which must be exit status 0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 10.0
    start_seconds: float = 60.0
    # Asked `ready` for as long as it runs, and `alive` when it is not. Neither for `SILENT_SECONDS`, or not ready for
    # `start_seconds`: it is started anew.
    watch: bool = False
    alive: Callable[[], bool] = lambda: False  # it answers, and is about to be ready again by itself
    endpoint: tuple[str, Callable[[], str]] | None = None  # its key in endpoints.json, and the URL

    def digest(self, settings: Settings) -> str:
        """Changes with whatever would make a fresh process behave differently from a running one; empty before the
        first `prepare`, when there is no command yet."""
        try:
            command = self.command()
        except OSError:
            return ""
        secret = {
            name: value.get_secret_value() if hasattr(value, "get_secret_value") else str(value)
            for name, value in settings.model_dump().items()
        }
        text = json.dumps([command, dict(self.env), secret], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def plan(settings: Settings) -> list[Service]:
    """The services that `settings` ask for, in the order of starting. What has a URL of its own is not among them."""
    home = settings.home
    identity = {"QUARRY_HOME": str(home), "QUARRY_MODEL": settings.model}
    services: list[Service] = []
    if settings.database_url is None:
        services.append(_postgres(Postgres(home / "postgres")))
    if settings.broker_url is None:
        services.append(_redis(Redis(home / "redis")))
    if settings.engine_url is None:
        services.append(_engine(settings, identity))
    started = tuple(service.name for service in services)
    database = tuple(name for name in started if name == "postgres")
    services.append(
        Service(
            name="migrate",
            command=lambda: [sys.executable, "-m", "workers.migrate"],
            needs=database,
            env=identity,
            one_shot=True,
            start_seconds=600.0,
        )
    )
    needs = (*started, "migrate")
    for queue, pool, concurrency in (
        ("ingest", "prefork", settings.ingest_workers),
        ("extract", "threads", settings.extract_concurrency),
    ):
        services.append(_worker(settings, queue, pool, concurrency, needs, identity | ONE_THREAD))
    services.append(
        Service(
            name="sweeper",
            command=lambda: [sys.executable, "-m", "workers.sweeper"],
            needs=tuple(name for name in needs if name != "engine"),
            env=identity | ONE_THREAD,
        )
    )
    return services


def _postgres(server: Postgres) -> Service:
    return Service(
        name="postgres",
        command=server.command,
        prepare=server.prepare,
        ready=server.ready,
        provision=server.provision,
        find=server.process,
        stop_signal=server.stop_signal,
        stop_seconds=60.0,  # the last checkpoint
        start_seconds=600.0,  # recovery after a crash reads the whole log
        endpoint=("database_url", server.url),
    )


def _redis(server: Redis) -> Service:
    return Service(
        name="redis",
        command=server.command,
        prepare=server.prepare,
        ready=server.ready,
        stop_signal=server.stop_signal,
        endpoint=("broker_url", server.url),
    )


def model_argument(name: str) -> str:
    """The engine runs in another folder: a path is made absolute, a name of the catalogue stays."""
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


def _engine(settings: Settings, identity: Mapping[str, str]) -> Service:
    home = settings.home
    folder = home / "engine"
    model, embedder = model_argument(settings.model), model_argument(settings.embedder)

    def port() -> int:
        return int((folder / "port").read_text())

    def prepare() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        free_port(folder)

    def command() -> list[str]:
        options = {
            "--home": str(home),
            "--model": model,
            "--alias": settings.model,  # what clients ask for, also when it is a path
            "--host": "127.0.0.1",
            "--port": str(port()),
            "--device": settings.device,
            "--dtype": settings.dtype,
            "--quantization": settings.quantization,
            "--log-level": settings.log_level,
        }
        if settings.embeddings_url is None:
            options["--embedder"] = embedder
        return [sys.executable, "-m", "inference.server", *(part for pair in options.items() for part in pair)]

    def url() -> str:
        return f"http://127.0.0.1:{port()}"

    return Service(
        name="engine",
        command=command,
        prepare=prepare,
        ready=lambda: engine_health(url()) == "ok",
        alive=lambda: engine_health(url()) in ENGINE_AT_WORK,
        env=identity,
        start_seconds=600.0,  # a large model from a cold disk
        stop_seconds=60.0,  # it lets requests finish, for half of it, then the step under way
        watch=True,
        endpoint=("engine_url", url),
    )


@lru_cache(maxsize=1)
def _http() -> httpx.Client:
    """Kept: a new one reads all certificates, which is most of what a probe costs."""
    return httpx.Client(timeout=3.0)


# What the engine's front says of a core that loads its model, for the first time or again after a crash.
ENGINE_AT_WORK = ("starting", "down")


def engine_health(url: str) -> str | None:
    """What the engine's front says of its core ("ok" when it takes requests); None when it says nothing of the kind."""
    try:
        answer = _http().get(f"{url.rstrip('/')}/health").json()
        return str(answer["status"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return None


def _worker(
    settings: Settings, queue: str, pool: str, concurrency: int, needs: tuple[str, ...], env: Mapping[str, str]
) -> Service:
    node = f"{queue}.{hashlib.sha256(os.fsencode(settings.home)).hexdigest()[:6]}@{socket.gethostname()}"
    options = ["--queues", queue, "--hostname", node, "--pool", pool, "--concurrency", str(concurrency)]
    quiet = ["--without-gossip", "--without-mingle", "--loglevel", settings.log_level]
    return Service(
        name=queue,
        command=lambda: [sys.executable, "-m", "celery", "-A", "workers.app", "worker", *options, *quiet],
        needs=needs,
        env=env,
        ready=lambda: worker_answers(settings, node),
        stop_seconds=DRAIN_SECONDS,
    )


def worker_answers(settings: Settings, node: str, *, seconds: float = 1.0) -> bool:
    """The Celery worker `node` answers over the broker."""
    from celery import Celery
    from kombu.exceptions import KombuError

    from pipeline.messages import configuration
    from pipeline.settings import NotConfigured

    try:
        with Celery("quarry-probe", set_as_current=False) as app:
            app.conf.update(configuration(settings.endpoint("broker_url")))
            with app.connection_for_write(connect_timeout=2) as connection:
                connection.ensure_connection(max_retries=1, timeout=2)
                return bool(app.control.ping(destination=[node], timeout=seconds, connection=connection))
    except (KombuError, NotConfigured, OSError):
        return False


def write_json(path: Path, value: Any) -> None:
    """Atomically, readable by the owner only: addresses hold passwords."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, json.dumps(value, indent=1) + "\n")
