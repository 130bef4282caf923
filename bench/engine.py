"""The engine beside `transformers.generate`: same weights, same prompts, same output lengths, same process.

Requests are of mixed length, as documents are. `generate` runs them one by one, which pads nothing, and in batches of
16, padded on the left and ended when the longest is done; both are how it is commonly used.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from inference.config import EngineConfig
from inference.executor import Executor
from inference.models.config import ModelConfig
from inference.models.loader import read_state_dict
from inference.request import Request, SamplingParams
from inference.tokenizer import load_tokenizer

BATCHES = (1, 16)
PROMPT_TOKENS = (32, 512)
OUTPUT_TOKENS = (16, 128)
AIM = 2.0


@dataclass(frozen=True)
class Work:
    prompt: tuple[int, ...]
    output: int


@dataclass(frozen=True)
class Result:
    """`output_tokens` are those asked for; what padding makes beyond them is not counted."""

    name: str
    seconds: float
    requests: int
    prompt_tokens: int
    output_tokens: int

    @property
    def requests_per_second(self) -> float:
        return self.requests / self.seconds

    @property
    def output_per_second(self) -> float:
        return self.output_tokens / self.seconds

    @property
    def total_per_second(self) -> float:
        return (self.prompt_tokens + self.output_tokens) / self.seconds


def workload(count: int, seed: int, vocab_size: int) -> list[Work]:
    """Random tokens, lengths drawn evenly from the ranges above."""
    rng = random.Random(seed)
    return [
        Work(
            tuple(rng.randrange(vocab_size // 2) for _ in range(rng.randint(*PROMPT_TOKENS))),
            rng.randint(*OUTPUT_TOKENS),
        )
        for _ in range(count)
    ]


def run(path: Path, *, requests: int, seed: int, as_json: bool) -> list[Result]:
    """Measure and print: a table, or JSON on standard output."""
    console = Console(stderr=True)
    with console.status("loading the engine"):
        executor = Executor(EngineConfig(path, prefix_cache=False), load_tokenizer(path))
    dtype = getattr(torch, executor.model_info.dtype)
    work = workload(requests, seed, executor.model_info.vocab_size)
    try:
        _ours(executor, work[:1], "warm-up")
        with console.status(f"our engine: {requests} requests at once"):
            results = [_timed(f"quarry {executor.model_info.dtype}", work, partial(_ours, executor, work, "run"))]
    finally:
        executor.shutdown()
    _say(console, results[-1])
    with console.status("loading transformers"):
        rival, rival_dtype = _fastest(path, {dtype, torch.float32})
    for batch in BATCHES:
        name = f"transformers {rival_dtype}, batch {batch}"
        with console.status(name):
            parts = [work[i : i + batch] for i in range(0, len(work), batch)]
            results.append(_timed(name, work, partial(_in_batches, rival, parts)))
        _say(console, results[-1])
    _print(path, results, as_json)
    return results


def _say(console: Console, result: Result) -> None:
    console.print(f"{result.name}: {result.seconds:.1f} s", highlight=False)


def _timed(name: str, work: Sequence[Work], action: Callable[[], object]) -> Result:
    started = time.perf_counter()
    action()
    seconds = time.perf_counter() - started
    return Result(name, seconds, len(work), sum(len(w.prompt) for w in work), sum(w.output for w in work))


def _ours(executor: Executor, work: Sequence[Work], label: str) -> None:
    for i, item in enumerate(work):
        sampling = SamplingParams(max_tokens=item.output, ignore_eos=True)
        executor.enqueue_request(Request(f"{label}-{i}", item.prompt, sampling))
    open_requests, made = len(work), 0
    while open_requests:
        for response in executor.await_responses():
            made += len(response.token_ids)
            open_requests -= response.finished
    assert made == sum(item.output for item in work), "the engine made another number of tokens than asked for"


def _fastest(path: Path, dtypes: Iterable[torch.dtype]) -> tuple[Any, str]:
    """The rival in the dtype that is faster here, measured on a short request: on some CPUs bf16 is slower for it."""
    timed = []
    for dtype in sorted(dtypes, key=str):
        model = _transformers(path, dtype)
        probe = [Work(tuple(range(100, 164)), 8)]
        _generate(model, probe)
        timed.append((_timed("", probe, partial(_generate, model, probe)).seconds, str(dtype), model))
    _, name, model = min(timed, key=lambda entry: entry[0])
    return model, name.removeprefix("torch.")


def _transformers(path: Path, dtype: torch.dtype) -> Any:
    """The same weights in transformers' own model."""
    from transformers import AutoModelForCausalLM

    config, state = read_state_dict(path)
    model = AutoModelForCausalLM.from_config(_hf_config(config), dtype=dtype)
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    missing, surplus = model.load_state_dict(state, strict=False)
    assert not surplus, surplus
    assert all("rotary" in name for name in missing), missing
    return model.eval()


def _hf_config(config: ModelConfig) -> Any:
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    kind = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}[config.family]
    (attention,) = set(config.attention)
    assert attention.rope.scaling is None, "a rival for scaled rotary embeddings is not written"
    return kind(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": attention.rope.theta},
        head_dim=config.head_dim,
        tie_word_embeddings=config.tie_word_embeddings,
        attn_implementation="sdpa",
    )


def _in_batches(model: Any, parts: Sequence[Sequence[Work]]) -> None:
    for part in parts:
        _generate(model, part)


@torch.inference_mode()
def _generate(model: Any, work: Sequence[Work]) -> None:
    width, longest = max(len(w.prompt) for w in work), max(w.output for w in work)
    ids = torch.zeros(len(work), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, item in enumerate(work):
        ids[row, width - len(item.prompt) :] = torch.tensor(item.prompt)
        mask[row, width - len(item.prompt) :] = 1
    made = model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=False,
        min_new_tokens=longest,
        max_new_tokens=longest,
        pad_token_id=0,
    )
    assert made.shape[1] == width + longest


def _print(path: Path, results: Sequence[Result], as_json: bool) -> None:
    ours = results[0]
    if as_json:
        rows = [asdict(r) | {"ratio": r.seconds / ours.seconds} for r in results]
        print(json.dumps({"model": str(path), "threads": torch.get_num_threads(), "results": rows}))
        return
    table = Table(title=f"{path.parent.name}/{path.name}, {torch.get_num_threads()} threads, {ours.requests} requests")
    for name in ("", "seconds", "req/s", "output tok/s", "total tok/s", "quarry is faster by"):
        table.add_column(name, justify="left" if not name else "right")
    for r in results:
        ratio = "" if r is ours else f"{r.seconds / ours.seconds:.2f} ×"
        table.add_row(
            r.name, f"{r.seconds:.1f}", f"{r.requests_per_second:.2f}", f"{r.output_per_second:.1f}",
            f"{r.total_per_second:.0f}", ratio,
        )  # fmt: skip
    Console().print(table)
    Console().print(f"Aim: at least {AIM:g} times as fast as either.")
