"""The Celery app. Its tasks carry an item's id; what is to be done stands in the database.

python -m celery -A workers.app worker -Q ingest  --pool prefork -c 1
python -m celery -A workers.app worker -Q extract --pool threads -c 16
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import setup_logging

from pipeline.messages import configuration
from pipeline.settings import get_settings
from workers.logs import set_up_logging

app = Celery("quarry", include=["workers.tasks"])
app.conf.update(configuration(get_settings().endpoint("broker_url")))


@setup_logging.connect
def _logging(**_: Any) -> None:
    """In place of Celery's own, whose lines know neither job nor item."""
    set_up_logging(get_settings())
