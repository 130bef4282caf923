"""The engine: requests in, tokens out. Executor, scheduler, paged KV, models, grammar, HTTP server, embedder.

Scheduler and memory import no torch. Nothing here knows a document or a database."""

import os

# OpenMP reads this once, when torch is loaded. Its default is that idle threads spin; where other processes want the
# same cores (workers, a database), a spinning thread keeps its own partner from running: measured with two busy
# neighbours on two cores, a decode step took 720 ms with spinning and 95 ms without.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
