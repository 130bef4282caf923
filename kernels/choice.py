"""From a step's logits to its tokens on a GPU, without the host: masks and penalties, then greedy choice or draw.

Plain twins: `kernels.sampling` for what is done to logits, `kernels.drawing.draw` and `argmax` for the choice.
Weights are fixed-point integers, in units of 2^-44 of the likeliest token's: integer sums are exact, so that a row's
token depends on the row alone, in whatever order a chip adds. What is lighter than one unit is never drawn.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.operands import History

BLOCK = 4096
WARPS = 8
ADJUST_BLOCK = 1024
UNIT = tl.constexpr(float(2**44))  # 2^44 times 2^18 tokens fits an int64
LIGHTEST = tl.constexpr(31.0)  # exp(-31) is less than half a unit


@triton.jit
def adjust_kernel(
    logits, mask_lines, words, history_lines, seen, made, repetition, presence, frequency,
    vocab, width, stride, MASK: tl.constexpr, PENALIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, known = i < width, i < vocab
    line_words = (vocab + 31) // 32
    value = tl.load(logits + row * stride + i, mask=inside, other=0.0)
    if MASK:
        line = tl.load(mask_lines + row).to(tl.int64)
        if line >= 0:
            word = tl.load(words + line * line_words + i // 32, mask=known, other=0)
            value = tl.where((word >> (i % 32)) & 1 != 0, value, float("-inf"))
    if PENALIZE:
        past = tl.load(history_lines + row).to(tl.int64)
        if past >= 0:
            factor = tl.load(repetition + past)
            word = tl.load(seen + past * line_words + i // 32, mask=known, other=0)
            penalized = tl.where(value > 0, tl.div_rn(value, factor + tl.zeros_like(value)), value * factor)
            value = tl.where((word >> (i % 32)) & 1 != 0, penalized, value)
            count = tl.load(made + past * vocab + i, mask=known, other=0).to(tl.float32)
            loss = tl.load(presence + past) + tl.load(frequency + past) * count
            value = tl.where(count > 0, value - loss, value)
    tl.store(logits + row * stride + i, tl.where(known, value, float("-inf")), mask=inside)


@triton.jit
def ordered(x):
    """fp32 -> int32 in the same order; both zeros are one number."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def weigh(x, i, likeliest, temperature, floor, least, last, COUNT: tl.constexpr):
    """What each token counts, int64: 0 if min-p's `floor` drops it, or if it comes behind token `last` of key `least`
    in the order of logits, of equal ones the smaller id first; else 1 with COUNT, and its weight without."""
    below = x - likeliest
    key = ordered(x)
    kept = (below >= floor) & ((key > least) | ((key == least) & (i <= last)))
    if COUNT:
        return kept.to(tl.int64)
    weight = tl.where(kept, tl.exp(tl.maximum(below / temperature, -100.0)), 0.0)
    return (weight * UNIT).to(tl.int64)


