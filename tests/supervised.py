"""Services of a few lines of shell for the supervisor's tests; as a program, a supervisor of them in a process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pipeline.settings import Settings
from workers.services import Service
from workers.supervisor import serve

# Its child `sleep` outlives it when it is killed: such children are to be found and ended too.
SCRIPT = """
echo $$ >> {folder}/{name}.starts
trap 'echo {name} >> {folder}/stopped; exit 0' TERM
while :; do sleep 1000 & wait $!; done
"""


def fake(folder: Path, name: str, script: str = SCRIPT, **options: Any) -> Service:
    """A service that writes its pid to NAME.starts, ends at SIGTERM, and answers once NAME.starts is there."""
    text = script.format(folder=folder, name=name)
    options.setdefault("ready", (folder / f"{name}.starts").exists)
    return Service(name=name, command=lambda: ["sh", "-c", text], **options)


def fakes(folder: Path) -> list[Service]:
    """`base` under `middle` under two leaves; `base` has an address."""
    return [
        fake(folder, "base", endpoint=("broker_url", lambda: "redis://base")),
        fake(folder, "middle", needs=("base",)),
        fake(folder, "left", needs=("middle",)),
        fake(folder, "right", needs=("base", "middle")),
    ]


def starts(folder: Path, name: str) -> list[int]:
    """The pids under which the service was started, oldest first."""
    try:
        return [int(line) for line in (folder / f"{name}.starts").read_text().split()]
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    home = Path(sys.argv[1])
    sys.exit(serve(Settings(home=home), fakes(home)))
