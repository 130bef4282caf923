"""A real checkpoint read twice, by us and by transformers: the same logits and the same text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from inference.config import EngineConfig
from inference.executor import Executor
from inference.request import FinishReason, GrammarKind, GrammarSpec, Request, SamplingParams
from inference.tokenizer import Tokenizer, load_tokenizer
from tests.tiny_models import generate

pytestmark = pytest.mark.model

QUESTIONS = [
    "What is the capital of France?",
    "List three colours, separated by commas.",
    "Bread needs flour, water, salt and yeast. Mix them, let the dough rest for an hour and bake it. "
    "How long does the dough rest?",
]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 30}, "year": {"type": ["integer", "null"]}},
    "required": ["name", "year"],
    "additionalProperties": False,
}
TOKENS = 20


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(smollm2_path)


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    return [tuple(tokenizer.encode_chat([{"role": "user", "content": text}])) for text in QUESTIONS]


@pytest.fixture(scope="module")
def theirs(smollm2_path: Path) -> PreTrainedModel:
    """Transformers' own reading of the file, in fp32."""
    return AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="module")
def executor(smollm2_path: Path, tokenizer: Tokenizer) -> Iterator[Executor]:
    config = EngineConfig(smollm2_path, dtype="float32", max_num_batched_tokens=32, kv_cache_bytes=64 << 20)
    made = Executor(config, tokenizer)
    yield made
    made.shutdown()


def test_greedy_text_and_logprobs_agree(
    executor: Executor, theirs: PreTrainedModel, prompts: list[tuple[int, ...]]
) -> None:
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    results = generate(executor, *(Request(str(i), prompt, sampling) for i, prompt in enumerate(prompts)))
    for prompt, (tokens, _) in zip(prompts, results, strict=True):
        with torch.inference_mode():
            logits = theirs(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        # Their choice after each of our tokens: the texts are equal as long as every choice is.
        assert tokens == tuple(logits.argmax(-1).tolist())


def test_logits_agree(executor: Executor, theirs: PreTrainedModel, prompts: list[tuple[int, ...]]) -> None:
    sampling = SamplingParams(max_tokens=1, logprobs=20, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        executor.enqueue_request(Request(f"l{index}", prompt, sampling))
        (response,) = executor.await_responses(f"l{index}", timeout=60)
        with torch.inference_mode():
            expected = theirs(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        for token, logprob in response.logprobs[0].top:
            assert logprob == pytest.approx(expected[token].item(), rel=1e-4, abs=1e-3)


def test_bfloat16_says_much_the_same(
    smollm2_path: Path, tokenizer: Tokenizer, theirs: PreTrainedModel, prompts: list[tuple[int, ...]]
) -> None:
    """Rounding may tip a near tie; it must not tip a clear choice."""
    executor = Executor(EngineConfig(smollm2_path, dtype="bfloat16", kv_cache_bytes=64 << 20), tokenizer)
    try:
        sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
        results = generate(executor, *(Request(str(i), prompt, sampling) for i, prompt in enumerate(prompts)))
    finally:
        executor.shutdown()
    for prompt, (tokens, _) in zip(prompts, results, strict=True):
        with torch.inference_mode():
            logits = theirs(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        lost = logits.max(-1).values - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert lost.max() < 0.5


def test_json_beside_plain_text(executor: Executor, tokenizer: Tokenizer, prompts: list[tuple[int, ...]]) -> None:
    spec = GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
    plain = [Request(f"p{i}", p, SamplingParams(max_tokens=TOKENS)) for i, p in enumerate(prompts)]
    constrained = [Request(f"j{i}", p, SamplingParams(max_tokens=80), spec) for i, p in enumerate(prompts)]
    alone = [generate(executor, request)[0][0] for request in (*plain, *constrained)]
    together = generate(executor, *plain, *constrained)
    assert [tokens for tokens, _ in together] == alone
    for tokens, last in together[len(plain) :]:
        assert last.finish_reason is FinishReason.STOP
        jsonschema.validate(json.loads(tokenizer.decode(tokens)), SCHEMA)
