"""The supervisor over services of a few lines of shell: order, restarts, its own death, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from pipeline.settings import NotConfigured, Settings
from tests.supervised import fake, fakes, starts
from workers import supervisor as module
from workers.control import bring_down, running
from workers.processes import Identity, end, marked, rotate, spawn
from workers.services import Service
from workers.state import read_state, state_file
from workers.supervisor import AlreadyRunning, Phase, Supervisor, holding_lock

ROOT = Path(__file__).parents[2]
TIMEOUT = 30.0  # a bound for what takes milliseconds; nothing is measured
NAMES = ("base", "middle", "left", "right")


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    yield Settings(home=tmp_path)
    end(marked(tmp_path), number=signal.SIGKILL, seconds=5)


class Clock:
    """Stands in for the supervisor's: time passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "clock", clock)
    return clock


def wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.perf_counter() + TIMEOUT
    while not condition():
        assert time.perf_counter() < deadline, f"waited for {what}"
        time.sleep(0.01)


def run_until(supervisor: Supervisor, condition: Callable[[], object], what: str) -> None:
    def tick() -> object:
        supervisor.tick()
        return condition()

    wait(tick, what)


def unit(supervisor: Supervisor, name: str) -> module.Unit:
    return next(unit for unit in supervisor.units if unit.service.name == name)


def all_ready(supervisor: Supervisor) -> bool:
    return all(unit.phase is Phase.READY for unit in supervisor.units)


