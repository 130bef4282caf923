"""Starts the services of `quarry up`, restarts what dies, and ends them in order: `python -m workers.supervisor`.

    waiting ──needs answer──▶ starting ──answers──▶ ready        a one-shot ends as done instead
       ▲                         │                    │
       └──── pause over ──── resting ◀──── died ──────┘          each death in a row doubles the pause

One supervisor per QUARRY_HOME: it holds `run/supervisor.lock`, which the kernel drops with the process. What it
started goes on without it; the next one adopts what it recognises from `run/state.json` and ends everything else that
carries the home's mark, so that there are never two of anything.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum

import psutil
import structlog

from pipeline.settings import Settings, get_settings
from workers.logs import set_up_logging
from workers.processes import Identity, end, ended, family, marked, rotate, spawn
from workers.services import Service, plan, write_json
from workers.state import State, UnitState, lock_file, log_file, read_state, state_file

log = structlog.get_logger(__name__)

TICK_SECONDS = 0.2  # while something is on its way
CALM_TICK_SECONDS = 1.0  # while everything runs
PROBE_SECONDS = 5.0  # between two questions to a service that has answered; while it starts, at each tick
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
RAN_WELL_SECONDS = 60.0  # a death after that counts as the first again
SILENT_SECONDS = 60.0
URLS = ("database_url", "broker_url", "engine_url")
ALREADY_RUNNING = 3  # exit status


def clock() -> float:
    """Seconds; of the pauses and limits below."""
    return time.monotonic()


class AlreadyRunning(RuntimeError):
    """Another supervisor holds the lock of this QUARRY_HOME."""


class Phase(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    RESTING = "resting"
    DONE = "done"
    STOPPED = "stopped"


@dataclass
class Unit:
    """A service and its process, if it has one."""

    service: Service
    phase: Phase = Phase.WAITING
    identity: Identity | None = None
    child: subprocess.Popen[bytes] | None = None  # None: adopted
    digest: str = ""
    since: float = 0.0  # start of the phase
    next_probe: float = 0.0
    next_start: float = 0.0
    heard: float = 0.0  # last time a watched service answered, ready or not
    worked: float = 0.0  # last time it was ready
    deaths: int = 0  # in a row
    restarts: int = 0
    detail: str = ""

    def move(self, phase: Phase, detail: str = "") -> None:
        self.phase, self.detail, self.since = phase, detail, clock()
        self.next_probe = 0.0

    def exit_status(self) -> int | None:
        """None while it runs. The status of an adopted process is not to be had: -1 stands for it."""
        if self.child is not None:
            return self.child.poll()
        return None if self.identity is not None and self.identity.process() else -1

    def state(self) -> UnitState:
        pid, started = (self.identity.pid, self.identity.started) if self.identity else (None, None)
        return UnitState(self.service.name, self.phase.value, pid, started, self.restarts, self.detail, self.digest)


class Supervisor:
    """`run` until `stop` is set. The caller holds the lock (`holding_lock`)."""

    def __init__(self, settings: Settings, services: Sequence[Service] | None = None) -> None:
        self.settings = settings
        self.units = [Unit(service) for service in (plan(settings) if services is None else services)]
        self.stop = threading.Event()
        self.hurry = False  # a second signal: do not wait for documents in hand
        self._urls: dict[str, str] = {}  # of those services that have answered, under their keys in endpoints.json
        self._self = Identity(os.getpid(), psutil.Process().create_time())
        self._written: State | None = None

    def run(self) -> None:
        self.adopt()
        try:
            while not self.stop.is_set():
                try:
                    self.tick()
                except OSError as error:  # a full disk, too many open files: what runs is to run on
                    log.error("can't look after the services just now", error=str(error))
                self.stop.wait(CALM_TICK_SECONDS if self._calm() else TICK_SECONDS)
        finally:
            self.stop_all()

    def _calm(self) -> bool:
        return all(unit.phase in (Phase.READY, Phase.DONE) for unit in self.units)

    def adopt(self, *, changed_too: bool = False) -> None:
        """Take over what an earlier supervisor left in good order; end the rest.

        A process whose command or settings would be others today is ended as well, unless `changed_too`.
        """
        known = {unit.name: unit for unit in (read_state(self.settings) or State()).units}
        ours = {unit.service.endpoint[0] for unit in self.units if unit.service.endpoint}
        self._urls = {key: url for key, url in self.settings.recorded().items() if key in ours}
        kept: set[int] = set()
        for unit in self.units:
            if process := self._recognise(unit, known.get(unit.service.name), changed_too):
                unit.identity = Identity(process.pid, process.create_time())
                unit.digest = known[unit.service.name].digest
                unit.move(Phase.STARTING, "adopted")
                kept |= {member.pid for member in family(process)}
                log.info("adopted", service=unit.service.name, pid=process.pid)
        self._end_others(kept)
        self._write()

    def _recognise(self, unit: Unit, known: UnitState | None, changed_too: bool) -> psutil.Process | None:
        if known is None or known.pid is None or known.started is None or unit.service.one_shot:
            return None
        if changed_too or unit.service.digest(self.settings) == known.digest:
            return Identity(known.pid, known.started).process()
        return None

    def _end_others(self, kept: set[int]) -> None:
        """In the order of stopping, whatever runs for this home and is not to be kept."""
        for unit in reversed(self.units):
            name, service = unit.service.name, unit.service
            strays = [process for process in marked(self.settings.home, [name]) if process.pid not in kept]
            if service.find and (own := service.find()) and own.pid not in kept:
                strays.append(own)
            if strays:
                log.warning("ending what an earlier supervisor left", service=name, pids=[p.pid for p in strays])
                end(strays, number=service.stop_signal, seconds=service.stop_seconds)
        strays = [process for process in marked(self.settings.home) if process.pid not in kept]
        end(strays, number=signal.SIGTERM, seconds=10.0)

    def tick(self) -> None:
        """Look at each service once, move those that can move, write down what changed."""
        for unit in self.units:
            match unit.phase:
                case Phase.WAITING:
                    self._start_if_possible(unit)
                case Phase.RESTING if clock() >= unit.next_start:
                    unit.move(Phase.WAITING, unit.detail)
                    self._start_if_possible(unit)
                case Phase.STARTING:
                    self._look_at_starting(unit)
                case Phase.READY:
                    self._look_at_ready(unit)
            rotate(log_file(self.settings, unit.service.name))
        self._write()

    def _start_if_possible(self, unit: Unit) -> None:
        answering = {other.service.name for other in self.units if other.phase in (Phase.READY, Phase.DONE)}
        if not answering.issuperset(unit.service.needs):
            return
        name = unit.service.name
        try:
            unit.service.prepare()
            unit.digest = unit.service.digest(self.settings)
            unit.child = spawn(
                unit.service.command(),
                home=self.settings.home,
                name=name,
                env=unit.service.env,
                log=log_file(self.settings, name),
            )
        except (OSError, RuntimeError) as error:
            self._rest(unit, f"can't be started: {error}")
            return
        unit.identity = Identity.of(unit.child.pid)
        unit.move(Phase.STARTING)
        log.info("started", service=name, pid=unit.child.pid)
        self._write()  # before anything else can go wrong: a next supervisor is to find it

    def _look_at_starting(self, unit: Unit) -> None:
        status = unit.exit_status()
        if status is not None:
            if unit.service.one_shot and status == 0:
                unit.identity = unit.child = None
                unit.move(Phase.DONE)
                log.info("done", service=unit.service.name)
            else:
                self._died(unit, status)
            return
        if clock() - unit.since > unit.service.start_seconds:
            self._kill(unit)
            self._rest(unit, f"did not answer within {unit.service.start_seconds:.0f} s")
        elif not unit.service.one_shot and self._due(unit) and unit.service.ready():
            self._answers(unit)

    def _answers(self, unit: Unit) -> None:
        try:
            unit.service.provision()
        except Exception as error:
            # Whatever a server or driver raises: the supervisor goes on and tries again.
            self._kill(unit)
            self._rest(unit, f"can't be set up: {error}")
            return
        unit.move(Phase.READY)
        unit.heard = unit.worked = clock()
        log.info("ready", service=unit.service.name)
        self._write_endpoints(unit)

    def _look_at_ready(self, unit: Unit) -> None:
        status = unit.exit_status()
        now = clock()
        if status is not None:
            self._died(unit, status)
        elif unit.service.watch and self._due(unit):
            self._watch(unit, now)

    def _watch(self, unit: Unit, now: float) -> None:
        limit = unit.service.start_seconds
        if unit.service.ready():
            unit.heard = unit.worked = now
            unit.detail = ""
        elif unit.service.alive():
            unit.heard = now
            unit.detail = "answers, but is not ready"
            if now - unit.worked > limit:
                self._kill(unit)
                self._rest(unit, f"answered, but was not ready for {limit:.0f} s")
        elif now - unit.heard > SILENT_SECONDS:
            self._kill(unit)
            self._rest(unit, f"did not answer for {SILENT_SECONDS:.0f} s")

    def _due(self, unit: Unit) -> bool:
        """A probe costs the service something."""
        now = clock()
        if now < unit.next_probe:
            return False
        unit.next_probe = now + (PROBE_SECONDS if unit.phase is Phase.READY else TICK_SECONDS)
        return True

    def _died(self, unit: Unit, status: int) -> None:
        name = unit.service.name
        if unit.phase is Phase.READY and clock() - unit.since > RAN_WELL_SECONDS:
            unit.deaths = 0
        how = "ended"
        if unit.child is not None:
            names = {number.value: number.name for number in signal.Signals}
            how = f"ended with status {status}" if status >= 0 else f"was ended by {names.get(-status, -status)}"
        end(marked(self.settings.home, [name]), number=signal.SIGTERM, seconds=5.0)  # children that lost their parent
        self._rest(unit, how)

    def _rest(self, unit: Unit, why: str) -> None:
        """Pause before the next start."""
        unit.deaths += 1
        unit.restarts += 1
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (unit.deaths - 1), LONGEST_PAUSE_SECONDS)
        unit.identity = unit.child = None
        unit.move(Phase.RESTING, f"{why}; see logs/{unit.service.name}.log")
        unit.next_start = clock() + pause
        log.warning("not running", service=unit.service.name, why=why, next_start_in_seconds=pause)

    def _kill(self, unit: Unit) -> None:
        if unit.identity and (process := unit.identity.process()):
            end(family(process), number=unit.service.stop_signal, seconds=unit.service.stop_seconds)
        if unit.child is not None:
            unit.child.wait()

    def stop_all(self) -> None:
        """Workers drain first, together; then what they lean on, one after the other: engine, Redis, PostgreSQL."""
        needed = {name for unit in self.units for name in unit.service.needs}
        leaves = [unit for unit in self.units if unit.service.name not in needed]
        threads = [threading.Thread(target=self._stop_unit, args=[unit]) for unit in leaves]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for unit in reversed([unit for unit in self.units if unit not in leaves]):
            self._stop_unit(unit)
        self._end_others(set())
        self.settings.endpoints_file.unlink(missing_ok=True)
        state_file(self.settings).unlink(missing_ok=True)

    def _stop_unit(self, unit: Unit) -> None:
        """The main process is asked; its children are its own business, and killed only when they stay behind."""
        process = unit.identity.process() if unit.identity else None
        if process is None and unit.service.find:
            process = unit.service.find()
        if process is not None:
            members = family(process)
            with suppress(psutil.Error):
                process.send_signal(unit.service.stop_signal)
            deadline = time.monotonic() + unit.service.stop_seconds
            patient = unit.service.endpoint is not None  # a server ends soon once its clients have gone
            while not ended(process) and time.monotonic() < deadline and (patient or not self.hurry):
                time.sleep(0.02)
            end(members, number=signal.SIGKILL, seconds=0.0)
            if unit.child is not None:
                unit.child.wait()
            log.info("stopped", service=unit.service.name)
        unit.identity = unit.child = None
        unit.move(Phase.STOPPED)

    def _write_endpoints(self, unit: Unit) -> None:
        """What clients of this home read: the addresses of what answers, those set from outside among them.

        When `unit` came back under another address, who knows only the old one is started anew.
        """
        moved = False
        if unit.service.endpoint:
            key, url = unit.service.endpoint
            moved = self._urls.get(key, url()) != url()
            self._urls[key] = url()
        explicit = {key: str(url) for key in URLS if (url := getattr(self.settings, key))}
        write_json(self.settings.endpoints_file, explicit | self._urls | {"model": self.settings.model})
        for other in self.units:
            if moved and unit.service.name in other.service.needs and other.identity is not None:
                self._kill(other)
                self._rest(other, f"{unit.service.name} has another address now")

    def _write(self) -> None:
        state = State(self._self.pid, self._self.started, tuple(unit.state() for unit in self.units))
        if state != self._written:
            write_json(state_file(self.settings), state.as_json())
            self._written = state


@contextmanager
def holding_lock(settings: Settings) -> Iterator[None]:
    """Be the one supervisor of this home, or raise AlreadyRunning."""
    path = lock_file(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(f"a supervisor for {settings.home} is running already") from None
        yield


def serve(settings: Settings, services: Sequence[Service] | None = None) -> int:
    """Supervise until SIGTERM or SIGINT; a second one does not wait for documents in hand. Returns the exit status."""
    try:
        with holding_lock(settings):
            supervisor = Supervisor(settings, services)

            def on_signal(*_: object) -> None:
                supervisor.hurry = supervisor.stop.is_set()
                supervisor.stop.set()

            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, on_signal)
            supervisor.run()
    except AlreadyRunning as error:
        log.error(str(error))
        return ALREADY_RUNNING
    return 0


def main() -> int:
    settings = get_settings()
    set_up_logging(settings)
    return serve(settings)


if __name__ == "__main__":
    sys.exit(main())