@triton.jit
def weight_from(row, vocab, likeliest, temperature, floor, least, last, key, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of what tokens count whose key is at least `key`."""
    total = tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocab, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(row + i, mask=i < vocab, other=float("-inf"))
        weight = weigh(x, i, likeliest, temperature, floor, least, last, COUNT)
        total += tl.where(ordered(x) >= key, weight, 0)
    return tl.sum(total, axis=0)


@triton.jit
def first_reaching(
    row, vocab, likeliest, temperature, floor, least, last, key, target,
    TIES: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first token by id up to which they count `target` >= 1 together; with TIES only those of `key` count."""
    before = tl.zeros([], tl.int64)
    found, reached = tl.zeros([], tl.int32), tl.zeros([], tl.int64)
    for start in range(0, vocab, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(row + i, mask=i < vocab, other=float("-inf"))
        weight = weigh(x, i, likeliest, temperature, floor, least, last, COUNT)
        if TIES:
            weight = tl.where(ordered(x) == key, weight, 0)
        after = before + tl.sum(weight, axis=0)
        here = (before < target) & (after >= target)
        found, reached = tl.where(here, start, found), tl.where(here, before, reached)
        before = after
    i = found + tl.arange(0, BLOCK)
    x = tl.load(row + i, mask=i < vocab, other=float("-inf"))
    weight = weigh(x, i, likeliest, temperature, floor, least, last, COUNT)
    if TIES:
        weight = tl.where(ordered(x) == key, weight, 0)
    short = reached + tl.cumsum(weight, axis=0) < target
    return found + tl.sum(short.to(tl.int32), axis=0)


@triton.jit
def cut(row, vocab, likeliest, temperature, floor, least, last, target, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The last token, in the order of logits, of the fewest that count `target` together: its key and its id."""
    low = ordered(likeliest - LIGHTEST * temperature).to(tl.int64)
    high = ordered(likeliest).to(tl.int64)
    while low < high:
        middle = high - (high - low) // 2
        total = weight_from(row, vocab, likeliest, temperature, floor, least, last, middle, COUNT, BLOCK)
        low = tl.where(total >= target, middle, low)
        high = tl.where(total == target, middle, tl.where(total > target, high, middle - 1))
    above = weight_from(row, vocab, likeliest, temperature, floor, least, last, low + 1, COUNT, BLOCK)
    ties = weight_from(row, vocab, likeliest, temperature, floor, least, last, low, COUNT, BLOCK) - above
    key = low.to(tl.int32)
    end = vocab - 1
    if ties > target - above:
        end = first_reaching(
            row, vocab, likeliest, temperature, floor, least, last, key, target - above, True, COUNT, BLOCK
        )
    return key, end


@triton.jit
def choose_kernel(tokens, logits, temperatures, top_ks, top_ps, min_ps, uniforms, vocab, stride, BLOCK: tl.constexpr):
    line = tl.program_id(0).to(tl.int64)
    row = logits + line * stride
    likeliest, token = tl.full([], float("-inf"), tl.float32), tl.zeros([], tl.int32)
    for start in range(0, vocab, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(row + i, mask=i < vocab, other=float("-inf"))
        best = tl.max(x, axis=0)
        first = tl.min(tl.where(x == best, i, vocab), axis=0)
        token = tl.where(best > likeliest, first, token)
        likeliest = tl.maximum(likeliest, best)
    temperature = tl.load(temperatures + line)
    if (temperature > 0) & (likeliest > float("-inf")):
        min_p, top_k, top_p = tl.load(min_ps + line), tl.load(top_ks + line), tl.load(top_ps + line)
        floor = tl.where(min_p > 0, temperature * tl.log(min_p), float("-inf"))
        least, last = tl.full([], -(2**31), tl.int32), vocab - 1
        if (top_k > 0) & (top_k < vocab):
            least, last = cut(row, vocab, likeliest, temperature, floor, least, last, top_k.to(tl.int64), True, BLOCK)
        total = weight_from(row, vocab, likeliest, temperature, floor, least, last, -(2**31), False, BLOCK)
        if top_p < 1:
            share = top_p.to(tl.float64) * total.to(tl.float64)
            whole = share.to(tl.int64)
            target = tl.maximum(tl.where(whole.to(tl.float64) < share, whole + 1, whole), 1)
            least, last = cut(row, vocab, likeliest, temperature, floor, least, last, target, False, BLOCK)
            total = weight_from(row, vocab, likeliest, temperature, floor, least, last, -(2**31), False, BLOCK)
        target = (tl.load(uniforms + line) * total.to(tl.float64)).to(tl.int64) + 1
        token = first_reaching(
            row, vocab, likeliest, temperature, floor, least, last, 0, tl.minimum(target, total), False, False, BLOCK
        )
    tl.store(tokens + line, token.to(tl.int64))


def adjust(
    logits: Tensor,
    vocab: int,
    masks: tuple[Tensor, Tensor] | None = None,
    histories: tuple[Tensor, History] | None = None,
) -> None:
    """Masks, then repetition, presence and frequency penalties (`kernels.sampling`), in place.

    logits [R, W] fp32, rows contiguous; tokens from `vocab` <= W on become -inf. `masks` is (lines [R] int32, words
    [lines, ceil(vocab / 32)] int32): row r allows what line lines[r] says, all if that is -1; bit b of word w is token
    32 w + b. `histories` is (lines [R] int32, History), -1 for none. Biases are to be added before: a mask does not
    mind them.
    """
    rows, width = logits.shape
    lines, words = masks if masks is not None else (logits, logits)
    pasts, past = histories if histories is not None else (logits, None)
    tables = (past.seen, past.made, past.repetition, past.presence, past.frequency) if past else (logits,) * 5
    adjust_kernel[(rows, triton.cdiv(width, ADJUST_BLOCK))](
        logits, lines, words, pasts, *tables, vocab, width, logits.stride(0),
        MASK=masks is not None, PENALIZE=past is not None, BLOCK=ADJUST_BLOCK, num_warps=4,
    )  # fmt: skip


def choose_tokens(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """The arguments and meaning of `kernels.drawing.draw`, and a temperature of 0 takes the likeliest -> [R] int64.

    logits [R, V] fp32 on the device, rows contiguous, V up to 2^18; all else is on the device too. A row reads its
    logits three times when nothing is cut, and about 30 times more for each of top-k and top-p.
    """
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    choose_kernel[(rows,)](
        tokens, logits, temperature, top_k, top_p, min_p, uniform, vocab, logits.stride(0), BLOCK=BLOCK, num_warps=WARPS
    )
    return tokens
