"""How a document's work can go wrong: for good, or for now."""

from __future__ import annotations


class PipelineError(Exception):
    """Base of both kinds. `reason` is a short code for grouping, `detail` says it in words for a reader."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.reason, self.detail)


class DocumentError(PipelineError):
    """The same input fails again: the item ends as failed with `reason`, and nothing is retried."""


class TransientError(PipelineError):
    """Trying later may help. `retry_after` is in seconds where the other side named a time."""

    def __init__(self, detail: str, *, reason: str = "engine_unavailable", retry_after: float | None = None) -> None:
        super().__init__(reason, detail)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_transient, (self.detail, self.reason, self.retry_after)


def _rebuild_transient(detail: str, reason: str, retry_after: float | None) -> TransientError:
    return TransientError(detail, reason=reason, retry_after=retry_after)
