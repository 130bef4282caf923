"""How soon a place in a full queue will be free, from how fast requests have been ending."""

from __future__ import annotations

from collections import deque

WINDOW = 64  # ends that the rate is measured over
UNKNOWN_SECONDS = 1.0  # when none has ended yet
LONGEST_SECONDS = 60.0


class Pace:
    """Counts ends and refusals. Times are seconds on the monotonic clock."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=WINDOW)
        self._refused = 0  # told to come back, for whom no place has been freed yet

    def ended(self, now: float) -> None:
        """A request has ended, whatever its reason: its place is free."""
        self._ends.append(now)
        self._refused = max(0, self._refused - 1)

    def refuse(self, now: float) -> float:
        """Seconds after which one more refused client should come back: each gets its own place in time, so that they
        don't all return for the first one that is free."""
        self._refused += 1
        if not self._ends:
            return UNKNOWN_SECONDS
        # Up to now, not up to the last end: an engine that ends nothing gets slower.
        seconds_each = (now - self._ends[0]) / len(self._ends)
        return min(self._refused * seconds_each, LONGEST_SECONDS)
