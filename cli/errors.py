"""Errors as a person reads them: one line with the next step, and the exit status that goes with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

DONE, FAILED, WRONG_USE = 0, 1, 2
OUR_PACKAGES = ("cli", "db", "pipeline", "workers", "inference", "bench")  # their errors are written for readers


class UsageError(ValueError):
    """The command was used wrongly. The message says what would be right."""


def explain(error: Exception) -> tuple[int, str]:
    """Exit status and words: 2 for wrong use, 1 for what is down or broken."""
    # Imported when something went wrong, not at every start.
    import pydantic
    from sqlalchemy.exc import ArgumentError

    from pipeline.errors import PipelineError
    from pipeline.settings import Settings

    if isinstance(error, pydantic.ValidationError) and error.title == Settings.__name__:
        return WRONG_USE, _settings(error)
    if isinstance(error, ArgumentError):
        return WRONG_USE, "QUARRY_DATABASE_URL is no database address: write postgresql://user:password@host:5432/name"
    if isinstance(error, PipelineError):
        return FAILED, f"{error.detail}{_next_step(error.reason)}"
    ours = type(error).__module__.partition(".")[0] in OUR_PACKAGES
    if type(error) is ValueError or (ours and isinstance(error, ValueError | LookupError)):
        return WRONG_USE, str(error)
    if ours or isinstance(error, OSError):
        return FAILED, str(error)
    return FAILED, f"{type(error).__name__}: {error} (a mistake of the program; `quarry --debug …` shows where)"


def _settings(error: ValidationError) -> str:
    """Which variable, what it holds, what it may hold."""
    faults = []
    for fault in error.errors(include_url=False):
        name = str(fault["loc"][0])
        variable = name if name.startswith("LANGFUSE_") else f"QUARRY_{name.upper()}"
        faults.append(f"{variable}={fault['input']}: {fault['msg'][0].lower()}{fault['msg'][1:]}")
    return f"{'; '.join(faults)} (docs/settings.md lists the settings)"


def _next_step(reason: str) -> str:
    if reason.startswith("engine"):
        return ": `quarry status` shows whether it runs, `quarry up` starts it; or check QUARRY_ENGINE_URL"
    return ""
