"""From a GrammarSpec to a matcher: limits on size, work and time, and a cache of what came of it."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import llguidance
from llguidance import LLMatcher

from inference.grammar.deadline import Busy, TooSlow, Workshop
from inference.grammar.matcher import Matcher, Vocabulary, fill_masks
from inference.grammar.schema import LIMITS, Prepared, SchemaRefused, prepare
from inference.request import GrammarKind, GrammarSpec, RequestRejected

if TYPE_CHECKING:
    from inference.core.messages import TokenizerData
    from inference.tokenizer import Tokenizer

MAX_SOURCE_BYTES = 256 * 1024
CACHED_GRAMMARS = 256
COMPILE_SLOTS = 2
COMPILE_SECONDS = 5.0  # real schemas take milliseconds, the slowest within the limits of schema.py below a second


@dataclass(frozen=True)
class _Compiled:
    start: LLMatcher
    unenforced: tuple[str, ...]


class GrammarCompiler:
    """Compiles and checks grammars for one tokenizer. Thread-safe; callers wait, so it is not for the loop's thread."""

    def __init__(
        self, tokenizer: Tokenizer | TokenizerData, head_size: int, *, seconds: float = COMPILE_SECONDS
    ) -> None:
        """`head_size` is the number of logits; a head padded beyond the tokenizer's vocabulary is masked there.
        `seconds` is the deadline of one compilation."""
        self._tokenizer = llguidance.LLTokenizer(
            tokenizer.json,
            n_vocab=head_size,
            eos_token=list(tokenizer.eos_token_ids),
            slices=llguidance.LLTokenizer.json_slices(),
        )
        self._vocabulary = Vocabulary(head_size, tuple(tokenizer.eos_token_ids))
        self._workshop = Workshop(slots=COMPILE_SLOTS, seconds=seconds)
        # A grammar, or why there is none: a refusal is remembered too, so that asking again costs nothing.
        self._cache: OrderedDict[GrammarSpec, Future[_Compiled | str]] = OrderedDict()
        self._lock = threading.Lock()

    def knows(self, spec: GrammarSpec) -> bool:
        """Whether `matcher` will answer at once."""
        with self._lock:
            known = self._cache.get(spec)
            return known is not None and known.done()

    def matcher(self, spec: GrammarSpec) -> Matcher:
        """A fresh matcher. Raises RequestRejected with the reason when there can be none, and for a strict `spec` of
        which a part cannot be enforced."""
        compiled = self._compiled(spec)
        if spec.strict and compiled.unenforced:
            raise RequestRejected(
                "strict is asked for, and the grammar cannot enforce all of the schema; leave strict out and check the "
                f"answer, or change the schema at {'; '.join(compiled.unenforced)}"
            )
        return Matcher(compiled.start.deep_copy(), self._vocabulary)

    def unenforced(self, spec: GrammarSpec) -> tuple[str, ...]:
        """What of a JSON Schema is left to a check of the finished text, as `pointer: words`.

        Raises RequestRejected."""
        return self._compiled(spec).unenforced

    def _compiled(self, spec: GrammarSpec) -> _Compiled:
        with self._lock:
            known = self._cache.get(spec)
            if known is None:
                mine = self._cache[spec] = Future()
                while len(self._cache) > CACHED_GRAMMARS:
                    self._cache.popitem(last=False)
            else:
                self._cache.move_to_end(spec)
        outcome = known.result() if known is not None else self._run(spec, mine)
        if isinstance(outcome, str):
            raise RequestRejected(outcome)
        return outcome

    def _run(self, spec: GrammarSpec, done: Future[_Compiled | str]) -> _Compiled | str:
        """Compile within the deadline, and tell those who wait for the same."""
        outcome: _Compiled | str = f"the {spec.kind} grammar could not be compiled"
        lasting = True
        try:
            outcome = self._workshop.run(lambda: self._compile(spec))
        except RequestRejected as error:
            outcome = str(error)
        except TooSlow:
            outcome = (
                f"the {spec.kind} grammar takes more than {self._workshop.seconds:g} s to compile; the limit is "
                f"{self._workshop.seconds:g} s. Make it smaller: fewer optional properties, shorter patterns"
            )
        except Busy:
            lasting = False
            outcome = f"the {spec.kind} grammar waits behind others that take too long to compile; try again later"
        except BaseException:
            lasting = False
            raise
        finally:
            if not lasting:
                with self._lock:
                    self._cache.pop(spec, None)
            done.set_result(outcome)
        return outcome

    def _compile(self, spec: GrammarSpec) -> _Compiled:
        if (size := len(spec.source.encode("utf-8", "surrogatepass"))) > MAX_SOURCE_BYTES:
            raise RequestRejected(f"the {spec.kind} grammar has {size} bytes; the limit is {MAX_SOURCE_BYTES}")
        try:
            prepared = _prepared(spec)
        except SchemaRefused as error:
            raise RequestRejected(f"the {spec.kind} grammar cannot be enforced: {error}") from error
        except (ValueError, RecursionError) as error:
            raise RequestRejected(f"the {spec.kind} grammar cannot be read: {error}") from error
        start = LLMatcher(self._tokenizer, prepared.grammar, log_level=0, limits=LIMITS)
        if not start.is_error():
            # Some grammars go beyond the limits only where their first choice is: found here, not in the loop.
            first = start.deep_copy()
            first.consume_tokens(first.compute_ff_tokens())
            fill_masks([Matcher(first, self._vocabulary)], self._vocabulary.size)
            start = first if first.is_error() else start
        if start.is_error():
            raise RequestRejected(f"the {spec.kind} grammar cannot be enforced: {start.get_error()}")
        return _Compiled(start, prepared.unenforced)


def _prepared(spec: GrammarSpec) -> Prepared:
    match spec.kind:
        case GrammarKind.REGEX:
            return Prepared(LLMatcher.grammar_from_regex(spec.source), ())
        case GrammarKind.CHOICE:
            choices = json.loads(spec.source)
            if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
                raise ValueError("a choice is a JSON list of at least one string, none of them empty")
            lark = "start: " + " | ".join(json.dumps(choice) for choice in choices)
            return Prepared(LLMatcher.grammar_from_lark(lark), ())
        case GrammarKind.JSON_OBJECT:
            return prepare({"type": "object"})
        case GrammarKind.JSON_SCHEMA:
            return prepare(json.loads(spec.source))
