"""What Prometheus reads from /metrics: requests counted here, the engine's own figures taken from its snapshot."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inference.core.client import CoreClient, State
from inference.request import Usage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class _EngineCollector(Collector):
    def __init__(self, core: CoreClient) -> None:
        self._core = core

    def collect(self) -> Iterable[Metric]:
        stats = self._core.stats()
        gauges: dict[str, tuple[str, float]] = {
            "up": ("Whether the core runs and takes requests", self._core.state is State.UP),
            "requests_running": ("Requests in the batch", stats.running),
            "requests_waiting": ("Requests waiting for a place in the batch", stats.waiting),
            "pages_total": ("Pages of the KV cache", stats.pages_total),
            "pages_free": ("Pages that hold nothing", stats.pages_free),
            "pages_cached": ("Pages kept for prefix reuse", stats.pages_cached),
            "pages_owned": ("Pages held by running requests", stats.pages_owned),
        }
        counters: dict[str, tuple[str, float]] = {
            "restarts": ("Starts of a core after another had crashed", self._core.restarts),
            "steps": ("Steps of the engine's loop", stats.steps),
            "step_seconds": ("Seconds spent in steps", stats.step_seconds),
            "step_tokens": ("Tokens computed in steps", stats.step_tokens),
            "prompt_tokens": ("Prompt tokens of ended requests", stats.prompt_tokens),
            "cached_tokens": ("Prompt tokens that were not computed again", stats.cached_tokens),
            "completion_tokens": ("Generated tokens of ended requests", stats.completion_tokens),
            "forwards": ("Forwards that chose tokens, one for each request in a step", stats.forwards),
            "draft_tokens": ("Tokens proposed and verified", stats.draft_tokens),
            "accepted_draft_tokens": ("Proposed tokens that were right", stats.accepted_draft_tokens),
            "preemptions": ("Sequences that had to give their pages back", stats.preemptions),
        }
        for name, (help_text, value) in gauges.items():
            yield GaugeMetricFamily(f"quarry_engine_{name}", help_text, value=value)
        for name, (help_text, value) in counters.items():
            yield CounterMetricFamily(f"quarry_engine_{name}", help_text, value=value)


class Metrics:
    """One registry per server, so that several can live in a process."""

    def __init__(self, core: CoreClient) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "quarry_http_requests", "Requests answered", ("endpoint", "outcome"), registry=self._registry
        )
        self._ttft = Histogram(
            "quarry_ttft_seconds", "From arrival to the first token", buckets=_SECONDS, registry=self._registry
        )
        self._queue = Histogram(
            "quarry_queue_seconds", "From arrival to the first step", buckets=_SECONDS, registry=self._registry
        )
        self._registry.register(_EngineCollector(core))

    def answered(self, endpoint: str, outcome: str) -> None:
        """`outcome` is a finish reason, an HTTP status, or `disconnected`."""
        self._requests.labels(endpoint, outcome).inc()

    def finished(self, usage: Usage) -> None:
        self._queue.observe(usage.queue_seconds)
        if usage.ttft_seconds is not None:
            self._ttft.observe(usage.ttft_seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)
