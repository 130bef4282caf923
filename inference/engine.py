"""The loop: plan, launch, digest, reply.

Owned by one thread. What callers hand in (new requests, cancellations) waits in an inbox until the next step starts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from inference.config import EngineConfig
from inference.grammar import fill_masks
from inference.memory.pages import PagePool
from inference.plan import LogitsRow, Plan
from inference.request import FinishReason, Response, TokenLogprob, Usage
from inference.runner import Runner
from inference.sampling import Masks, Sample, SamplingRow, sample
from inference.scheduler import Scheduler
from inference.sequence import Sequence
from inference.stats import EngineStats

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Failed:
    """A row that could not be sampled, and why. It fails its own request only."""

    error: str


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
        self._filler = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self.scheduler = self._fresh_scheduler()
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
        plan = self.scheduler.plan()
        seconds = self._run(plan) if plan else 0.0
        self._note(seconds, plan)
        self._flush()

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
        ways = [SamplingRow.behind(row.scheduled.sequence) for row in rows]
        with torch.inference_mode():
            samples: list[Sample | _Failed] = [*sample(logits, ways, masks, self._vocab_size, self._eos)]
        for index, error in failed.items():
            samples[index] = _Failed(error)
        return samples

    def _start_masks(self, rows: tuple[LogitsRow, ...]) -> Future[tuple[Masks, dict[int, str]]] | None:
        """Fill the masks beside the forward: they need only tokens that are committed already."""
        constrained = [(row.index, m) for row in rows if (m := row.scheduled.sequence.matcher) is not None]
        if not constrained:
            return None

        def fill() -> tuple[Masks, dict[int, str]]:
            words = fill_masks([matcher for _, matcher in constrained], self._runner.model.config.vocab_size)
            failed = {index: error for index, matcher in constrained if (error := matcher.error)}
            for (index, _), line in zip(constrained, words, strict=True):
                if index not in failed and not line.any():
                    failed[index] = "the grammar allows no token here"
            return Masks([index for index, _ in constrained], torch.from_numpy(words)), failed

        return self._filler.submit(fill)

    def _digest(self, plan: Plan, samples: list[Sample | _Failed], seconds: float) -> None:
        total = plan.tokens
        for item in plan:
            item.sequence.device_seconds += seconds * item.count / total
            self.scheduler.commit(item)
        for row, result in zip(plan.logits, samples, strict=True):
            sequence = row.scheduled.sequence
            if sequence.epoch != row.scheduled.epoch:
                continue
            if isinstance(result, _Failed):
                self._finish(sequence, FinishReason.ERROR, error=result.error)
            else:
                self._take(sequence, result)

    def _take(self, sequence: Sequence, result: Sample) -> None:
        """Commit one sampled token, and end the request when it is the last."""
        sampling = sequence.request.sampling
        if sequence.first_token_at is None:
            sequence.first_token_at = time.monotonic()
        stops = (result.token in self._eos and not sampling.ignore_eos) or result.token in sampling.stop_token_ids
        if stops:
            # The end token is counted and not shown.
            sequence.tokens.append(result.token)
            self._finish(sequence, FinishReason.STOP)
            return
        sequence.tokens.append(result.token)
        reason: FinishReason | None = None
        if sequence.matcher is not None:
            if not sequence.matcher.consume(result.token):
                self._finish(sequence, FinishReason.ERROR, error=f"the grammar failed: {sequence.matcher.error}")
                return
            if sequence.matcher.stopped:
                reason = FinishReason.STOP
        if reason is None and (
            sequence.output_length >= sampling.max_tokens or len(sequence.tokens) >= self._runner.max_model_len
        ):
            reason = FinishReason.LENGTH
        shown = (result.token,)
        logprobs = (result.logprob,) if result.logprob else ()
        if reason is None:
            self._replies.append(Response(sequence.request.id, shown, logprobs, usage=self._usage(sequence)))
        else:
            self._finish(sequence, reason, shown, logprobs)

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
            device_seconds=sequence.device_seconds,
            queue_seconds=started - sequence.enqueued_at,
            ttft_seconds=None if first is None else first - sequence.enqueued_at,
        )

    def _time_out(self) -> None:
        now = time.monotonic()
        for sequence in list(self._alive.values()):
            limit = sequence.request.timeout_seconds
            if limit is not None and now - sequence.enqueued_at > limit:
                self._finish(sequence, FinishReason.TIMEOUT, error=f"not finished within {limit:g} s")

    def _note(self, seconds: float, plan: Plan) -> None:
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
