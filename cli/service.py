"""`quarry up`, `down`, `status`, `doctor`: the processes behind everything else."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from cli.output import Format, FormatOption, err, print_rows

if TYPE_CHECKING:
    import subprocess

    from pipeline.settings import Settings
    from workers.state import State, UnitState

HOPELESS_RESTARTS = 3  # a service that dies this often before it ever answers needs a person
START_SECONDS = 900.0
_STYLES = {"ready": "green", "done": "green", "resting": "red", "stopped": "dim"}


class ServiceError(RuntimeError):
    """The service can't be brought up. The message holds the log's end and what to do."""


def register(app: typer.Typer) -> None:
    """Add the four commands to `app`."""
    for command in (up, down, status, doctor):
        app.command(rich_help_panel="Service")(command)


def up(
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, with logs on standard error; Ctrl-C stops the service.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for everything to answer.", min=1)] = START_SECONDS,
) -> None:
    """Start PostgreSQL, Redis, the engine, the workers and the sweeper, and watch over them.

    What has a URL of its own (QUARRY_DATABASE_URL, QUARRY_BROKER_URL, QUARRY_ENGINE_URL) is used and not started.

    Example: quarry up
    """
    from pipeline.settings import get_settings

    console = err()
    settings = get_settings()
    try:
        if foreground:
            raise typer.Exit(_stay(settings, console))
        bring_up(settings, console, timeout=timeout)
    except ServiceError as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(1) from None


def bring_up(settings: Settings, console: Console, *, timeout: float = START_SECONDS) -> Settings:
    """Start what does not run yet, show how it comes up, return when everything answers. Raises ServiceError.

    Gives the settings that hold from now on: the model may have had to fall back.
    """
    from workers import control
    from workers.state import read_state

    settings.home.mkdir(parents=True, exist_ok=True)
    child = None
    if control.running(settings):
        state = read_state(settings)
        if state is not None and state.complete:
            console.print(f"Quarry is up already ({settings.home}).")
            if changed := _changed(settings, state):
                names = ", ".join(changed)
                console.print(f"{names}: started with other settings; `quarry down`, then `quarry up` apply these.")
            return _fresh_settings()
    else:
        settings = _with_models(settings, console)
        child = control.launch(settings)
    _watch(settings, console, child, time.monotonic() + timeout)
    console.print(f"Quarry is up ({settings.home}). `quarry status` shows it, `quarry down` stops it.")
    return _fresh_settings()


def _changed(settings: Settings, state: State) -> list[str]:
    """The services that a fresh start would start otherwise."""
    from workers.services import plan

    digests = {unit.name: unit.digest for unit in state.units}
    return [service.name for service in plan(settings) if service.digest(settings) != digests.get(service.name)]


def _fresh_settings() -> Settings:
    from pipeline.settings import get_settings

    get_settings.cache_clear()
    return get_settings()


def _stay(settings: Settings, console: Console) -> int:
    from workers.logs import set_up_logging
    from workers.supervisor import serve

    settings.home.mkdir(parents=True, exist_ok=True)
    settings = _with_models(settings, console)
    set_up_logging(settings)
    return serve(settings)


def _watch(settings: Settings, console: Console, child: subprocess.Popen[bytes] | None, deadline: float) -> None:
    """Until everything answers. Raises ServiceError when that will not come about."""
    from workers.processes import tail
    from workers.state import log_file

    shown: dict[str, str] = {}
    with Live(console=console, transient=True, auto_refresh=True) as live:
        while True:
            state = _state_of_running(settings)
            if state is not None:
                live.update(_progress_table(state.units))
                if not console.is_terminal:
                    _print_changes(console, state.units, shown)
                if state.complete:
                    return
                _give_up_if_hopeless(settings, state)
            elif child is not None and (code := child.poll()) is not None:
                from workers.supervisor import ALREADY_RUNNING

                if code != ALREADY_RUNNING:
                    raise ServiceError(f"the supervisor ended:\n{tail(log_file(settings, 'supervisor'))}")
                child = None  # another `up` was quicker: wait for that one's services
            if time.monotonic() > deadline:
                late = [unit.name for unit in state.units if unit.phase not in ("ready", "done")] if state else ["all"]
                raise ServiceError(f"still waiting for {', '.join(late)}: see {settings.home / 'logs'}")
            time.sleep(0.1)


def _state_of_running(settings: Settings) -> State | None:
    """The state, if its writer lives: a dead supervisor's notes say nothing about now."""
    from workers.processes import Identity
    from workers.state import read_state

    state = read_state(settings)
    return state if state is not None and Identity(state.pid, state.started).process() else None


