"""From a GrammarSpec to a matcher: limits on size and work, and a cache."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

import llguidance
from llguidance import LLMatcher, LLParserLimits

from inference.grammar.matcher import Matcher, Vocabulary
from inference.request import GrammarKind, GrammarSpec, RequestRejected

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

    from inference.tokenizer import Tokenizer

MAX_SOURCE_BYTES = 256 * 1024
CACHED_GRAMMARS = 256
# Separators as most JSON in training data is written; no other whitespace, so none can run away.
ITEM_SEPARATOR = ", "
KEY_SEPARATOR = ": "
# llguidance counts work, not time: at about 50,000 units of fuel a millisecond this is at most a few hundred
# milliseconds for a compilation, and a mask that would take longer than about 20 ms fails its own request.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=5_000_000, step_lexer_fuel=300_000, step_max_items=100_000, max_grammar_size=500_000,
    verbose_errors=False,
)  # fmt: skip


class GrammarCompiler:
    """Compiles and checks grammars for one tokenizer. Thread-safe; meant for the caller's thread, not the loop's."""

    def __init__(self, tokenizer: Tokenizer, head_size: int) -> None:
        """`head_size` is the number of logits; a head padded beyond the tokenizer's vocabulary is masked there."""
        self._tokenizer = llguidance.LLTokenizer(
            tokenizer.json,
            n_vocab=head_size,
            eos_token=list(tokenizer.eos_token_ids),
            slices=llguidance.LLTokenizer.json_slices(),
        )
        self._vocabulary = Vocabulary(head_size, tuple(tokenizer.eos_token_ids))
        self._cache: OrderedDict[GrammarSpec, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, spec: GrammarSpec) -> Matcher:
        """A fresh matcher. Raises RequestRejected with llguidance's reason when the grammar cannot be enforced."""
        with self._lock:
            start = self._cache.get(spec)
            if start is not None:
                self._cache.move_to_end(spec)
        if start is None:
            start = self._compile(spec)
            with self._lock:
                self._cache[spec] = start
                while len(self._cache) > CACHED_GRAMMARS:
                    self._cache.popitem(last=False)
        return Matcher(start.deep_copy(), self._vocabulary)

    def _compile(self, spec: GrammarSpec) -> LLMatcher:
        if (size := len(spec.source.encode())) > MAX_SOURCE_BYTES:
            raise RequestRejected(f"the {spec.kind} grammar has {size} bytes; the limit is {MAX_SOURCE_BYTES}")
        try:
            grammar = _grammar_text(spec)
        except (ValueError, RecursionError) as error:
            raise RequestRejected(f"the {spec.kind} grammar cannot be read: {error}") from error
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise RequestRejected(f"the {spec.kind} grammar cannot be enforced: {matcher.get_error()}")
        return matcher


def _grammar_text(spec: GrammarSpec) -> str:
    if spec.kind is GrammarKind.REGEX:
        return LLMatcher.grammar_from_regex(spec.source)
    if spec.kind is GrammarKind.CHOICE:
        choices = json.loads(spec.source)
        if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
            raise ValueError("a choice is a JSON list of at least one string, none of them empty")
        return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(choice) for choice in choices))
    schema = {"type": "object"} if spec.kind is GrammarKind.JSON_OBJECT else json.loads(spec.source)
    style: JsonCompileOptions = {
        "whitespace_flexible": False,
        "item_separator": ITEM_SEPARATOR,
        "key_separator": KEY_SEPARATOR,
    }
    return LLMatcher.grammar_from_json_schema(schema, overrides=style)
