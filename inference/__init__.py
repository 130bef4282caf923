"""The engine: requests in, tokens out. Executor, scheduler, paged KV, models, grammar, HTTP server, embedder.

Scheduler and memory import no torch. Nothing here knows a document or a database."""
