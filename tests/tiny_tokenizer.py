"""A small byte-level BPE tokenizer, trained on the spot: merges across JSON's punctuation, as real ones have them."""

from __future__ import annotations

import json
from functools import cache

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from inference.tokenizer import Tokenizer

WORDS = "name title year price true false null tags item amount unit description serves author published 2024 1999 3.14"


@cache
def bpe_tokenizer(size: int = 640) -> Tokenizer:
    """`size` tokens with two ends: `<|end|>` and `<|turn|>`."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(r"\p{N}", "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|end|>", "<|turn|>"],
        show_progress=False,
    )
    backend.train_from_iterator(_corpus(), trainer)
    ends = tuple(backend.token_to_id(token) for token in ("<|end|>", "<|turn|>"))
    return Tokenizer(backend, backend.to_str(), backend.get_vocab_size(with_added_tokens=True), ends, None)


def _corpus() -> list[str]:
    words = WORDS.split()
    lines = []
    for shift in range(len(words)):
        turned = words[shift:] + words[:shift]
        record = {a: b for a, b in zip(turned[::2], turned[1::2], strict=False)}
        for value in (record, {"items": turned}, [record, {}, [], None, True], {"nested": {"list": [record]}}):
            lines += [json.dumps(value), json.dumps(value, separators=(",", ":"))]
        lines.append(" ".join(turned) + ". Für 30 °C: über Maß, 東京, naïve.\n")
    return lines