def _give_up_if_hopeless(settings: Settings, state: State) -> None:
    from workers.processes import tail
    from workers.state import log_file

    for unit in state.units:
        if unit.phase == "resting" and unit.restarts >= HOPELESS_RESTARTS:
            raise ServiceError(
                f"{unit.name} {unit.detail}\n\n{tail(log_file(settings, unit.name))}\n\n"
                "It is tried again in the background. `quarry doctor` looks for causes, `quarry down` ends it."
            )


def _progress_table(units: Iterable[UnitState]) -> Table:
    table = Table.grid(padding=(0, 2))
    for unit in units:
        moving = unit.phase in ("starting", "waiting")
        sign: Any = (
            Spinner("dots") if unit.phase == "starting" else Text("✓" if unit.phase in ("ready", "done") else "·")
        )
        style = "" if moving else _STYLES.get(unit.phase, "")
        table.add_row(sign, unit.name, Text(unit.phase, style=style), Text(unit.detail, style="dim"))
    return table


def _print_changes(console: Console, units: Iterable[UnitState], shown: dict[str, str]) -> None:
    for unit in units:
        if shown.get(unit.name) != unit.phase and unit.phase not in ("waiting",):
            shown[unit.name] = unit.phase
            console.print(f"{unit.name}: {unit.phase}{' (' + unit.detail + ')' if unit.detail else ''}", markup=False)


def _with_models(settings: Settings, console: Console) -> Settings:
    """The settings with a model that is here. Raises ServiceError."""
    from inference.catalogue import CatalogueError

    if settings.engine_url is not None:
        return settings
    try:
        model = pull_model(settings.model, settings, console)
        if settings.embeddings_url is None:
            pull_model(settings.embedder, settings, console)
    except CatalogueError as error:
        raise ServiceError(str(error)) from None
    return settings.model_copy(update={"model": model})


