"""From a plan to tensors, and through the model to logits. The only part of the loop that touches the device."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from inference.config import EngineConfig
from inference.models.decoder import Decoder
from inference.models.formats import pick_format
from inference.models.kv_cache import KVCache
from inference.models.loader import load_decoder
from inference.plan import Plan
from inference.speculation.draft_model import DraftModel
from inference.step import Part, step_tensors
from kernels.ops import KV_BLOCK

log = logging.getLogger(__name__)


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one. Raises ValueError when the device asked for is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch finds no GPU; use 'cpu' or 'auto'")
    return torch.device(name)


class Runner:
    """The model, its cache, and one forward per step."""

    def __init__(self, config: EngineConfig, vocab_size: int | None = None) -> None:
        """`vocab_size` is the tokenizer's, which a head may exceed; None: all that the head has."""
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self.device = pick_device(config.device)
        self.format = pick_format(config.quantization, config.dtype, self.device)
        self.dtype = self.format.dtype
        self.model: Decoder = load_decoder(config.model_path, self.format, self.device)
        shape = self.model.config
        if KV_BLOCK % config.page_size:
            raise ValueError(
                f"page_size is {config.page_size}; it must divide {KV_BLOCK}, the block in which contexts are attended"
            )
        draft = load_decoder(config.draft_model_path, self.format, self.device) if config.draft_model_path else None
        models = [self.model] if draft is None else [self.model, draft]
        page_bytes = config.page_size * sum(m.config.kv_bytes_per_token(self.dtype.itemsize) for m in models)
        longest = min(m.config.max_position_embeddings for m in models)
        longest = min(config.max_model_len or longest, longest)
        # No more pages than all sequences at full length could fill.
        useful = config.max_num_seqs * -(-longest // config.page_size)
        self.pages = min(config.kv_cache_bytes // page_bytes, useful)
        if self.pages < 1:
            raise ValueError(
                f"kv_cache_bytes is {config.kv_cache_bytes}, but one page of {config.page_size} tokens takes "
                f"{page_bytes}; raise it"
            )
        self.max_model_len = min(longest, self.pages * config.page_size)
        self.page_size = config.page_size
        self.cache = KVCache(shape, self.pages + 1, config.page_size, self.dtype, self.device)
        self.draft_model = None
        if draft is not None:
            self.draft_model = DraftModel(
                draft,
                vocab_size=vocab_size or draft.config.vocab_size,
                pages=self.pages,
                page_size=config.page_size,
                max_batched_tokens=config.max_num_batched_tokens,
            )
        for model in models:
            model.reserve(self.max_model_len)

    @torch.inference_mode()
    def forward(self, plan: Plan) -> Tensor:
        """Compute the plan -> logits [R, head size] fp32, row i for `plan.logits[i]`."""
        parts = [Part(item.tokens, item.start, item.sequence.pages) for item in plan]
        rows = [row.row for row in plan.logits]
        return self.model.forward(step_tensors(parts, rows, self.model, self.page_size), self.cache)
