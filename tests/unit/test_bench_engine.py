"""The engine's benchmark: what it asks for, and that it counts what was made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.engine import Plan, run
from bench.rivals import LlamaCpp, Load, Rival, RivalFailed
from bench.workloads import MIXES, PREFIXES, Source
from tests.tiny_models import make_model, save_with_tokenizer

SOURCE = Source(1000, lambda words: list(words.encode()), [n % 251 for n in range(30_000)])


@pytest.mark.parametrize("mix", MIXES)
def test_a_mix_is_drawn_from_its_seed(mix: str) -> None:
    work = MIXES[mix](24, 5, 1.0, SOURCE)
    assert work == MIXES[mix](24, 5, 1.0, SOURCE)
    assert work != MIXES[mix](24, 6, 1.0, SOURCE)
    assert len(work) == 24
    assert all(0 <= token < SOURCE.vocab_size for item in work for token in item.prompt)
    assert all((item.schema is not None) == (mix == "extraction") for item in work)
    shrunk = MIXES[mix](24, 5, 8.0, SOURCE)
    for whole, part in zip(work, shrunk, strict=True):
        assert abs(len(part.prompt) - len(whole.prompt) / 8) <= 1
        assert abs(part.output - whole.output / 8) <= 0.5 or part.output == 1


def test_the_lengths_of_each_mix() -> None:
    made = {mix: MIXES[mix](300, 1, 1.0, SOURCE) for mix in MIXES}
    assert {len(w.prompt) for w in made["decode"]} == {128}
    assert {(len(w.prompt), w.output) for w in made["seed"]} == {(128, 10), (512, 500), (64, 20)}
    assert all(32 <= len(w.prompt) <= 512 and 16 <= w.output <= 128 for w in made["mixed"])
    assert all(456 <= len(w.prompt) <= 2056 and 32 <= w.output <= 256 for w in made["extraction"])


def test_extraction_prompts_share_their_schemas_prefix() -> None:
    work = MIXES["extraction"](100, 1, 1.0, SOURCE)
    prefixes = {item.schema: item.prompt[:256] for item in work}
    assert len(prefixes) == PREFIXES
    assert len(set(prefixes.values())) == PREFIXES
    assert all(item.prompt[:256] == prefixes[item.schema] for item in work)
    for schema in prefixes:
        records = json.loads(schema or "")["properties"]["records"]
        assert records["minItems"] > 256, "an answer could end before its last token"


def test_the_engine_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save_with_tokenizer(make_model("qwen2"), tmp_path)
    page = tmp_path / "page.txt"
    page.write_text("\n\n".join(f"The {n}th paragraph of a page that has {n} of them." for n in range(40)))
    plan = Plan(("extraction", "seed"), 6, concurrency=4, shrink=20, rounds=1, threads=1, rivals=(), pages=(str(page),))
    results = run(path, plan, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert [row["mix"] for row in printed["results"]] == ["extraction", "seed"]
    for result, row in zip(results, printed["results"], strict=True):
        (outcome,) = result.rounds
        assert outcome.requests == 6
        assert row["output_tokens_per_second"] == pytest.approx(outcome.output_tokens / outcome.seconds)
        assert row["resident_bytes"] > 2**20
    assert results[1].tokens_per_forward == 1.0, "drafts of random tokens"


def test_a_rival_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(RivalFailed, match="Error"):
        Rival(LlamaCpp, tmp_path / "missing", Load(1, 64, 1))
