"""Engines beside ours: transformers' `generate`, and llama.cpp's server on the same GGUF.

Each runs in a process of its own, so that threads, memory and libraries don't meet, and waits there without computing
until it is given work. llama.cpp comes as the wheel `xllamacpp`, which has its server and its grammar (llguidance, like
ours) without compiling anything: `pip install 'quarry[bench]'`.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import psutil

from bench.workloads import Work


@dataclass(frozen=True)
class Outcome:
    """Of one workload. `output_tokens` are those asked for and made; what padding computes beyond them is not."""

    seconds: float
    requests: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Load:
    """What an engine has to be ready for."""

    concurrency: int  # requests at once
    longest: int  # tokens of one request, its answer included
    threads: int


class Contestant(Protocol):
    name: str

    def run(self, work: Sequence[Work]) -> Outcome: ...

    def memory(self) -> int:
        """Bytes that are resident."""
        ...

    def close(self) -> None: ...


class RivalFailed(RuntimeError):
    """The rival's process ended, or said why it can't."""


class _Engine(Protocol):
    name: str

    def run(self, work: Sequence[Work]) -> Outcome: ...


class Rival:
    """A contestant in a process of its own."""

    def __init__(self, kind: type[Transformers] | type[LlamaCpp], path: Path, load: Load) -> None:
        """Returns when the model is loaded. Raises RivalFailed."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, kind, path, load), daemon=True)
        self._process.start()
        theirs.close()
        self.name = str(self._answer())

    def run(self, work: Sequence[Work]) -> Outcome:
        self._pipe.send(list(work))
        outcome = self._answer()
        assert isinstance(outcome, Outcome)
        return outcome

    def memory(self) -> int:
        return psutil.Process(self._process.pid).memory_info().rss

    def close(self) -> None:
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _answer(self) -> object:
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            self._process.join(10)
            raise RivalFailed(f"the rival's process ended with status {self._process.exitcode}") from None
        if kind == "error":
            raise RivalFailed(value)
        return value


def _serve(pipe: Connection, kind: type, path: Path, load: Load) -> None:
    try:
        engine: _Engine = kind(path, load)
        pipe.send(("name", engine.name))
        while True:
            pipe.send(("outcome", engine.run(pipe.recv())))
    except (EOFError, KeyboardInterrupt):
        return
    except Exception as error:
        pipe.send(("error", f"{type(error).__name__}: {error}"))


class Transformers:
    """`generate` on batches of `concurrency` requests, padded on the left and ended when the longest is done.

    It has no grammar: of a request with a schema it makes as many tokens, of anything.
    """

    def __init__(self, path: Path, load: Load) -> None:
        import torch

        torch.set_num_threads(load.threads)
        # Emulated bf16 is slower than fp32 for it, too.
        able = torch.cpu.get_capabilities()
        dtype = torch.bfloat16 if able.get("avx512_bf16") or able.get("amx_bf16") else torch.float32
        self._model = _transformers(path, dtype)
        self._batch = load.concurrency
        self.name = "transformers" if dtype == torch.float32 else "transformers bf16"

    def run(self, work: Sequence[Work]) -> Outcome:
        started = time.perf_counter()
        for first in range(0, len(work), self._batch):
            self._generate(work[first : first + self._batch])
        seconds = time.perf_counter() - started
        return Outcome(seconds, len(work), sum(len(w.prompt) for w in work), sum(w.output for w in work))

    def _generate(self, work: Sequence[Work]) -> None:
        import torch

        width, longest = max(len(w.prompt) for w in work), max(w.output for w in work)
        ids = torch.zeros(len(work), width, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, item in enumerate(work):
            ids[row, width - len(item.prompt) :] = torch.tensor(item.prompt)
            mask[row, width - len(item.prompt) :] = 1
        with torch.inference_mode():
            made = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=longest,
                max_new_tokens=longest,
                pad_token_id=0,
            )
        assert made.shape[1] == width + longest


def _transformers(path: Path, dtype: Any) -> Any:
    """The same weights in transformers' own model."""
    from transformers import AutoModelForCausalLM

    from inference.models.loader import read_state_dict

    config, state = read_state_dict(path)
    model = AutoModelForCausalLM.from_config(_hf_config(config), dtype=dtype)
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    missing, surplus = model.load_state_dict(state, strict=False)
    assert not surplus, surplus
    assert all("rotary" in name for name in missing), missing
    return model.eval()


def _hf_config(config: Any) -> Any:
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


class LlamaCpp:
    """llama.cpp's own server in this process: a slot for each concurrent request, continuous batching, its prompt
    cache, its grammar."""

    def __init__(self, path: Path, load: Load) -> None:
        import xllamacpp

        file = path if path.is_file() else next(path.glob("*.gguf"))
        params = xllamacpp.CommonParams()
        params.model.path = str(file)
        params.n_parallel = load.concurrency
        params.n_ctx = load.concurrency * load.longest
        params.cont_batching = True
        params.n_threads_http = load.concurrency + 2
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = load.threads
        params.verbosity = -1
        self._server = xllamacpp.Server(params)
        self._concurrency = load.concurrency
        self.name = "llama.cpp"

    def run(self, work: Sequence[Work]) -> Outcome:
        started = time.perf_counter()
        with ThreadPoolExecutor(self._concurrency) as clients:
            usages = list(clients.map(self._complete, work))
        seconds = time.perf_counter() - started
        return Outcome(
            seconds,
            len(work),
            sum(usage["prompt_tokens"] for usage in usages),
            sum(usage["completion_tokens"] for usage in usages),
        )

    def _complete(self, item: Work) -> dict[str, int]:
        import json

        request = {"prompt": list(item.prompt), "max_tokens": item.output, "temperature": 0.0, "cache_prompt": True}
        if item.schema is None:
            request["ignore_eos"] = True
        else:
            request["json_schema"] = json.loads(item.schema)
        answer = self._server.handle_completions(request)
        if "usage" not in answer:
            raise RivalFailed(f"llama.cpp answered {answer}")
        if answer["usage"]["completion_tokens"] != item.output:
            raise RivalFailed(f"llama.cpp made {answer['usage']['completion_tokens']} tokens of {item.output}")
        return answer["usage"]


def has_llama_cpp() -> bool:
    return find_spec("xllamacpp") is not None
