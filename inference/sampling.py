"""From logits to tokens, for all rows of a step at once.

A row's token and log-probabilities depend on its logits and its `SamplingRow` alone, bit for bit: not on the other
rows, nor on how many there are. Everything that adds numbers up goes row by row, or by a fixed tree (`kernels`).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from collections.abc import Set
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.randomness import uniforms
from inference.request import SamplingParams, TokenLogprob
from inference.sequence import Sequence
from kernels import ops


@dataclass(frozen=True)
class SamplingRow:
    """How one row of logits is sampled.

    `position` is the number of tokens of the answer before the one to be chosen; with `seed` it decides the draw.
    `prompt` and `made`, those tokens, are what penalties look at: the repetition penalty at both, the presence and
    frequency penalties at `made`. They may be empty when `params` has no penalties.
    """

    params: SamplingParams
    seed: int = 0
    position: int = 0
    prompt: Seq[int] = ()
    made: Seq[int] = ()

    @classmethod
    def behind(cls, sequence: Sequence, draft: Seq[int] = ()) -> SamplingRow:
        """The row that chooses a sequence's next token, or, in the verification of a draft, the one behind `draft`,
        its first tokens: what would be chosen there if they had been committed."""
        request = sequence.request
        row = cls(request.sampling, sequence.seed, sequence.output_length + len(draft))
        if not request.sampling.penalizes:
            return row
        made = [*sequence.tokens[sequence.prompt_length :], *draft]
        return cls(row.params, row.seed, row.position, request.prompt_token_ids, made)

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before the choice, the grammar's mask aside."""
        return self.position < self.params.min_tokens or bool(self.params.logit_bias) or self.params.penalizes


@dataclass(frozen=True)
class Masks:
    """What the constrained rows allow: a bit per token, as `kernels.ops.mask_logits` takes it."""

    rows: list[int]
    words: Tensor


@dataclass(frozen=True)
class Sample:
    token: int
    logprob: TokenLogprob | None


def sample(
    logits: Tensor, rows: Seq[SamplingRow], masks: Masks | None, vocab_size: int, ends: Set[int] = frozenset()
) -> list[Sample]:
    """One token for each row.

    logits [R, V] fp32, overwritten; `vocab_size` <= V is the tokenizer's, tokens beyond it are never chosen. `ends` are
    the tokens that end an answer. `SamplingParams` has the order in which parameters apply.
    """
    logits[:, vocab_size:] = float("-inf")
    plain = {i: _Plain(logits[i, :vocab_size], row) for i, row in enumerate(rows) if row.params.logprobs is not None}
    if masks is not None:
        ops.mask_logits(logits, masks.rows, masks.words)
    constrained = set(masks.rows) if masks is not None else set()
    for i, row in enumerate(rows):
        if row.adjusts:
            _adjust(logits[i], row, () if row.params.ignore_eos and i not in constrained else ends)
    tokens = _choose(logits, rows)
    return [Sample(token, plain[i].logprob(token) if i in plain else None) for i, token in enumerate(tokens)]


def _adjust(logits: Tensor, row: SamplingRow, ends: Set[int] | tuple[()]) -> None:
    params = row.params
    if row.position < params.min_tokens and (banned := [*ends, *params.stop_token_ids]):
        ops.ban(logits, banned)
    if params.logit_bias:
        ops.add_bias(logits, *zip(*params.logit_bias, strict=True))
    if params.repetition_penalty != 1:
        ops.penalize_seen(logits, [*row.prompt, *row.made], params.repetition_penalty)
    if row.made and (params.presence_penalty or params.frequency_penalty):
        ops.penalize_made(logits, row.made, params.presence_penalty, params.frequency_penalty)


def _choose(logits: Tensor, rows: Seq[SamplingRow]) -> list[int]:
    tokens = ops.argmax(logits)
    random = [i for i, row in enumerate(rows) if not row.params.greedy]
    if random:
        drawn = [rows[i] for i in random]
        every = random if len(random) < len(rows) else slice(None)
        tokens[random] = _draw(logits[every], drawn)
    return tokens.tolist()


def _draw(logits: Tensor, rows: Seq[SamplingRow]) -> Tensor:
    device, params = logits.device, [row.params for row in rows]

    def floats(values: Seq[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    return ops.draw(
        logits,
        temperature=floats([p.temperature for p in params]),
        top_k=torch.tensor([p.top_k for p in params], device=device),
        top_p=floats([p.top_p for p in params]),
        min_p=floats([p.min_p for p in params]),
        uniform=torch.from_numpy(uniforms([r.seed for r in rows], [r.position for r in rows])).to(device),
    )


class _Plain:
    """A row as the model left it, for its log-probabilities: kept where something is going to change it."""

    def __init__(self, logits: Tensor, row: SamplingRow) -> None:
        """logits [V] fp32, a view of what is overwritten later."""
        count = row.params.logprobs or 0
        self._total = ops.log_total(logits)
        ids, values = ops.top(logits, count) if count else ([], [])
        self._top = tuple((token, value - self._total) for token, value in zip(ids, values, strict=True))
        # A mask leaves what may be chosen as it is; biases and penalties do not.
        self._logits = logits.clone() if row.adjusts else logits

    def logprob(self, token: int) -> TokenLogprob:
        return TokenLogprob(token, float(self._logits[token]) - self._total, self._top)
