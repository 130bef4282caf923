"""A small OTLP/HTTP receiver: takes spans as Langfuse does, decodes them, and can be slow or broken."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Received:
    """A decoded span; ids are hex."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int  # nanoseconds
    end: int
    attributes: dict[str, Any]


@dataclass
class Receiver:
    url: str
    spans: list[Received] = field(default_factory=list)
    authorization: set[str] = field(default_factory=set)
    delay_seconds: float = 0.0
    status: int = 200
    requests: int = 0

    def wait_for(self, count: int, seconds: float = 10.0) -> list[Received]:
        """The spans once there are `count`; what there is when the time is over."""
        end = time.monotonic() + seconds
        while len(self.spans) < count and time.monotonic() < end:
            time.sleep(0.02)
        return self.spans

    def wait_for_requests(self, count: int, seconds: float = 10.0) -> None:
        """Until `count` requests have come, answered or not."""
        end = time.monotonic() + seconds
        while self.requests < count and time.monotonic() < end:
            time.sleep(0.02)


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Run one on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.requests += 1
            found.authorization.add(self.headers.get("Authorization", ""))
            time.sleep(found.delay_seconds)
            if found.status == 200:
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                found.spans += _decode(body)
            self.send_response(found.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


def _decode(body: bytes) -> list[Received]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Received(
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            start=span.start_time_unix_nano,
            end=span.end_time_unix_nano,
            attributes={item.key: _value(item.value) for item in span.attributes},
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)
