"""The engine as a Python object: hand in requests from any thread, take responses out. Names as in TensorRT-LLM."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from inference.config import EngineConfig
from inference.engine import Engine
from inference.grammar import GrammarCompiler
from inference.memory.prefix import root_hash
from inference.randomness import fresh_seed
from inference.request import EngineStopped, FinishReason, QueueFull, Request, RequestRejected, Response
from inference.runner import Runner
from inference.sequence import Sequence
from inference.speculation.draft_model import check_vocabulary
from inference.stats import EngineStats, ModelInfo
from inference.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger(__name__)
__all__ = ["EngineStopped", "Executor", "QueueFull"]


class Executor:
    """One model, running in a thread of its own. All methods are thread-safe.

    Every request that `enqueue_request` accepts gets exactly one response with a finish reason.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer) -> None:
        """Loads the model. Raises CheckpointError, UnsupportedModel, VocabularyMismatch for a draft model of another
        vocabulary, or ValueError for a cache that is too small."""
        if config.draft_model_path is not None:
            check_vocabulary(tokenizer.vocabulary(), load_tokenizer(config.draft_model_path).vocabulary())
        runner = Runner(config, tokenizer.vocab_size)
        self.config = config
        self.tokenizer = tokenizer
        self.model_info = ModelInfo(
            name=config.name,
            architecture=runner.model.config.family,
            vocab_size=min(tokenizer.vocab_size, runner.model.config.vocab_size),
            max_model_len=runner.max_model_len,
            dtype=str(runner.dtype).removeprefix("torch."),
            device=str(runner.device),
            parameters=runner.model.parameters,
            page_size=config.page_size,
            pages=runner.pages,
        )
        self._compiler = GrammarCompiler(tokenizer, runner.model.config.vocab_size)
        self._engine = Engine(
            config, runner, self._take_out, self.model_info.vocab_size, eos=set(tokenizer.eos_token_ids)
        )
        self._arrivals = itertools.count()
        self._changed = threading.Condition()  # guards all below
        self._inbox: deque[Callable[[], None]] = deque()
        self._open: set[str] = set()  # accepted, last response not yet taken
        self._unfinished: set[str] = set()
        self._responses: dict[str, list[Response]] = defaultdict(list)
        self._stopping = False  # no more requests
        self._stopped = False  # the loop has ended
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # Callers

    def enqueue_request(self, request: Request) -> str:
        """Queue a request and return its id. Compiles its grammar in the caller's thread.

        Raises RequestRejected (QueueFull when only the queue is the reason), EngineStopped.
        """
        self._check(request)
        matcher = self._compiler.matcher(request.grammar) if request.grammar else None
        sequence = Sequence(
            request=request,
            arrival=next(self._arrivals),
            enqueued_at=time.monotonic(),
            root=root_hash(request.cache_salt, str(self.config.model_path), self.model_info.dtype),
            matcher=matcher,
            seed=fresh_seed() if request.sampling.seed is None else request.sampling.seed,
        )
        with self._changed:
            if self._stopping:
                raise EngineStopped("the engine is shutting down")
            if request.id in self._open:
                raise RequestRejected(f"a request with id {request.id!r} is under way; ids must be unique")
            if len(self._unfinished) >= self.config.max_waiting + self.config.max_num_seqs:
                raise QueueFull(
                    f"{len(self._unfinished)} requests are queued or running; the limit is "
                    f"{self.config.max_waiting + self.config.max_num_seqs}. Try again later",
                    retry_after=1.0,
                )
            self._open.add(request.id)
            self._unfinished.add(request.id)
            self._inbox.append(lambda: self._engine.add(sequence))
            self._changed.notify_all()
        return request.id

    def await_responses(self, request_id: str | None = None, timeout: float | None = None) -> list[Response]:
        """Responses since the last call, of one request or of all; empty when `timeout` seconds passed without any.

        Raises KeyError for a request that is unknown or whose last response was taken.
        """
        with self._changed:
            if request_id is None:
                self._changed.wait_for(lambda: bool(self._responses) or self._stopped, timeout)
                taken = [response for batch in self._responses.values() for response in batch]
                self._responses.clear()
            else:
                if request_id not in self._open:
                    raise KeyError(f"no request {request_id!r} is under way")
                self._changed.wait_for(lambda: request_id in self._responses or self._stopped, timeout)
                taken = self._responses.pop(request_id, [])
            self._open.difference_update(response.request_id for response in taken if response.finished)
            return taken

    def cancel_request(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End a request at the next step. Unknown and finished ids are ignored: a cancel may cross the last token.

        The front passes STOP when a stop string has been seen.
        """
        with self._changed:
            self._inbox.append(lambda: self._engine.end(request_id, reason))
            self._changed.notify_all()

    def stats(self) -> EngineStats:
        """A snapshot; what still waits in the inbox counts as waiting."""
        stats = self._engine.stats
        with self._changed:
            return replace(stats, waiting=max(stats.waiting, len(self._unfinished) - stats.running))

    def shutdown(self, drain: bool = False, timeout: float | None = None) -> None:
        """Stop. With `drain`, requests under way are finished first (for at most `timeout` seconds); others end as
        cancelled. May be called twice."""
        with self._changed:
            self._stopping = True
            if drain:
                self._changed.wait_for(lambda: not self._unfinished, timeout)
            self._inbox.append(lambda: self._engine.end_all(FinishReason.CANCELLED, "the engine is shutting down"))
            self._inbox.append(self._stop)
            self._changed.notify_all()
        self._thread.join()
        self._engine.close()

    # Checks

    def _check(self, request: Request) -> None:
        prompt, sampling = len(request.prompt_token_ids), request.sampling
        limit = self.model_info.max_model_len
        if prompt < 1:
            raise RequestRejected("the prompt has no tokens; give at least one")
        sampling.check(self.model_info.vocab_size)
        if prompt + sampling.max_tokens > limit:
            raise RequestRejected(
                f"the prompt has {prompt} tokens and max_tokens is {sampling.max_tokens}, together "
                f"{prompt + sampling.max_tokens}; the limit is {limit}. Shorten the prompt or lower max_tokens"
            )
        vocab = self.model_info.vocab_size
        bad = next((t for t in request.prompt_token_ids if not 0 <= t < vocab), None)
        if bad is not None:
            raise RequestRejected(f"token id {bad} is outside the vocabulary of {vocab}")
        if request.timeout_seconds is not None and not request.timeout_seconds > 0:
            raise RequestRejected(f"timeout_seconds is {request.timeout_seconds:g}; it must be above 0")

    # The engine's thread

    def _stop(self) -> None:
        self._stopped = True

    def _work(self) -> Iterator[Callable[[], None]]:
        """What callers have left in the inbox; waits for it when nothing else is to be done.

        Taken one by one, so that one that fails does not lose those behind it.
        """
        with self._changed:
            if self._engine.idle:
                self._changed.wait_for(lambda: bool(self._inbox))
        while self._inbox:
            yield self._inbox.popleft()

    def _take_out(self, responses: list[Response]) -> None:
        with self._changed:
            for response in responses:
                self._responses[response.request_id].append(response)
                if response.finished:
                    self._unfinished.discard(response.request_id)
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._stopped:
            try:
                if self._engine.idle:
                    self._engine.scheduler.check()
                for action in self._work():
                    action()
                self._engine.step()
            except Exception as error:  # the loop outlives its own mistakes; clients are told
                log.exception("the engine's loop failed")
                self._engine.fail(f"the engine's loop failed: {error}")
        with self._changed:
            self._changed.notify_all()
