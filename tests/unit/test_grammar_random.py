"""Random logits under random schemas: what ends by `stop` parses and validates, and nothing runs on for ever.

1,000 answers here; QUARRY_GRAMMAR_ANSWERS=10000 asks for more of them.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from inference.grammar import GrammarCompiler, fill_masks
from inference.request import GrammarKind, GrammarSpec
from tests.random_schemas import Sampler, SchemaMaker, most_bytes, stopped
from tests.tiny_models import byte_tokenizer
from tests.tiny_tokenizer import bpe_tokenizer

SCHEMAS = 250
ANSWERS = int(os.environ.get("QUARRY_GRAMMAR_ANSWERS", "1000"))
MAX_TOKENS = 600
PATIENCE = 60  # tokens before the sampler of open schemas closes what it can
STRING = re.compile(r'"(?:[^"\\]|\\.)*"?')
RUNAWAY = re.compile(r"\s{2}|[0-9]{20}|\.[0-9]{9}|[eE][+-]?[0-9]")


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
@pytest.mark.parametrize("name", ["bpe", "bytes"])
def test_what_ends_by_stop_is_valid_and_everything_ends(name: str, closed: bool) -> None:
    """Closed schemas bound the length of an answer: uniform sampling, which never seeks an end, must stay within the
    bound. Open ones may reach `max_tokens`; then no whitespace and no digits have run on."""
    tokenizer = bpe_tokenizer() if name == "bpe" else byte_tokenizer()
    size = tokenizer.vocab_size + 31
    compiler, sampler = GrammarCompiler(tokenizer, size), Sampler(tokenizer, size)
    each = max(1, round(ANSWERS / 4 / SCHEMAS))
    ended: Counter[str] = Counter()
    for seed in range(SCHEMAS):
        schema = SchemaMaker(seed, closed).schema()
        spec = GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema))
        assert compiler.unenforced(spec) == (), f"seed {seed}: {schema}"
        bound = most_bytes(schema, schema.get("$defs", {}))
        assert not closed or bound < math.inf
        check = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
        rng = np.random.default_rng(seed)
        for answer in range(each):
            weights = None if answer % 2 == 0 else np.exp(rng.normal(0, 3, size))
            limit = int(bound) + 1 if closed else MAX_TOKENS
            tokens, reason = generated(compiler, sampler, spec, rng, weights, limit, math.inf if closed else PATIENCE)
            text = tokenizer.decode(tokens)
            ended[reason] += 1
            if reason == "stop":
                value = json.loads(text)
                errors = [error.message for error in check.iter_errors(value)]
                assert not errors, f"seed {seed}: {text!r} under {schema}: {errors}"
            else:
                assert not closed, f"seed {seed}: more than {bound} bytes under {schema}: {text[-200:]!r}"
            assert not RUNAWAY.search(STRING.sub("", text)), f"seed {seed}: {text!r}"
    assert ended["stop"] >= 0.95 * ended.total(), ended


def generated(
    compiler: GrammarCompiler,
    sampler: Sampler,
    spec: GrammarSpec,
    rng: np.random.Generator,
    weights: Any,
    limit: int,
    patience: float,
) -> tuple[list[int], str]:
    matcher, tokens = compiler.matcher(spec), []
    while len(tokens) < limit:
        (row,) = fill_masks([matcher], matcher.vocabulary.size)
        assert not matcher.error, f"{matcher.error} under {spec.source}"
        token = sampler.draw(row, rng, weights, len(tokens) >= patience)
        over = stopped(matcher, sampler, token)
        if not sampler.ends(token):
            tokens.append(token)
        if over:
            return tokens, "stop"
    return tokens, "length"
