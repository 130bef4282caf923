"""Messages to the workers. They carry an item's id and nothing else; the outbox in the database is the truth.

A broker that is down delays them: what stays unsent is sent by the sweeper.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from sqlalchemy import Engine

from db.models import Step
from db.named import Queries

TASKS = {Step.INGEST: "quarry.ingest", Step.EXTRACT: "quarry.extract"}
BATCH = 500  # messages per transaction
_ITEMS = Queries("items")


class BrokerDown(ConnectionError):
    """The broker does not answer. Nothing is lost: the outbox keeps what was to be sent."""


def configuration(broker_url: str) -> dict[str, Any]:
    """Celery's settings, the same for those who send and those who receive."""
    return {
        "broker_url": broker_url,
        "broker_connection_timeout": 5,
        "broker_connection_retry_on_startup": True,
        "broker_transport_options": {
            "queue_order_strategy": "priority",
            "priority_steps": list(range(10)),
            "visibility_timeout": 3600,  # leases decide, not Redis: a late second delivery finds nothing to do
            "socket_connect_timeout": 5,
            "socket_timeout": 30,
            "socket_keepalive": True,
        },
        "task_ignore_result": True,
        "result_backend": None,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_default_queue": Step.INGEST.value,
        "task_routes": {name: {"queue": step.value} for step, name in TASKS.items()},
        "task_default_priority": 0,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        "worker_send_task_events": False,
        "enable_utc": True,
    }


class Sender:
    """Puts messages into the broker. Thread-safe: Celery pools its connections."""

    def __init__(self, broker_url: str) -> None:
        self._app = Celery("quarry-sender", set_as_current=False)
        self._app.conf.update(configuration(broker_url))
        # A sender does not wait for a broker that is down: the sweeper will come by.
        self._app.conf.broker_transport_options |= {"max_retries": 1, "interval_start": 0.1, "interval_max": 0.1}

    def dispatch(self, engine: Engine, *, item_id: int | None = None, limit: int | None = None) -> int:
        """Send what is due and unsent, in batches, and mark it. Returns how many. Raises BrokerDown.

        A crash between sending and marking sends a message twice, which a claim makes harmless.
        """
        sent = 0
        while limit is None or sent < limit:
            batch = BATCH if limit is None else min(BATCH, limit - sent)
            with engine.begin() as connection:
                rows = connection.execute(_ITEMS.unsent, {"batch": batch, "item_id": item_id}).all()
                if rows:
                    self._send([(row.task, row.item_id, row.priority) for row in rows])
                    connection.execute(_ITEMS.mark_sent, {"ids": [row.id for row in rows]})
            sent += len(rows)
            if len(rows) < batch:
                break
        return sent

    def depth(self, step: Step) -> int:
        """Messages in the step's queue, without those that workers have taken. Raises BrokerDown."""
        try:
            with self._app.connection_for_read() as connection, connection.channel() as channel:
                return int(channel.queue_declare(queue=step.value, durable=True).message_count)
        except (OperationalError, OSError, *self._app.connection_for_read().connection_errors) as error:
            raise BrokerDown(f"the broker does not answer: {error}") from error

    def close(self) -> None:
        self._app.close()

    def _send(self, messages: list[tuple[str, int, int]]) -> None:
        try:
            with self._app.producer_or_acquire() as producer:
                for task, item_id, priority in messages:
                    self._app.send_task(
                        TASKS[Step(task)],
                        args=[item_id],
                        queue=task,
                        priority=priority,
                        producer=producer,
                        retry=False,
                        ignore_result=True,
                    )
        except (OperationalError, OSError, *self._app.connection_for_write().connection_errors) as error:
            raise BrokerDown(f"the broker does not answer: {error}") from error
