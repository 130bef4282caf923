"""How one engine runs. Built from command-line flags by `inference.server`; nothing here reads the environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inference.speculation.draft import Source

QUANTIZATIONS = ("auto", "none", "fp16", "int8")


@dataclass(frozen=True)
class EngineConfig:
    """One engine: one model on one device.

    `max_num_batched_tokens` bounds the tokens of a step (prefill chunks and decode steps together);
    `kv_cache_bytes` bounds the paged cache, and with it how many tokens can be held at once.
    A core that takes longer than `start_seconds` to load its models, or `stall_seconds` for one turn of its loop, is
    taken to hang: it is killed and started anew. Infinity turns that off.
    """

    model_path: Path  # a .gguf file, or a folder with config.json and safetensors
    served_name: str = ""  # empty: the file's or folder's name
    device: str = "auto"  # auto, cpu, cuda
    dtype: str = "auto"  # auto, bfloat16, float32
    quantization: str = "auto"  # of weights: auto, none, fp16, int8; see inference.models.formats
    max_model_len: int | None = None  # tokens of prompt and output; None: the model's own, as far as the cache reaches
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512  # a step of 1,024 is a quarter slower per token on the CPU: it leaves the cache
    max_waiting: int = 1024
    page_size: int = 32  # tokens
    kv_cache_bytes: int = 1 << 30
    num_threads: int | None = None  # None: torch's own choice
    prefix_cache: bool = True
    speculation: tuple[str, ...] = ("forced", "lookup")  # what proposes tokens beside a draft model; see Source
    max_draft_tokens: int = 15  # per request and step
    draft_model_path: Path | None = None  # a smaller checkpoint of the same vocabulary
    # The slowest honest turn known: a full step of an 8B model in fp32 on two cores without matrix units is 8 TFLOP at
    # 0.1 TFLOP/s, a minute and a half.
    stall_seconds: float = 300.0
    start_seconds: float = 1800.0  # 140 GB from a disk that reads 0.1 GB/s

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_waiting", "page_size", "kv_cache_bytes"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        for name in ("stall_seconds", "start_seconds"):
            if not (seconds := getattr(self, name)) > 0:
                raise ValueError(f"{name} is {seconds:g}; it must be above 0, or inf for no limit")
        if self.max_draft_tokens < 0:
            raise ValueError(
                f"max_draft_tokens is {self.max_draft_tokens}; it must be at least 0, which turns drafts off"
            )
        if unknown := set(self.speculation) - {Source.FORCED, Source.LOOKUP}:
            raise ValueError(
                f"speculation names {', '.join(map(repr, sorted(unknown)))}; it may name {Source.FORCED} and "
                f"{Source.LOOKUP}. A draft model is given by draft_model_path"
            )
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs is {self.max_num_seqs}, above max_num_batched_tokens {self.max_num_batched_tokens}: "
                "every running sequence needs one token a step; raise the second or lower the first"
            )
        for name, allowed in (
            ("dtype", ("auto", "bfloat16", "float32")),
            ("device", ("auto", "cpu", "cuda")),
            ("quantization", QUANTIZATIONS),
        ):
            if (text := getattr(self, name)) not in allowed:
                raise ValueError(f"{name} is {text!r}; it must be one of {', '.join(allowed)}")

    @property
    def name(self) -> str:
        return self.served_name or self.model_path.stem
