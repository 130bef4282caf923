"""Rotary frequencies: the base, and how a checkpoint stretches it to contexts longer than it was first trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class RopeScaling(Protocol):
    """A change of the D/2 rotary frequencies that were laid out for base `theta`."""

    def stretch(self, frequencies: list[float], theta: float) -> list[float]: ...

    @property
    def magnitude(self) -> float:
        """What rotated queries and keys are each multiplied by."""
        ...


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by `factor` (Chen et al. 2023)."""

    factor: float
    magnitude: float = 1.0

    def stretch(self, frequencies: list[float], theta: float) -> list[float]:
        return [frequency / self.factor for frequency in frequencies]


@dataclass(frozen=True)
class Llama3Scaling:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1 model card)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int  # tokens
    magnitude: float = 1.0

    def stretch(self, frequencies: list[float], theta: float) -> list[float]:
        def one(frequency: float) -> float:
            turns = self.original_length * frequency / (2 * math.pi)
            kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
            kept = min(max(kept, 0.0), 1.0)
            return (1 - kept) * frequency / self.factor + kept * frequency

        return [one(frequency) for frequency in frequencies]


@dataclass(frozen=True)
class YarnScaling:
    """Dimensions that turn less than `beta_slow` times within the original length are stretched, those that turn more
    than `beta_fast` times kept, and a ramp over the dimensions lies between (YaRN, Peng et al. 2023, section 3.2).

    `truncate` widens the ramp to whole dimensions, as published checkpoints expect.
    """

    factor: float
    original_length: int  # tokens
    magnitude: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def stretch(self, frequencies: list[float], theta: float) -> list[float]:
        size = 2 * len(frequencies)

        def dimension(turns: float) -> float:
            """The (fractional) dimension that turns this often within the original length."""
            return size * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        width = high - low or 0.001

        def one(index: int, frequency: float) -> float:
            stretched = min(max((index - low) / width, 0.0), 1.0)
            return stretched * frequency / self.factor + (1 - stretched) * frequency

        return [one(index, frequency) for index, frequency in enumerate(frequencies)]


def yarn_magnitude(factor: float, multiplier: float = 1.0) -> float:
    """0.1 m ln(s) + 1, equation 22 of the paper (which multiplies queries and keys alike)."""
    return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0


@dataclass(frozen=True)
class Divisors:
    """Each frequency divided by a number of its own, as GGUF's `rope_freqs` tensor lists them."""

    values: tuple[float, ...]
    magnitude: float = 1.0

    def stretch(self, frequencies: list[float], theta: float) -> list[float]:
        return [frequency / divisor for frequency, divisor in zip(frequencies, self.values, strict=True)]


@dataclass(frozen=True)
class Rope:
    """A rotary position embedding (Su et al. 2021)."""

    theta: float
    scaling: RopeScaling | None = None

    def inv_freq(self, head_dim: int) -> list[float]:
        """The D/2 frequencies in radians per token."""
        base = [self.theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
        return base if self.scaling is None else self.scaling.stretch(base, self.theta)

    @property
    def magnitude(self) -> float:
        return 1.0 if self.scaling is None else self.scaling.magnitude
