"""Random numbers without a state: each is a function of a request's seed and of a place in its answer.

What is drawn for a token can so not depend on what else is in the batch, on drafts that were tried before, or on how
often the request was preempted.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_Words = npt.NDArray[np.uint64]
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each pair of a seed (any integer of 64 bits) and a position >= 0.

    The position-th output of SplitMix64 (Steele, Lea and Flood, 2014) that starts at the mixed seed, in steps of 2^-53.
    """
    start = _mix(_words(seeds) + np.uint64(_GOLDEN))
    bits = _stream(start, _words(positions)) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one of n answers: the first has the request's own, so that n changes nothing for it."""
    if choice == 0:
        return seed
    start = _mix(_words([seed]) ^ np.uint64(0x5851F42D4C957F2D))
    return int(_stream(start, _words([choice]))[0] >> np.uint64(1))


def fresh_seed() -> int:
    """For a request that names none."""
    return secrets.randbits(63)


def _words(values: Sequence[int]) -> _Words:
    return np.array([value & _MASK for value in values], dtype=np.uint64)


def _stream(start: _Words, index: _Words) -> _Words:
    return _mix(start + (index + np.uint64(1)) * np.uint64(_GOLDEN))


def _mix(z: _Words) -> _Words:
    """SplitMix64's output function, a bijection of the 64-bit words."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
