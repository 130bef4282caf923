"""The tables of the PostgreSQL schema `quarry`, one noun per module. Migrations build them; a test compares the two."""

from db.models.base import SCHEMA, Base
from db.models.documents import Blob, Chunk, CleanText, Document, EmbeddingModel
from db.models.jobs import INGESTING, OPEN, TERMINAL, DeadLetter, ItemState, Job, JobItem, JobState, Outbox, Step
from db.models.results import Entity, EntityMerge, Mention, Run
from db.models.schemas import ExtractionSchema
from db.models.spans import Span

__all__ = [
    "INGESTING",
    "OPEN",
    "SCHEMA",
    "TERMINAL",
    "Base",
    "Blob",
    "Chunk",
    "CleanText",
    "DeadLetter",
    "Document",
    "EmbeddingModel",
    "Entity",
    "EntityMerge",
    "ExtractionSchema",
    "ItemState",
    "Job",
    "JobItem",
    "JobState",
    "Mention",
    "Outbox",
    "Run",
    "Span",
    "Step",
]
