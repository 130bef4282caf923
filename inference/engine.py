"""The loop: propose, plan, launch, digest, reply.

Owned by one thread. What callers hand in (new requests, cancellations) waits in an inbox until the next step starts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter

import torch

from inference.config import EngineConfig
from inference.grammar import fill_draft_masks
from inference.memory.pages import PagePool
from inference.plan import LogitsRow, Plan, Scheduled
from inference.request import FinishReason, Response, TokenLogprob, Usage
from inference.runner import Runner
from inference.sampling import Masks, Sample, SamplingRow, sample
from inference.scheduler import Scheduler
from inference.sequence import Sequence
from inference.speculation.draft import Draft, Source
from inference.speculation.speculator import Speculator
from inference.stats import EngineStats

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Failed:
    """A row that could not be sampled, and why. It fails its own request only."""

    error: str


@dataclass
class _Taken:
    """What a step gives one request: tokens to show, and why it ends, if it does. `last` counts end tokens too."""

    last: int | None = None
    shown: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: FinishReason | None = None
    error: str | None = None


class Engine:
    """Scheduler, memory and model together; `step` advances every running request."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        deliver: Callable[[list[Response]], None],
        vocab_size: int,
        eos: set[int],
    ) -> None:
        """`deliver` gets the responses of each step once it is over."""
        self._config = config
        self._runner = runner
        self._deliver = deliver
        self._vocab_size = vocab_size
        self._eos = eos
        self._alive: dict[str, Sequence] = {}
        self._replies: list[Response] = []
        self._drafts: dict[str, Draft] = {}  # of the step under way
        self._filler = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self.scheduler = self._fresh_scheduler()
        self.speculator = Speculator(
            {Source(name) for name in config.speculation},
            max_draft_tokens=config.max_draft_tokens,
            max_model_len=runner.max_model_len,
            draft_model=runner.draft_model,
        )
        self.stats = EngineStats(pages_total=runner.pages, pages_free=runner.pages)

    def _fresh_scheduler(self) -> Scheduler:
        return Scheduler(
            PagePool(self._runner.pages),
            page_size=self._config.page_size,
            max_num_seqs=self._config.max_num_seqs,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
            prefix_cache=self._config.prefix_cache,
        )

    @property
    def idle(self) -> bool:
        return not self._alive

    # Arrivals and departures

    def add(self, sequence: Sequence) -> None:
        self._alive[sequence.request.id] = sequence
        self.scheduler.add(sequence)

    def end(self, request_id: str, reason: FinishReason, error: str | None = None) -> None:
        """Finish a request now, wherever it stands; nothing when it is gone already."""
        if (sequence := self._alive.get(request_id)) is not None:
            self._finish(sequence, reason, error=error)

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        for request_id in list(self._alive):
            self.end(request_id, reason, error)

    def fail(self, error: str) -> None:
        """After an error that no request can be blamed for: end all of them and start afresh, with an empty cache."""
        lost, self._alive = self._alive, {}
        self.scheduler = self._fresh_scheduler()
        for sequence in lost.values():
            self.speculator.forget(sequence)
        self._replies += [
            Response(sequence.request.id, finish_reason=FinishReason.ERROR, usage=self._usage(sequence), error=error)
            for sequence in lost.values()
        ]
        self._flush()

    def close(self) -> None:
        self._filler.shutdown()

    # One step

    def step(self) -> None:
        """Advance all that can advance, then deliver. An error of the model fails the requests in the step and no
        others."""
        self._time_out()
        plan = self._plan()
        seconds = self._run(plan) if plan else 0.0
        self._note(seconds, plan)
        self._flush()

    def _plan(self) -> Plan:
        try:
            drafts = self.speculator.propose(self.scheduler.decoding())
        except Exception:
            # Drafts only save time: without them every request goes on as it would.
            log.exception("no drafts in this step")
            drafts = {}
        self._drafts = drafts
        return self.scheduler.plan({request_id: draft.tokens for request_id, draft in drafts.items()})

    def _run(self, plan: Plan) -> float:
        """Launch and digest a plan -> seconds on the device."""
        now = time.monotonic()
        for item in plan:
            if item.sequence.started_at is None:
                item.sequence.started_at = now
        try:
            samples = self._launch(plan)
        except Exception as error:
            log.exception("a step of %d tokens failed", plan.tokens)
            for item in plan:
                self._finish(item.sequence, FinishReason.ERROR, error=f"the engine failed in a step: {error}")
            return time.monotonic() - now
        seconds = time.monotonic() - now
        self._digest(plan, samples, seconds)
        return seconds

    def _flush(self) -> None:
        """Replies go out when the figures are up to date, so that who has the last response sees them."""
        replies, self._replies = self._replies, []
        if replies:
            self._deliver(replies)

    def _launch(self, plan: Plan) -> list[Sample | _Failed]:
        rows = plan.logits  # fixed before anything is sampled
        filling = self._start_masks(rows)
        logits = self._runner.forward(plan)
        masks, failed = filling.result() if filling else (None, {})
        if not rows:
            return []
        ways = [SamplingRow.behind(row.scheduled.sequence, row.scheduled.draft[: row.ahead]) for row in rows]
        with torch.inference_mode():
            samples: list[Sample | _Failed] = [*sample(logits, ways, masks, self._vocab_size, self._eos)]
        for index, error in failed.items():
            samples[index] = _Failed(error)
        return samples

    def _start_masks(self, rows: tuple[LogitsRow, ...]) -> Future[tuple[Masks, dict[int, str]]] | None:
        """Fill the masks beside the forward: they need only tokens that are committed already, and drafts."""
        constrained = [row for row in rows if row.scheduled.sequence.matcher is not None]
        if not constrained:
            return None
        # A matcher fills the lines of its whole draft, in the order of its rows.
        drafted = [(row.scheduled.sequence.matcher, row.scheduled.draft) for row in constrained if not row.ahead]

        def fill() -> tuple[Masks, dict[int, str]]:
            words, errors = fill_draft_masks(drafted, self._runner.model.config.vocab_size)
            failed = {constrained[line].index: error for line, error in errors.items()}
            for row, line in zip(constrained, words, strict=True):
                if not line.any():
                    failed.setdefault(row.index, "the grammar allows no token here")
            return Masks([row.index for row in constrained], torch.from_numpy(words)), failed

        return self._filler.submit(fill)

    def _digest(self, plan: Plan, samples: list[Sample | _Failed], seconds: float) -> None:
        total = plan.tokens
        for item in plan:
            item.sequence.device_seconds += seconds * item.count / total
            self.scheduler.commit(item)
        for item, rows in groupby(plan.logits, key=attrgetter("scheduled")):
            results = [samples[row.index] for row in rows]
            if item.sequence.epoch == item.epoch:
                self._verify(item, results)

    def _verify(self, item: Scheduled, results: list[Sample | _Failed]) -> None:
        """Commit what was chosen behind the sequence and, as long as the draft foresaw it, behind the draft."""
        sequence, taken, accepted = item.sequence, _Taken(), 0
        for ahead, result in enumerate(results):
            self._take(sequence, result, taken)
            foreseen = ahead < len(item.draft) and taken.last == item.draft[ahead]
            accepted += foreseen
            if taken.reason is not None or not foreseen:
                break
        sequence.accepted_draft_tokens += accepted
        self._count(item, accepted)
        if taken.reason is None:
            self.scheduler.accept(item, accepted)
            shown, logprobs = tuple(taken.shown), tuple(taken.logprobs)
            self._replies.append(Response(sequence.request.id, shown, logprobs, usage=self._usage(sequence)))
        else:
            self._finish(sequence, taken.reason, tuple(taken.shown), tuple(taken.logprobs), taken.error)

    def _count(self, item: Scheduled, accepted: int) -> None:
        if item.draft:
            self.speculator.observe(self._drafts[item.sequence.request.id], len(item.draft), accepted)
        self.stats = replace(
            self.stats,
            forwards=self.stats.forwards + 1,
            draft_tokens=self.stats.draft_tokens + len(item.draft),
            accepted_draft_tokens=self.stats.accepted_draft_tokens + accepted,
        )

    def _take(self, sequence: Sequence, result: Sample | _Failed, taken: _Taken) -> None:
        """Commit one chosen token; `taken` gets it, and a reason when it is the last."""
        if isinstance(result, _Failed):
            taken.reason, taken.error = FinishReason.ERROR, result.error
            return
        sampling = sequence.request.sampling
        if sequence.first_token_at is None:
            sequence.first_token_at = time.monotonic()
        sequence.tokens.append(result.token)
        taken.last = result.token
        if (result.token in self._eos and not sampling.ignore_eos) or result.token in sampling.stop_token_ids:
            taken.reason = FinishReason.STOP  # the end token is counted and not shown
            return
        if sequence.matcher is not None:
            if not sequence.matcher.consume(result.token):
                taken.reason, taken.error = FinishReason.ERROR, f"the grammar failed: {sequence.matcher.error}"
                return
            if sequence.matcher.stopped:
                taken.reason = FinishReason.STOP
        taken.shown.append(result.token)
        if result.logprob is not None:
            taken.logprobs.append(result.logprob)
        if taken.reason is None and (
            sequence.output_length >= sampling.max_tokens or len(sequence.tokens) >= self._runner.max_model_len
        ):
            taken.reason = FinishReason.LENGTH

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
        error: str | None = None,
    ) -> None:
        if self._alive.pop(sequence.request.id, None) is None:
            return
        self.scheduler.remove(sequence)
        self.speculator.forget(sequence)
        usage = self._usage(sequence)
        self.stats = replace(
            self.stats,
            prompt_tokens=self.stats.prompt_tokens + usage.prompt_tokens,
            cached_tokens=self.stats.cached_tokens + usage.cached_tokens,
            completion_tokens=self.stats.completion_tokens + usage.completion_tokens,
        )
        self._replies.append(Response(sequence.request.id, tokens, logprobs, reason, usage, error))

    def _usage(self, sequence: Sequence) -> Usage:
        started = sequence.started_at if sequence.started_at is not None else time.monotonic()
        first = sequence.first_token_at
        return Usage(
            prompt_tokens=sequence.prompt_length,
            cached_tokens=sequence.cached_tokens,
            completion_tokens=sequence.output_length,
            accepted_draft_tokens=sequence.accepted_draft_tokens,
            device_seconds=sequence.device_seconds,
            queue_seconds=started - sequence.enqueued_at,
            ttft_seconds=None if first is None else first - sequence.enqueued_at,
        )

    def _time_out(self) -> None:
        now = time.monotonic()
        for sequence in list(self._alive.values()):
            if sequence.overdue(now):
                error = f"not finished within {sequence.request.timeout_seconds:g} s"
                self._finish(sequence, FinishReason.TIMEOUT, error=error)

    def _note(self, seconds: float, plan: Plan) -> None:
        if plan:
            self.speculator.policy.note_step(plan.tokens, seconds)
        self.stats = replace(
            self.stats,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            pages_free=self.scheduler.pool.free,
            pages_cached=self.scheduler.pool.cached,
            pages_owned=self.scheduler.pool.owned,
            steps=self.stats.steps + bool(plan),
            step_seconds=self.stats.step_seconds + seconds,
            step_tokens=self.stats.step_tokens + plan.tokens,
            preemptions=self.scheduler.preemptions,
        )
