"""The engine's core, in a process of its own, and the end of it that others hold.

    front or Executor ── client.py ──▶ frames of messages.py over a socket ──▶ loop.py around inference.engine (torch)
                                                                               process.py starts and ends it

`link.py` is one core's connection, which notices its end, `client.py` what outlives it. The core never waits for its
client. None of them but `loop` imports torch."""
