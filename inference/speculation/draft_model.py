"""A smaller model of the same vocabulary that proposes greedily (Leviathan et al. 2023, Chen et al. 2023).

Its cache has a page for each page of the large model's and follows the same block tables, so that it needs no memory
management of its own: it only remembers how far it has computed each request, and which full pages it has seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from inference.models.decoder import Decoder
from inference.models.kv_cache import KVCache
from inference.sequence import Sequence as Request
from inference.step import Part, step_tensors


class VocabularyMismatch(ValueError):
    """The draft model's tokens are not the model's. The message names a token that differs."""


def check_vocabulary(model: dict[str, int], draft: dict[str, int]) -> None:
    """Both map each token's text to its id. Raises VocabularyMismatch."""
    if model == draft:
        return
    ours, theirs = ({i: text for text, i in v.items()} for v in (model, draft))
    differing = next(i for i in sorted(ours.keys() | theirs.keys()) if ours.get(i) != theirs.get(i))
    raise VocabularyMismatch(
        f"token {differing} is {ours.get(differing)!r} for the model and {theirs.get(differing)!r} for the draft: "
        "it needs the same ones; take a smaller model of the family"
    )


@dataclass(frozen=True)
class Wanted:
    sequence: Request
    count: int


@dataclass
class _Proposal:
    sequence: Request
    count: int
    tokens: list[int]


@dataclass
class _Progress:
    """`computed` of the request's tokens have keys and values, and behind them so have the tokens in `ahead`."""

    epoch: int
    computed: int
    ahead: list[int]


class DraftModel:
    def __init__(self, model: Decoder, *, vocab_size: int, pages: int, page_size: int, max_batched_tokens: int) -> None:
        """`vocab_size` is the tokenizer's, `pages` what the large model has, without the dummy."""
        self._model = model
        self._vocab_size = vocab_size
        self._page_size = page_size
        self._max_batched = max_batched_tokens
        self._cache = KVCache(model.config, pages + 1, page_size, model.dtype, model.device)
        self._progress: dict[str, _Progress] = {}
        self._content: dict[int, bytes] = {}  # page -> hash of the tokens that it was computed for

    def forget(self, sequence: Request) -> None:
        self._progress.pop(sequence.request.id, None)

    @torch.inference_mode()
    def propose(self, wanted: Sequence[Wanted], note_step: Callable[[float], None]) -> list[list[int]]:
        """At most `count` tokens for each, fewer where its pages end. `note_step` gets the seconds of each forward that
        computes one token of every request."""
        proposals = [_Proposal(want.sequence, min(want.count, self._room(want.sequence)), []) for want in wanted]
        growing = [p for p in proposals if p.count > 0]
        for proposal, token in zip(growing, self._catch_up([p.sequence for p in growing]), strict=True):
            proposal.tokens.append(token)
        while growing := [p for p in growing if len(p.tokens) < p.count]:
            started = time.monotonic()
            parts = [Part(p.tokens[-1:], len(p.sequence.tokens) + len(p.tokens) - 1, p.sequence.pages) for p in growing]
            for proposal, token in zip(growing, self._forward(parts, range(len(parts))), strict=True):
                self._progress[proposal.sequence.request.id].ahead.append(proposal.tokens[-1])
                proposal.tokens.append(token)
            note_step(time.monotonic() - started)
        return [p.tokens for p in proposals]

    def _room(self, sequence: Request) -> int:
        """Proposals that there are pages for: the last one is not computed here."""
        return len(sequence.pages) * self._page_size - len(sequence.tokens) + 1

    def _catch_up(self, sequences: Sequence[Request]) -> list[int]:
        """Compute what is missing of each -> the token that follows each."""
        starts = [self._known(sequence) for sequence in sequences]
        following: list[int] = [0] * len(sequences)
        while True:
            parts: list[Part] = []
            of: list[int] = []
            budget = self._max_batched
            for i, sequence in enumerate(sequences):
                count = min(len(sequence.tokens) - starts[i], budget)
                if count > 0:
                    parts.append(Part(sequence.tokens[starts[i] : starts[i] + count], starts[i], sequence.pages))
                    of.append(i)
                    budget -= count
            if not parts:
                break
            ends, row = [], -1
            for part in parts:
                row += len(part.tokens)
                ends.append(row)
            for i, part, token in zip(of, parts, self._forward(parts, ends), strict=True):
                starts[i] += len(part.tokens)
                following[i] = token
        for sequence in sequences:
            self._progress[sequence.request.id] = _Progress(sequence.epoch, len(sequence.tokens), [])
            self._content.update(zip(sequence.pages, sequence.chain, strict=False))
        return following

    def _known(self, sequence: Request) -> int:
        """How many leading tokens have their keys and values here already; the last one is always computed."""
        known = 0
        progress = self._progress.get(sequence.request.id)
        if progress is not None and progress.epoch == sequence.epoch:
            known = progress.computed
            for token in progress.ahead:
                if known >= len(sequence.tokens) or sequence.tokens[known] != token:
                    break
                known += 1
        else:
            for page, content in zip(sequence.pages, sequence.chain, strict=False):
                if self._content.get(page) != content:
                    break
                known += self._page_size
        return min(known, len(sequence.tokens) - 1)

    def _forward(self, parts: Sequence[Part], rows: Sequence[int]) -> list[int]:
        """The likeliest token behind each of `rows`."""
        for part in parts:
            first, last = part.start // self._page_size, (part.start + len(part.tokens) - 1) // self._page_size
            for page in part.pages[first : last + 1]:
                self._content.pop(page, None)
        logits = self._model.forward(step_tensors(parts, rows, self._model, self._page_size), self._cache)
        return logits[:, : self._vocab_size].argmax(-1).tolist()
