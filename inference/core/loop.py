"""The core's loop: take what the client sent, advance the engine by a step, send what came of it.

One thread does all three. Reading and writing never block while there is work, so neither a slow client nor a dead one
holds a step up. What takes long and is no step (compiling a grammar, embedding texts) is done in threads beside it.
"""

from __future__ import annotations

import itertools
import logging
import selectors
import socket
import time
from array import array
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from tokenizers import Tokenizer

from inference.core.messages import (
    Accepted,
    Cancel,
    Embed,
    Embedded,
    EmbedderInfo,
    Failed,
    Frames,
    Ping,
    Pong,
    Ready,
    Rejected,
    Start,
    Stop,
    Submit,
    ToCore,
    frame,
    to_core,
)
from inference.core.outbox import ClientGone, Outbox
from inference.embedder import Embedder
from inference.engine import Engine
from inference.grammar import GrammarCompiler, Matcher
from inference.memory.prefix import root_hash
from inference.randomness import fresh_seed
from inference.request import FinishReason, Request, RequestRejected, Response, Usage
from inference.runner import Runner
from inference.sequence import Sequence
from inference.speculation.draft_model import check_vocabulary
from inference.stats import ModelInfo
from inference.tokenizer import load_tokenizer

log = logging.getLogger(__name__)

RECEIVE_BYTES = 1 << 20
COMPILING_AT_ONCE = 16  # threads that wait for a grammar; `GrammarCompiler` bounds how many compile
EMBEDDING_AT_ONCE = 2  # one computes while the other tokenises
LAST_WORDS_SECONDS = 5.0  # for the client to take the last responses when the core stops


def load_models(start: Start) -> tuple[Runner, Embedder | None]:
    """Raises VocabularyMismatch for a draft model of another vocabulary, and what the parts raise."""
    if start.config.draft_model_path is not None:
        ours = Tokenizer.from_str(start.tokenizer.json).get_vocab(with_added_tokens=True)
        check_vocabulary(ours, load_tokenizer(start.config.draft_model_path).vocabulary())
    runner = Runner(start.config, start.tokenizer.vocab_size)
    return runner, Embedder(start.embedder) if start.embedder else None


Load = Callable[[Start], tuple[Runner, Embedder | None]]  # a benchmark takes the model away, a test puts a toy there


