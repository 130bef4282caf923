"""The database side of an item's way: claim, do one step after the other, commit results and state together.

Policy (which step, when to try again) is here; what a step does to a text is in the modules of `pipeline`, which know
no database.
"""

from pipeline.flow.worker import Outcome, WorkerFlow

__all__ = ["Outcome", "WorkerFlow"]
