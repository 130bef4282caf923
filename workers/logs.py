"""Logs: one line per event on standard error, as text or JSON, without secrets."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from pipeline.settings import Settings

MASK = "***"
_SECRET_NAME = re.compile(r"(password|passwd|secret|api_?key|secret_?key|authorization)$", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(?P<before>\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s@/]+(?=@)", re.IGNORECASE)
_QUIET = ("httpx", "httpcore", "trafilatura", "htmldate", "courlan", "kombu.connection")


def mask(value: Any, name: str = "") -> Any:
    """`value` without what must not be seen: passwords inside URLs, and all of it when `name` names a secret."""
    if _SECRET_NAME.search(name) and value:
        return MASK
    return _URL_PASSWORD.sub(rf"\g<before>{MASK}", value) if isinstance(value, str) else value


def _mask_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        event[name] = mask(value, name)
    return event


def set_up_logging(settings: Settings, *, at_least: int = logging.DEBUG) -> None:
    """Route structlog and the standard `logging` to standard error, from `log_level` or `at_least` upwards.

    Raises ValueError on an unknown level.
    """
    level = logging.getLevelNamesMapping().get(settings.log_level.upper())
    if level is None:
        raise ValueError(f"QUARRY_LOG_LEVEL is {settings.log_level!r}; use DEBUG, INFO, WARNING or ERROR")
    level = max(level, at_least)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.format_exc_info,
        _mask_event,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer: Any = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared[:-1], structlog.stdlib.ExtraAdder(), _mask_event],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _mask_event, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
