"""What the supervisor writes down for others to read: `run/state.json`, and where its files are."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.settings import Settings


@dataclass(frozen=True)
class UnitState:
    """One service as last seen. `digest` stands for its command and settings."""

    name: str
    phase: str  # waiting, starting, ready, resting, done, stopped
    pid: int | None = None
    started: float | None = None  # of the process, seconds since the epoch
    restarts: int = 0
    detail: str = ""
    digest: str = ""


@dataclass(frozen=True)
class State:
    """The supervisor's process and its services, in the order of starting."""

    pid: int = 0
    started: float = 0.0
    units: tuple[UnitState, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"pid": self.pid, "started": self.started, "units": [asdict(unit) for unit in self.units]}

    @property
    def complete(self) -> bool:
        """Everything answers."""
        return bool(self.units) and all(unit.phase in ("ready", "done") for unit in self.units)


def state_file(settings: Settings) -> Path:
    return settings.run_dir / "state.json"


def lock_file(settings: Settings) -> Path:
    return settings.run_dir / "supervisor.lock"


def log_file(settings: Settings, name: str) -> Path:
    return settings.home / "logs" / f"{name}.log"


def read_state(settings: Settings) -> State | None:
    """None when nothing was ever started, or all of it was stopped in order."""
    try:
        found = json.loads(state_file(settings).read_text())
        units = tuple(UnitState(**unit) for unit in found["units"])
        return State(int(found["pid"]), float(found["started"]), units)
    except (OSError, ValueError, KeyError, TypeError):
        return None
