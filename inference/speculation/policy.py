"""How long a draft is worth its rows: from how often such proposals came true, and from what a row costs.

A step of n rows takes a + b n seconds; with B requests in it, each token costs a / B + b. A row for a proposal that
comes true with probability p costs b and saves p (a / B + b): it pays while p > b / (a / B + b). Where the time goes
into reading weights, a is nearly all and everything pays; under full load b n is, and only the nearly certain does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.speculation.draft import Draft, Source

# Estimates forget: an observation counts for half after some 70 others.
KEEP = 0.99
PRIORS = {Source.FORCED: 0.98, Source.LOOKUP: 0.6, Source.MODEL: 0.7}
PRIOR_WEIGHT = 8.0


class Acceptance:
    """How often the proposals of one source came true lately. Those behind a wrong one say nothing."""

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._hits = 0.0
        self._tries = 0.0

    @property
    def rate(self) -> float:
        return (self._hits + PRIOR_WEIGHT * self._prior) / (self._tries + PRIOR_WEIGHT)

    def observe(self, hit: bool) -> None:
        self._hits = KEEP * self._hits + hit
        self._tries = KEEP * self._tries + 1

    def fade(self) -> None:
        """Forget a little without an observation, so that what was given up is tried again some time."""
        self._hits *= KEEP
        self._tries *= KEEP


@dataclass
class StepTime:
    """The line seconds = fixed + per_row * rows through recent steps, by least squares that forget."""

    count: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    rows_rows: float = 0.0
    rows_seconds: float = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        self.count = KEEP * self.count + 1
        self.rows = KEEP * self.rows + rows
        self.seconds = KEEP * self.seconds + seconds
        self.rows_rows = KEEP * self.rows_rows + rows * rows
        self.rows_seconds = KEEP * self.rows_seconds + rows * seconds

    def line(self) -> tuple[float, float]:
        """(fixed, per_row), neither below 0. While all steps were of one size, half of the time is taken for each."""
        if not self.count:
            return 0.5, 0.5
        rows, seconds = self.rows / self.count, self.seconds / self.count
        variance = self.rows_rows / self.count - rows * rows
        if variance <= 0.01 * rows * rows:
            return seconds / 2, seconds / 2 / rows
        covariance = self.rows_seconds / self.count - rows * seconds
        per_row = min(max(covariance / variance, 0.0), seconds / rows)
        return seconds - per_row * rows, per_row


@dataclass
class Policy:
    acceptance: dict[Source, Acceptance] = field(
        default_factory=lambda: {source: Acceptance(prior) for source, prior in PRIORS.items()}
    )
    step: StepTime = field(default_factory=StepTime)
    draft_seconds: float = 0.0  # of one step of the draft model, lately

    def length(self, draft: Draft, batch: int) -> int:
        """How many leading tokens of a draft pay in a step with `batch` requests."""
        least = self._least(batch)
        chance = 1.0
        for index, source in enumerate(draft.sources):
            chance *= self.acceptance[source].rate
            if chance <= least:
                return index
        return len(draft)

    def model_length(self, limit: int, batch: int) -> int:
        """How many tokens the draft model should propose for each of `batch` requests: what makes most tokens a second
        (Leviathan et al. 2023), 0 when plain decoding does."""
        fixed, per_row = self.step.line()
        rate = self.acceptance[Source.MODEL].rate
        best, best_speed = 0, 1 / (fixed + per_row * batch)
        tokens = 1.0
        for length in range(1, limit + 1):
            tokens += rate**length
            speed = tokens / (fixed + per_row * batch * (1 + length) + self.draft_seconds * length)
            if speed > best_speed:
                best, best_speed = length, speed
        return best

    def observe(self, draft: Draft, accepted: int) -> None:
        """Of a verified draft the first `accepted` tokens came true and the next one, if there is one, did not."""
        for source in draft.sources[:accepted]:
            self.acceptance[source].observe(True)
        for source in draft.sources[accepted : accepted + 1]:
            self.acceptance[source].observe(False)

    def note_step(self, rows: int, seconds: float) -> None:
        self.step.observe(rows, seconds)
        for acceptance in self.acceptance.values():
            acceptance.fade()

    def note_draft_step(self, seconds: float) -> None:
        self.draft_seconds = seconds if not self.draft_seconds else 0.9 * self.draft_seconds + 0.1 * seconds

    def _least(self, batch: int) -> float:
        fixed, per_row = self.step.line()
        return per_row / (fixed / batch + per_row) if per_row else 0.0