def launch(home: Path) -> subprocess.Popen[bytes]:
    """A supervisor of the fakes in a process of its own; returns when everything answers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.supervised", str(home)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    settings = Settings(home=home)

    def complete() -> bool:
        state = read_state(settings)
        return state is not None and state.complete and state.pid == process.pid

    wait(complete, "the fakes to answer")
    return process


def test_each_starts_after_what_it_needs_and_ends_before_it(settings: Settings) -> None:
    supervisor = Supervisor(settings, fakes(settings.home))
    supervisor.tick()
    assert [unit.phase for unit in supervisor.units] == [Phase.STARTING, *[Phase.WAITING] * 3]
    run_until(supervisor, lambda: all_ready(supervisor), "all")
    assert settings.endpoint("broker_url") == "redis://base"
    supervisor.stop_all()
    stopped = (settings.home / "stopped").read_text().split()
    assert sorted(stopped[:2]) == ["left", "right"]
    assert stopped[2:] == ["middle", "base"]
    assert marked(settings.home) == []
    assert not state_file(settings).exists()
    with pytest.raises(NotConfigured):
        settings.endpoint("broker_url")


def test_a_dead_service_starts_anew_and_its_children_are_ended(settings: Settings) -> None:
    supervisor = Supervisor(settings, [fake(settings.home, "base")])
    run_until(supervisor, lambda: all_ready(supervisor), "the first start")
    [child] = psutil.Process(starts(settings.home, "base")[0]).children()
    os.kill(starts(settings.home, "base")[0], signal.SIGKILL)
    run_until(supervisor, lambda: len(starts(settings.home, "base")) == 2 and all_ready(supervisor), "the second")
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert unit(supervisor, "base").restarts == 1
    supervisor.stop_all()


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_good_run(settings: Settings, clock: Clock) -> None:
    supervisor = Supervisor(settings, [fake(settings.home, "base", script="exit 7")])
    base = unit(supervisor, "base")
    pauses = []
    for _ in range(9):
        run_until(supervisor, lambda: base.phase is Phase.RESTING, "its death")
        assert "ended with status 7" in base.detail
        pauses.append(base.next_start - clock.now)
        clock.now = base.next_start
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]

    supervisor = Supervisor(settings, [fake(settings.home, "base")])
    base = unit(supervisor, "base")
    base.deaths = 5
    run_until(supervisor, lambda: base.phase is Phase.READY, "its start")
    clock.now += module.RAN_WELL_SECONDS + 1
    os.kill(starts(settings.home, "base")[-1], signal.SIGKILL)
    run_until(supervisor, lambda: base.phase is Phase.RESTING, "its death")
    assert "SIGKILL" in base.detail
    assert base.next_start - clock.now == module.FIRST_PAUSE_SECONDS
    supervisor.stop_all()


def test_what_needs_a_failing_one_shot_waits_until_it_works(settings: Settings) -> None:
    script = "[ -e {folder}/may ] || {{ echo not yet; exit 1; }}"
    services = [fake(settings.home, "once", script=script, one_shot=True), fake(settings.home, "base", needs=("once",))]
    supervisor = Supervisor(settings, services)
    run_until(supervisor, lambda: unit(supervisor, "once").restarts >= 1, "its failure")
    assert unit(supervisor, "base").phase is Phase.WAITING
    (settings.home / "may").touch()
    run_until(supervisor, lambda: unit(supervisor, "base").phase is Phase.READY, "the one that waits")
    assert unit(supervisor, "once").phase is Phase.DONE
    supervisor.stop_all()


def test_a_watched_service_that_falls_silent_starts_anew(settings: Settings, clock: Clock) -> None:
    answers = [True]
    supervisor = Supervisor(settings, [fake(settings.home, "base", ready=lambda: answers[0], watch=True)])
    base = unit(supervisor, "base")
    run_until(supervisor, lambda: base.phase is Phase.READY, "its start")
    answers[0] = False
    clock.now += module.SILENT_SECONDS - 1
    supervisor.tick()
    assert base.phase is Phase.READY
    clock.now += module.PROBE_SECONDS
    supervisor.tick()
    assert base.phase is Phase.RESTING
    assert "did not answer" in base.detail
    supervisor.stop_all()


def test_a_service_that_loads_again_is_left_to_it_up_to_its_limit(settings: Settings, clock: Clock) -> None:
    ready, alive = [True], [True]
    service = fake(
        settings.home,
        "base",
        ready=lambda: ready[0],
        alive=lambda: alive[0],
        watch=True,
        start_seconds=10 * module.SILENT_SECONDS,
    )
    supervisor = Supervisor(settings, [service])
    base = unit(supervisor, "base")
    run_until(supervisor, lambda: base.phase is Phase.READY, "its start")
    ready[0] = False
    for _ in range(9):
        clock.now += module.SILENT_SECONDS
        supervisor.tick()
        assert base.phase is Phase.READY
        assert base.detail == "answers, but is not ready"
    ready[0] = True  # once it works again, its time begins anew
    clock.now += module.SILENT_SECONDS
    supervisor.tick()
    assert base.detail == ""
    ready[0] = False
    clock.now += 10 * module.SILENT_SECONDS
    supervisor.tick()
    assert base.phase is Phase.READY
    clock.now += module.PROBE_SECONDS
    supervisor.tick()
    assert base.phase is Phase.RESTING
    assert "was not ready for 600 s" in base.detail
    assert len(starts(settings.home, "base")) == 1
    supervisor.stop_all()


def test_the_end_of_answers_counts_also_while_it_is_not_ready(settings: Settings, clock: Clock) -> None:
    alive = [True]
    ready = iter([True])
    service = fake(settings.home, "base", ready=lambda: next(ready, False), alive=lambda: alive[0], watch=True)
    supervisor = Supervisor(settings, [service])
    base = unit(supervisor, "base")
    run_until(supervisor, lambda: base.phase is Phase.READY, "its start")
    clock.now += module.SILENT_SECONDS - 1
    supervisor.tick()
    alive[0] = False
    clock.now += module.SILENT_SECONDS
    supervisor.tick()
    assert base.phase is Phase.READY
    clock.now += module.PROBE_SECONDS
    supervisor.tick()
    assert base.phase is Phase.RESTING
    assert "did not answer for 60 s" in base.detail
    supervisor.stop_all()


@pytest.mark.parametrize(
    ("status", "body", "ready", "alive"),
    [
        (200, b'{"status": "ok", "models": []}', True, False),
        (503, b'{"status": "starting"}', False, True),
        (503, b'{"status": "down", "reason": "the core was ended by SIGKILL"}', False, True),
        (503, b'{"status": "stopping"}', False, False),
        (503, b"no healthy upstream", False, False),
        (200, b'["ok"]', False, False),
        (200, b"{}", False, False),
    ],
)
def test_an_engine_that_loads_its_model_is_alive_and_not_ready(
    status: int, body: bytes, ready: bool, alive: bool, tmp_path: Path
) -> None:
    class Front(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    (service,) = [service for service in module.plan(Settings(home=tmp_path)) if service.name == "engine"]
    folder = tmp_path / "engine"
    folder.mkdir()
    with HTTPServer(("127.0.0.1", 0), Front) as server:
        (folder / "port").write_text(str(server.server_port))
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        assert (service.ready(), service.alive()) == (ready, alive)
        server.shutdown()
        thread.join()
    assert (service.ready(), service.alive()) == (False, False), "nobody listens"


def test_a_failed_preparation_is_told_and_tried_again(settings: Settings, clock: Clock) -> None:
    def prepare() -> None:
        raise RuntimeError("no room")

    supervisor = Supervisor(settings, [fake(settings.home, "base", prepare=prepare)])
    supervisor.tick()
    base = unit(supervisor, "base")
    assert base.phase is Phase.RESTING
    assert "no room" in base.detail
    clock.now = base.next_start
    supervisor.tick()
    assert base.deaths == 2


def test_what_will_not_end_is_killed(settings: Settings) -> None:
    script = "echo $$ >> {folder}/{name}.starts; trap '' TERM; while :; do sleep 1000 & wait $!; done"
    supervisor = Supervisor(settings, [fake(settings.home, "base", script=script, stop_seconds=0.1)])
    run_until(supervisor, lambda: all_ready(supervisor), "its start")
    supervisor.stop_all()
    assert marked(settings.home) == []


def test_a_moved_address_restarts_those_who_know_the_old_one(settings: Settings) -> None:
    address = ["redis://one"]
    base = fake(settings.home, "base", endpoint=("broker_url", lambda: address[0]))
    supervisor = Supervisor(settings, [base, fake(settings.home, "leaf", needs=("base",))])
    run_until(supervisor, lambda: all_ready(supervisor), "all")
    address[0] = "redis://two"
    os.kill(starts(settings.home, "base")[0], signal.SIGKILL)
    run_until(supervisor, lambda: len(starts(settings.home, "leaf")) == 2 and all_ready(supervisor), "the leaf")
    assert settings.endpoint("broker_url") == "redis://two"
    supervisor.stop_all()


def test_after_a_kill_the_next_supervisor_adopts_what_lives(settings: Settings) -> None:
    first = launch(settings.home)
    assert running(settings)
    first.kill()
    first.wait()
    assert not running(settings)
    os.kill(starts(settings.home, "left")[0], signal.SIGKILL)  # one of them died unseen
    second = launch(settings.home)
    assert [len(starts(settings.home, name)) for name in NAMES] == [1, 1, 2, 1]
    assert len(marked(settings.home)) == 2 * len(NAMES)  # each with its child
    os.kill(starts(settings.home, "base")[0], signal.SIGKILL)  # an adopted one is watched as well
    wait(lambda: len(starts(settings.home, "base")) == 2, "the adopted one's restart")
    second.terminate()
    assert second.wait(timeout=TIMEOUT) == 0
    assert marked(settings.home) == []


def test_what_the_notes_do_not_know_is_ended_never_doubled(settings: Settings) -> None:
    """A supervisor may die between starting a process and writing it down."""
    log = settings.home / "logs" / "base.log"
    stray = spawn(["sh", "-c", "sleep 1000"], home=settings.home, name="base", env={}, log=log)
    supervisor = Supervisor(settings, [fake(settings.home, "base")])
    supervisor.adopt()
    assert stray.poll() == -signal.SIGTERM
    run_until(supervisor, lambda: all_ready(supervisor), "its start")
    supervisor.stop_all()


def test_a_service_with_other_settings_is_not_adopted(settings: Settings) -> None:
    first = Supervisor(settings, [fake(settings.home, "base")])
    run_until(first, lambda: all_ready(first), "its start")
    changed = settings.model_copy(update={"chunk_tokens": 99})
    second = Supervisor(changed, [fake(settings.home, "base")])
    second.adopt()
    assert unit(second, "base").identity is None
    wait(lambda: not marked(settings.home), "the end of the old one")
    second.stop_all()


def test_a_pid_that_is_someone_elses_by_now_is_left_alone(settings: Settings) -> None:
    other = subprocess.Popen(["sleep", "1000"])
    try:
        service = fake(settings.home, "base")
        identity = Identity.of(other.pid)
        assert identity is not None
        notes = {"name": "base", "phase": "ready", "pid": other.pid, "started": identity.started - 3600}
        notes["digest"] = service.digest(settings)
        state_file(settings).parent.mkdir(parents=True)
        state_file(settings).write_text(json.dumps({"pid": 1, "started": 0.0, "units": [notes]}))
        assert bring_down(settings, [service]) is False
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("killed_first", [False, True], ids=["alive", "killed"])
def test_down_leaves_nothing(settings: Settings, killed_first: bool) -> None:
    process = launch(settings.home)
    if killed_first:
        process.kill()
        process.wait()
    assert bring_down(settings, fakes(settings.home)) is True
    process.wait(timeout=TIMEOUT)
    assert marked(settings.home) == []
    assert not running(settings)
    stopped = (settings.home / "stopped").read_text().split()
    assert stopped[2:] == ["middle", "base"]
    assert bring_down(settings, fakes(settings.home)) is False


def test_there_is_one_supervisor_per_home(settings: Settings, tmp_path: Path) -> None:
    with holding_lock(settings):
        assert running(settings)
        with pytest.raises(AlreadyRunning), holding_lock(settings):
            pass
        with holding_lock(Settings(home=tmp_path / "other")):
            pass
    assert not running(settings)


def test_a_log_is_rotated_under_a_writer(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with log.open("ab", buffering=0) as writer:
        for number in range(6):
            writer.write(b"%d" % number * 100)
            assert rotate(log, limit=99, keep=3)
            assert not rotate(log, limit=99, keep=3)
        writer.write(b"end")
    assert log.read_bytes() == b"end"
    kept = {path.name: path.read_bytes()[:1] for path in tmp_path.glob("x.log.*")}
    assert kept == {"x.log.1": b"5", "x.log.2": b"4", "x.log.3": b"3"}


def test_services_follow_the_settings(tmp_path: Path) -> None:
    def names(**explicit: str) -> list[str]:
        return [service.name for service in module.plan(Settings(home=tmp_path, **explicit))]

    always = ["migrate", "ingest", "extract", "sweeper"]
    assert names() == ["postgres", "redis", "engine", *always]
    assert names(database_url="postgresql://x/y", engine_url="http://x") == ["redis", *always]
    assert names(database_url="postgresql://x/y", engine_url="http://x", broker_url="redis://x") == always
    needs: dict[str, Service] = {service.name: service for service in module.plan(Settings(home=tmp_path))}
    assert set(needs["extract"].needs) == {"postgres", "redis", "engine", "migrate"}