class Core:
    """One engine behind one connection. `run` returns when it was told to stop, or when the client is gone."""

    def __init__(self, start: Start, connection: socket.socket, load: Load) -> None:
        """Loads the models. Raises CheckpointError, UnsupportedModel, or ValueError for a cache that is too small."""
        config, tokenizer = start.config, start.tokenizer
        runner, self.embedder = load(start)
        shape = runner.model.config
        self.model = ModelInfo(
            name=config.name,
            architecture=shape.family,
            vocab_size=min(tokenizer.vocab_size, shape.vocab_size),
            max_model_len=runner.max_model_len,
            dtype=str(runner.dtype).removeprefix("torch."),
            quantization=runner.format.name,
            device=str(runner.device),
            parameters=runner.model.parameters,
            page_size=config.page_size,
            pages=runner.pages,
        )
        self.compiler = GrammarCompiler(tokenizer, shape.vocab_size)
        self._model_path = config.model_path
        self._embedder_name = start.embedder_name
        self._connection = connection
        connection.setblocking(False)
        self._outbox = Outbox(connection)
        self.engine = Engine(config, runner, self._outbox.put, self.model.vocab_size, eos=set(tokenizer.eos_token_ids))
        self._frames = Frames()
        self._arrived: deque[bytes] = deque()
        self._arrivals = itertools.count()
        self._compiling: set[str] = set()
        self._done: deque[Callable[[], None]] = deque()  # what threads leave for the loop
        self._wake, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        for readable in (connection, self._wake):
            self._selector.register(readable, selectors.EVENT_READ)
        self._grammars = ThreadPoolExecutor(COMPILING_AT_ONCE, thread_name_prefix="grammars")
        self._embedding = ThreadPoolExecutor(EMBEDDING_AT_ONCE, thread_name_prefix="embedding")
        self._stopping = False

    def run(self) -> None:
        self._outbox.say(Ready(self.model, self._embedder_info()))
        try:
            while not self._stopping:
                self._turn()
            self._say_last_words()
        except ClientGone as error:
            log.info("the client is gone: %s", error)
        finally:
            self._close()

    def _turn(self) -> None:
        self._receive()
        try:
            while self._arrived:
                self._handle(to_core.decode(self._arrived.popleft()))
            while self._done:
                self._done.popleft()()
            for request_id in self._outbox.overdue():
                self.engine.end(request_id, FinishReason.CANCELLED, "the client did not take its tokens in time")
            self.engine.step()
            if self.engine.idle:
                self.engine.scheduler.check()
        except Exception as error:  # the loop outlives its own mistakes; clients are told
            log.exception("the engine's loop failed")
            self.engine.fail(f"the engine's loop failed: {error}")
        self._outbox.note(self.engine.stats)
        self._outbox.flush()

    def _close(self) -> None:
        self._grammars.shutdown(wait=False, cancel_futures=True)
        self._embedding.shutdown(wait=False, cancel_futures=True)
        self.engine.close()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        for end in (self._selector, self._connection, self._wake, self._waker):
            end.close()

    # From the client

    def _receive(self) -> None:
        """Take in what has come; wait for it when there is nothing else to do. Raises ClientGone."""
        waits = selectors.EVENT_READ if self._outbox.empty else selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.modify(self._connection, waits)
        idle = self.engine.idle and not (self._done or self._arrived)
        ready = {key.fileobj: events for key, events in self._selector.select(None if idle else 0.0)}
        if self._wake in ready:
            self._wake.recv(4096)
        if not ready.get(self._connection, 0) & selectors.EVENT_READ:
            return
        try:
            data = self._connection.recv(RECEIVE_BYTES)
        except OSError as error:
            raise ClientGone(str(error)) from error
        if not data:
            raise ClientGone("it closed its end")
        self._arrived.extend(self._frames.push(data))

    def _handle(self, message: ToCore) -> None:
        match message:
            case Submit(request):
                self._submit(request)
            case Cancel(request_id, reason):
                self._cancel(request_id, reason)
            case Embed(number, texts):
                try:
                    self._embedding.submit(self._embed, number, texts)
                except Exception as error:  # as a rule, no thread to be had
                    self._outbox.say(_not_embedded(number, texts, error))
            case Ping():
                self._outbox.say(Pong())
            case Stop():
                self._stopping = True
            case Start():
                raise ValueError("a core starts once")

    def _submit(self, request: Request) -> None:
        enqueued_at = time.monotonic()
        if request.grammar is None:
            self._add(request, enqueued_at, None)
            return
        self._compiling.add(request.id)
        if self.compiler.knows(request.grammar):
            self._compile(request, enqueued_at)()
            return
        try:
            self._grammars.submit(lambda: self._leave(self._compile(request, enqueued_at)))
        except Exception as error:  # as a rule, no thread to be had
            self._compiling.remove(request.id)
            self._turn_away(request, error)

    def _add(self, request: Request, enqueued_at: float, matcher: Matcher | None) -> None:
        try:
            sequence = Sequence(
                request=request,
                arrival=next(self._arrivals),
                enqueued_at=enqueued_at,
                root=root_hash(request.cache_salt, str(self._model_path), self.model.dtype),
                matcher=matcher,
                seed=fresh_seed() if request.sampling.seed is None else request.sampling.seed,
            )
        except Exception as error:
            self._turn_away(request, error)
        else:
            self.engine.add(sequence)

    def _turn_away(self, request: Request, error: Exception) -> None:
        """A request that never reached the engine, which therefore can't end it."""
        log.exception("request %s could not be taken in", request.id)
        words = f"the engine could not take the request in: {error}"
        self._outbox.put([Response(request.id, finish_reason=FinishReason.ERROR, usage=Usage(), error=words)])

    def _compile(self, request: Request, enqueued_at: float) -> Callable[[], None]:
        """-> what the loop has to do with the outcome."""
        assert request.grammar is not None
        try:
            matcher = self.compiler.matcher(request.grammar)
        except RequestRejected as error:
            return partial(self._refuse, request.id, str(error))
        except Exception as error:
            log.exception("a grammar could not be compiled")
            return partial(self._refuse, request.id, f"the grammar could not be compiled: {error}")
        return partial(self._accept, request, enqueued_at, matcher)

    def _accept(self, request: Request, enqueued_at: float, matcher: Matcher) -> None:
        if request.id in self._compiling:  # else it was cancelled meanwhile
            self._compiling.remove(request.id)
            self._outbox.say(Accepted(request.id))
            self._add(request, enqueued_at, matcher)

    def _refuse(self, request_id: str, words: str) -> None:
        if request_id in self._compiling:
            self._compiling.remove(request_id)
            self._outbox.say(Rejected(request_id, words))

    def _cancel(self, request_id: str, reason: FinishReason) -> None:
        if request_id in self._compiling:
            self._compiling.remove(request_id)
            self._outbox.put([Response(request_id, finish_reason=reason, usage=Usage())])
        else:
            self.engine.end(request_id, reason)

    # Beside the loop

    def _leave(self, action: Callable[[], None]) -> None:
        self._done.append(action)
        with suppress(OSError):  # full: the loop is awake already; closed: it has ended
            self._waker.send(b"!")

    def _embed(self, number: int, texts: list[str]) -> None:
        assert self.embedder is not None
        try:
            vectors, tokens = self.embedder.embed(texts)
        except Exception as error:
            answer = _not_embedded(number, texts, error)
        else:
            packed = array("f", itertools.chain.from_iterable(vectors)).tobytes()
            answer = Embedded(number, packed, tokens)
        self._leave(partial(self._outbox.say, answer))

    # The ends

    def _embedder_info(self) -> EmbedderInfo | None:
        return EmbedderInfo(self._embedder_name, self.embedder.dimension) if self.embedder else None

    def _say_last_words(self) -> None:
        """End what is under way and wait, for a while, until the client has read it."""
        for request_id in list(self._compiling):
            self._cancel(request_id, FinishReason.CANCELLED)
        self.engine.end_all(FinishReason.CANCELLED, "the engine is shutting down")
        self.engine.step()
        self._outbox.note(self.engine.stats)
        self._connection.settimeout(LAST_WORDS_SECONDS)
        self._outbox.flush()


def _not_embedded(number: int, texts: list[str], error: Exception) -> Embedded:
    log.error("%d texts could not be embedded", len(texts), exc_info=error)
    return Embedded(number, error=f"the texts could not be embedded: {error}")


def open_core(connection: socket.socket, load: Load) -> Core | None:
    """The core that the client at the other end asks for; None when it could not start, which the client is told, or
    when the client is gone."""
    frames = Frames()
    first = None
    while first is None:
        data = connection.recv(RECEIVE_BYTES)
        if not data:
            return None
        first = next(frames.push(data), None)
    start = to_core.decode(first)
    assert isinstance(start, Start)
    try:
        return Core(start, connection, load)
    except Exception as error:
        known = isinstance(error, (ValueError, OSError))  # in words for whoever configured it
        if not known:
            log.exception("the core can't start")
        connection.setblocking(True)
        with suppress(OSError):
            connection.sendall(frame(Failed(str(error) if known else f"{type(error).__name__}: {error}")))
        connection.close()
        return None
