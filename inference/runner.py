"""From a plan to tensors, and through the model to logits. The only part of the loop that touches the device."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from inference.config import EngineConfig
from inference.memory.cache import KVCache
from inference.memory.pages import DUMMY_PAGE
from inference.models.decoder import DecodeGroup, Decoder, PrefillSegment, StepTensors
from inference.models.loader import load_decoder
from inference.plan import Plan, Scheduled
from kernels import ops

# Decoding requests share a batched attention call while the longest has at most this many times the pages of the
# shortest: fewer calls against pages read for nothing. The dummy page fills the gap.
GROUP_RATIO = 1.5
GROUP_SLACK = 2  # pages, so that short contexts do not each get a call of their own

log = logging.getLogger(__name__)


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one. Raises ValueError when the device asked for is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch finds no GPU; use 'cpu' or 'auto'")
    return torch.device(name)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bf16 where the device computes in it, fp32 elsewhere: emulated bf16 is slower than fp32."""
    if name != "auto":
        return {"bfloat16": torch.bfloat16, "float32": torch.float32}[name]
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        native = able.get("avx512_bf16") or able.get("amx_bf16")
        return torch.bfloat16 if native else torch.float32
    return torch.bfloat16


class Runner:
    """The model, its cache, and one forward per step."""

    def __init__(self, config: EngineConfig) -> None:
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self.device = pick_device(config.device)
        self.dtype = pick_dtype(config.dtype, self.device)
        self.model: Decoder = load_decoder(config.model_path, self.dtype, self.device)
        shape = self.model.config
        page_bytes = config.page_size * shape.kv_bytes_per_token(self.dtype.itemsize)
        longest = min(config.max_model_len or shape.max_position_embeddings, shape.max_position_embeddings)
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
        self.model.reserve(self.max_model_len)

    @torch.inference_mode()
    def forward(self, plan: Plan) -> Tensor:
        """Compute the plan -> logits [R, head size] fp32, row i for `plan.logits[i]`."""
        return self.model.forward(self._tensors(plan), self.cache)

    def _tensors(self, plan: Plan) -> StepTensors:
        size = self.page_size
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for item in plan:
            pages = item.sequence.pages
            tokens += item.sequence.tokens[item.start : item.stop]
            positions += range(item.start, item.stop)
            slots += [pages[p // size] * size + p % size for p in range(item.start, item.stop)]
        return StepTensors(
            tokens=self._ints(tokens),
            positions=self._ints(positions),
            slots=self._ints(slots),
            decode=self._decode_groups([item for item in plan if item.count == 1]),
            prefill=tuple(self._prefill_segment(item) for item in plan if item.count > 1),
            logits_rows=self._ints([row.row for row in plan.logits]),
        )

    def _ints(self, values: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def _decode_groups(self, items: list[Scheduled]) -> tuple[DecodeGroup, ...]:
        size = self.page_size
        used = {id(item): -(-item.stop // size) for item in items}
        items = sorted(items, key=lambda item: used[id(item)])
        groups: list[list[Scheduled]] = []
        for item in items:
            if groups and used[id(item)] <= GROUP_RATIO * used[id(groups[-1][0])] + GROUP_SLACK:
                groups[-1].append(item)
            else:
                groups.append([item])
        return tuple(self._decode_group(group, used[id(group[-1])]) for group in groups)

    def _decode_group(self, items: list[Scheduled], width: int) -> DecodeGroup:
        pages = [item.sequence.pages[:width] for item in items]
        padded = [row + [DUMMY_PAGE] * (width - len(row)) for row in pages]
        lengths = self._ints([item.stop for item in items]).unsqueeze(1)
        beyond = torch.arange(width * self.page_size, device=self.device) >= lengths
        mask = torch.zeros(beyond.shape, dtype=self.dtype, device=self.device).masked_fill_(beyond, float("-inf"))
        return DecodeGroup(
            rows=self._ints([item.row for item in items]), pages=self._ints(padded), mask=mask[:, None, None, :]
        )

    def _prefill_segment(self, item: Scheduled) -> PrefillSegment:
        slots = mask = None
        if item.start:
            mask = ops.chunk_mask(item.count, item.stop, self.dtype, self.device)
            pages = self._ints(item.sequence.pages)
            within = torch.arange(self.page_size, device=self.device)
            slots = (pages[:, None] * self.page_size + within).flatten()[: item.stop]
        return PrefillSegment(item.row, item.row + item.count, item.stop, slots, mask)
