"""A decoder's shape. `hf_config` and `gguf_config` read it from checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from inference.models.rope import Rope
from kernels.ops import Activation

# Hugging Face's model_type of each family.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")


class UnsupportedModel(ValueError):
    """The checkpoint is of a kind the engine does not run. The message names what was found and what is known."""


@dataclass(frozen=True)
class Attention:
    """How a layer attends."""

    rope: Rope
    scale: float  # of query times key; the rotary embedding's magnitude is part of it
    window: int | None = None  # tokens that a query sees, itself included; None: all before it
    softcap: float = 0.0  # c: a score s becomes c tanh(s / c), 0: as it is (Gemma 2 report, section 2)


@dataclass(frozen=True)
class ModelConfig:
    """Shape and constants of a decoder with grouped-query attention."""

    family: str
    vocab_size: int  # rows of the head; may exceed the tokenizer's
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention: tuple[Attention, ...]  # one per layer
    activation: Activation = "silu"  # of the gated MLP
    qkv_bias: bool = False
    qk_norm: bool = False  # queries and keys normalised per head, before they are rotated
    output_norms: bool = False  # what attention and MLP give is normalised before it is added
    wide_norms: bool = False  # norms multiply by their weight in fp32, before they round
    embedding_scale: float = 1.0
    logit_softcap: float = 0.0  # of the head's logits, as Attention.softcap

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModel(
                f"{self.num_heads} query heads cannot be shared evenly by {self.num_kv_heads} KV heads"
            )
        if self.head_dim % 2:
            raise UnsupportedModel(f"the head size is {self.head_dim}; the rotary embedding needs an even one")

    @property
    def num_layers(self) -> int:
        return len(self.attention)

    def kv_bytes_per_token(self, element_size: int) -> int:
        """Bytes that one token takes in the cache, keys and values of all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_size
