"""The tensors behind the pages. Which page belongs to whom is `inference.memory.pages`' business."""

from __future__ import annotations

import torch

from inference.models.config import ModelConfig


class KVCache:
    """Keys and values of every layer, each [pages, page_size, KH, D].

    A page holds whole tokens with their KV heads side by side, so that one page is one contiguous read for a gather on
    the CPU and one block of a tile on a GPU.
    """

    def __init__(
        self, config: ModelConfig, pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (pages, page_size, config.num_kv_heads, config.head_dim)
        # Zeros, not garbage: masked positions still enter a product, and 0 * NaN would be NaN.
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]