def pull_model(name: str, settings: Settings, console: Console) -> str:
    """Bring a model of the catalogue here unless it is, with a progress bar. Returns its name: the small model's when
    the default can't be had. A path stays what it is. Raises `inference.catalogue.CatalogueError`."""
    from inference.catalogue import find, is_present

    if Path(name).expanduser().exists() or is_present(name, settings.home):
        return name
    model = find(name)
    from inference.pull import pull, pull_default
    from pipeline.settings import Settings

    console.print(f"Getting the model {name}, {model.size / 2**20:.0f} MiB ({model.licence}).", markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        bar = bars.add_task(name, total=model.size)

        def progress(done: int, total: int) -> None:
            bars.update(bar, completed=done, total=total)

        def notice(line: str) -> None:
            bars.console.print(line, style="yellow", markup=False)

        if name == Settings.model_fields["model"].default:
            return pull_default(name, settings.home, progress=progress, notice=notice)[0]
        pull(name, settings.home, progress=progress, notice=notice)
    return name


def down() -> None:
    """Stop all that `quarry up` started; the data stays. A second Ctrl-C does not wait for documents in hand.

    Example: quarry down
    """
    from pipeline.settings import get_settings
    from workers import control
    from workers.logs import set_up_logging

    console = err()
    settings = get_settings()
    set_up_logging(settings, at_least=logging.WARNING)
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    try:
        with console.status("stopping: documents in hand first"):
            stopped = control.bring_down(settings, hurry=lambda: bool(pressed))
    finally:
        signal.signal(signal.SIGINT, before)
    console.print("Quarry is down." if stopped else f"Quarry was not up ({settings.home}).")


def status(format: FormatOption = Format.TABLE) -> None:
    """What runs, since when, and how often it had to be started anew. Exit status 1 when something does not answer.

    Example: quarry status --format jsonl
    """
    from pipeline.settings import get_settings
    from workers.state import read_state

    settings = get_settings()
    state = read_state(settings)
    alive = _state_of_running(settings) is not None
    rows = [_status_row(unit) for unit in state.units] if state else []
    rows += _elsewhere(settings, {str(row["service"]) for row in rows})
    console = err()
    if state is not None and not alive:
        console.print(
            "The supervisor was killed; what it started goes on. `quarry up` takes it over, `quarry down` ends it.",
            style="yellow",
        )
    elif state is None:
        console.print(f"Quarry is not up ({settings.home}): run `quarry up`.", style="yellow")
    if rows:
        print_rows(list(rows[0]), rows, format)
    answers = all(row["state"] in ("ready", "done", "answers") for row in rows)
    raise typer.Exit(0 if alive and answers else 1)


def _status_row(unit: UnitState) -> dict[str, Any]:
    from workers.processes import Identity

    process = Identity(unit.pid, unit.started).process() if unit.pid and unit.started else None
    state = unit.phase
    if unit.pid and process is None:
        state = "dead"
    return {
        "service": unit.name,
        "state": state,
        "pid": unit.pid if process else None,
        "up": _duration(time.time() - unit.started) if process and unit.started else "",
        "restarts": unit.restarts,
        "detail": unit.detail,
    }


def _elsewhere(settings: Settings, known: set[str]) -> list[dict[str, Any]]:
    """Rows for what has a URL of its own."""
    from workers import doctor as doctor_checks
    from workers.logs import mask

    rows = []
    checks = {
        "postgres": (settings.database_url, doctor_checks.check_database),
        "redis": (settings.broker_url, doctor_checks.check_broker),
        "engine": (settings.engine_url, doctor_checks.check_engine),
    }
    for name, (url, check) in checks.items():
        if url and name not in known:
            first = next(check(settings))
            answers = "answers" if first.status is not doctor_checks.Status.FAIL else "silent"
            row = {"service": name, "state": answers, "pid": None, "up": "", "restarts": 0}
            rows.append(row | {"detail": mask(first.detail)})
    return rows


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def doctor(
    show_settings: Annotated[
        bool, typer.Option("--settings", help="Show the settings instead, without their secrets.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Check versions, servers, models, disk and device, and say for each fault what to do. Exit status 1 on a fault.

    Example: quarry doctor
    """
    from pipeline.settings import get_settings
    from workers import doctor as doctor_checks

    settings = get_settings()
    if show_settings:
        _print_settings(settings, format)
        return
    found = []
    with err().status("checking") as progress:
        for check in doctor_checks.run_checks(settings):
            found.append(check)
            progress.update(f"checking ({check.name}: {check.status})")
    rows = [{"check": c.name, "status": c.status.value, "found": c.detail, "what to do": c.fix} for c in found]
    print_rows(list(rows[0]), rows, format)
    if format is Format.TABLE:
        _print_settings(settings, format)
    raise typer.Exit(1 if any(check.status is doctor_checks.Status.FAIL for check in found) else 0)


def _print_settings(settings: Settings, format: Format) -> None:
    from workers import doctor as doctor_checks

    rows = [
        {"setting": name, "value": value, "from": "environment" if is_set else "default"}
        for name, value, is_set in doctor_checks.shown_settings(settings)
    ]
    print_rows(list(rows[0]), rows, format)
