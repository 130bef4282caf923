"""The Celery app. Its tasks carry an item's id; what is to be done stands in the database.

python -m celery -A workers.app worker -Q ingest  --pool prefork -c 1
python -m celery -A workers.app worker -Q extract --pool threads -c 16
"""

from __future__ import annotations

from celery import Celery

from pipeline.messages import configuration
from pipeline.settings import get_settings

app = Celery("quarry", include=["workers.tasks"])
app.conf.update(configuration(get_settings().endpoint("broker_url")))
