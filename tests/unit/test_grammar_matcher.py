"""Looking ahead in a grammar leaves it where it was and says what going there would say."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.grammar import GrammarCompiler, Matcher, fill_draft_masks, fill_masks
from inference.request import GrammarKind, GrammarSpec
from inference.tokenizer import Tokenizer
from tests.tiny_models import byte_tokenizer
from tests.tiny_tokenizer import bpe_tokenizer

PADDING = 37  # rows of the head that no token stands for
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "description": {"enum": ["published", "published by the author", None]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
        "year": {"type": "integer", "minimum": 0, "maximum": 2100},
        "nested": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/amount"}]},
    },
    "required": ["title", "description", "tags", "year", "nested"],
    "additionalProperties": False,
    "$defs": {
        "amount": {
            "type": "object",
            "properties": {"amount": {"type": "number"}, "unit": {"const": "unit"}},
            "required": ["amount", "unit"],
            "additionalProperties": False,
        }
    },
}
GRAMMARS = (
    GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    GrammarSpec(GrammarKind.JSON_OBJECT, ""),
    GrammarSpec(GrammarKind.REGEX, r"(name|title): [0-9]{1,4}( true| false)?"),
    GrammarSpec(GrammarKind.CHOICE, '["true", "true story", "false", "9.5"]'),
)
TOKENIZERS = {"bytes": byte_tokenizer, "bpe": bpe_tokenizer}


@cache
def tokenizer(name: str) -> Tokenizer:
    return TOKENIZERS[name]()


@cache
def compiler(name: str) -> GrammarCompiler:
    return GrammarCompiler(tokenizer(name), head_size(name))


def head_size(name: str) -> int:
    return tokenizer(name).vocab_size + PADDING


def allowed(row: Any) -> list[int]:
    return np.unpackbits(np.ascontiguousarray(row).view(np.uint8), bitorder="little").nonzero()[0].tolist()


def stepping(name: str, spec: GrammarSpec, tokens: Sequence[int]) -> tuple[Matcher, Any]:
    """The plain way: a matcher of its own that has taken `tokens` one by one, and its mask."""
    matcher = compiler(name).matcher(spec)
    mask = fill_masks([matcher], head_size(name))[0]
    for token in tokens:
        assert matcher.consume(token)
        mask = fill_masks([matcher], head_size(name))[0]
    assert not matcher.error
    return matcher, mask


def walk(rng: random.Random, name: str, spec: GrammarSpec, tokens: Sequence[int], steps: int) -> list[int]:
    """Up to `steps` tokens that may follow `tokens`, drawn from the masks; the end may be among them, as the last."""
    matcher, mask = stepping(name, spec, tokens)
    taken: list[int] = []
    while len(taken) < steps and not matcher.stopped:
        taken.append(rng.choice(allowed(mask)))
        assert matcher.consume(taken[-1])
        mask = fill_masks([matcher], head_size(name))[0]
    return taken


@pytest.mark.parametrize("name", TOKENIZERS)
@given(seed=st.integers(0, 2**32), spec=st.sampled_from(GRAMMARS))
@settings(max_examples=150, deadline=None)
def test_looking_ahead_equals_going_there(name: str, seed: int, spec: GrammarSpec) -> None:
    rng = random.Random(seed)
    matcher, committed = compiler(name).matcher(spec), []
    for _ in range(6):
        if matcher.stopped:
            break
        _, here = stepping(name, spec, committed)
        path = walk(rng, name, spec, committed, rng.randrange(1, 9))
        for action in rng.sample(["forced", "validate", "rows", "rows"], 3):
            if action == "forced":
                forced = matcher.forced(rng.randrange(0, 6))
                assert not forced or allowed(here) == [forced[0]]
                assert matcher.validate(forced) == len(forced)
            elif action == "validate":
                assert matcher.validate(path) == len(path)
                cut = rng.randrange(len(path))
                _, mask = stepping(name, spec, [*committed, *path[:cut]])
                stranger = rng.choice([*range(-1, head_size(name) + 2)])
                if stranger not in allowed(mask) and len(allowed(mask)) > 1:
                    assert matcher.validate([*path[:cut], stranger, *path[cut:]]) == cut
            else:
                words, failed = fill_draft_masks([(matcher, path)], head_size(name))
                assert not failed
                for j in range(len(path) + 1):
                    _, mask = stepping(name, spec, [*committed, *path[:j]])
                    assert allowed(words[j]) == allowed(mask), f"row {j} of {path} after {committed}"
            assert not matcher.error
        # What has been looked at is forgotten: the mask is that of the committed tokens.
        assert allowed(fill_masks([matcher], head_size(name))[0]) == allowed(here)
        for token in path[: rng.randrange(1, len(path) + 1)]:
            assert matcher.consume(token)
            committed.append(token)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_masks_are_not_shifted_when_drafts_are_trimmed(name: str) -> None:
    """Rows of several matchers with drafts of different lengths: each row is of its matcher and its place."""
    rng = random.Random(7)
    drafted, expected = [], []
    for length in (3, 0, 8, 1, 0, 5):
        spec = rng.choice(GRAMMARS[:2])
        start = walk(rng, name, spec, [], 4)
        matcher, _ = stepping(name, spec, start)
        draft = walk(rng, name, spec, start, length)
        drafted.append((matcher, draft))
        expected += [stepping(name, spec, [*start, *draft[:j]])[1] for j in range(len(draft) + 1)]
    words, failed = fill_draft_masks(drafted, head_size(name))
    assert not failed
    assert [allowed(row) for row in words] == [allowed(row) for row in expected]


def test_an_illegal_draft_does_not_kill_the_request() -> None:
    name, spec = "bpe", GRAMMARS[0]
    made, size = tokenizer(name), head_size(name)
    start = made.encode('{"title": "')
    matcher, mask = stepping(name, spec, start)
    good = made.encode("name")
    # A token that the grammar refuses, one of the padding, one beyond the head, and what is no token at all.
    for bad in (made.encode("\n")[0], made.vocab_size, size, 10**9, 2**40, -1):
        assert matcher.validate([*good, bad, *good]) == len(good)
        words, failed = fill_draft_masks([(matcher, [*good, bad, *good])], size)
        assert not failed
        assert allowed(words[0]) == allowed(mask)
        assert allowed(words[len(good)]) == allowed(stepping(name, spec, [*start, *good])[1])
        assert all(allowed(row) == sorted(made.eos_token_ids) for row in words[len(good) + 1 :])
        assert not matcher.error
    assert matcher.consume(good[0])


def test_rows_behind_the_end_allow_the_end_only() -> None:
    name, spec = "bytes", GRAMMARS[3]
    made = tokenizer(name)
    (end,) = made.eos_token_ids
    matcher = compiler(name).matcher(spec)
    draft = [*made.encode("true"), end]
    assert matcher.validate([*draft, end, 3]) == len(draft)
    words, failed = fill_draft_masks([(matcher, draft)], head_size(name))
    assert not failed
    assert allowed(words[4]) == sorted([*made.encode(" "), end])
    assert allowed(words[5]) == [end]
    whole = made.encode("true story")
    words, _ = fill_draft_masks([(matcher, [*whole, end, end])], head_size(name))
    assert [allowed(row) for row in words[len(whole) :]] == [[end]] * 3
    for token in whole:
        assert matcher.consume(token)
    assert matcher.stopped
    assert matcher.forced(4) == []


def test_a_state_beyond_the_limits_fails_only_who_gets_there() -> None:
    """Behind `"big": {` more may follow than llguidance holds. A draft that leads there loses its last rows."""
    choices = [{"properties": {f"p{i}-{j}": {"type": "null"} for i in range(400)}} for j in range(9)]
    fields = {"kind": {"type": "boolean"}, "big": {"type": "object", "anyOf": choices}}
    schema = {"type": "object", "properties": fields, "required": ["kind"], "additionalProperties": False}
    name, spec = "bytes", GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    made, size = tokenizer(name), head_size(name)
    draft = made.encode('{"kind": true, "big": {"p1-1": null')
    there = len(made.encode('{"kind": true, '))  # from here on to the brace all is forced, and looked through at once
    matcher, other = compiler(name).matcher(spec), compiler(name).matcher(GRAMMARS[3])
    words, failed = fill_draft_masks([(matcher, draft), (other, [])], size)
    assert list(failed) == [there]
    assert "items; max is" in failed[there]
    for j in (0, 5, there - 1):
        assert allowed(words[j]) == allowed(stepping(name, spec, draft[:j])[1])
    assert not words[there:-1].any()
    assert allowed(words[-1]) == allowed(stepping(name, GRAMMARS[3], [])[1])
    assert not matcher.error
    for token in made.encode('{"kind": true}'):
        assert matcher.consume(token)
    assert matcher.stopped


def test_batches_filled_at_the_same_time_do_not_mix() -> None:
    """Four threads, each with requests of its own: what each gets is what it gets alone."""

    def run(seed: int) -> list[list[int]]:
        rng = random.Random(seed)
        matchers = [compiler("bpe").matcher(rng.choice(GRAMMARS)) for _ in range(6)]
        texts: list[list[int]] = [[] for _ in matchers]
        for _ in range(40):
            rows = fill_masks(matchers, head_size("bpe"))
            for matcher, text, row in zip(matchers, texts, rows, strict=True):
                if not matcher.stopped:
                    text.append(rng.choice(allowed(row)))
                    assert matcher.consume(text[-1]), matcher.error
        return texts

    alone = [run(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(8))) == alone


def test_an_error_stays_with_its_matcher() -> None:
    name, spec = "bpe", GRAMMARS[0]
    made, size = tokenizer(name), head_size(name)
    start = made.encode('{"title": "')
    (good, mask), (bad, _) = stepping(name, spec, start), stepping(name, spec, start)
    assert not bad.consume(made.encode("\n")[0])
    assert "doesn't satisfy the grammar" in bad.error
    assert bad.forced(3) == []
    assert bad.validate(made.encode("name")) == 0
    words, failed = fill_draft_masks([(bad, made.encode("name")), (good, [])], size)
    assert list(failed) == [0]
    assert "doesn't satisfy the grammar" in failed[0]
    assert not words[:-1].any()
    assert allowed(words[-1]) == allowed(mask)
    assert allowed(fill_masks([compiler(name).matcher(spec)], size)[0]) == allowed(stepping(name, spec, [])[1])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_head_padded_beyond_the_vocabulary_is_masked_there(name: str) -> None:
    rng = random.Random(3)
    for spec in GRAMMARS:
        tokens = walk(rng, name, spec, [], 12)
        for j in range(len(tokens) + 1):
            assert max(allowed(stepping(name, spec, tokens[:j])[1])) < tokenizer(name).vocab_size


def test_the_bare_quote_opens_and_closes_strings() -> None:
    """With merges such as `",` and ` "` in the vocabulary, the quote alone stays possible where text is free."""
    name, spec = "bpe", GRAMMARS[0]
    made = tokenizer(name)
    (quote,) = made.encode('"')
    assert any(token.startswith('",') for token in made.backend.get_vocab()), "the vocabulary was meant to have merges"
    for text in ('{"title": "', '{"title": "year'):
        _, mask = stepping(name, spec, made.encode(text))
        assert quote in allowed(mask), text
    free = GRAMMARS[1]  # any object: its keys open with a quote that nothing is merged into
    assert {quote} < set(allowed(stepping(name, free, made.encode("{"))[1]))
    assert {quote} < set(allowed(stepping(name, free, made.encode('{"a": "b", '))[1]))
