"""What a step cost, in USD: device time on our own engine, tokens on a remote one, CPU time for everything else."""

from __future__ import annotations

from pipeline.engine_client import EngineUsage
from pipeline.settings import Settings

SECONDS_PER_HOUR = 3600.0
TOKENS_PER_PRICE = 1_000_000.0


def engine_cost(usage: EngineUsage, settings: Settings) -> float:
    """One engine call: by token prices where they are set (a remote engine), else by its share of device time."""
    if settings.input_token_price is not None or settings.output_token_price is not None:
        cached = settings.cached_token_price if settings.cached_token_price is not None else settings.input_token_price
        return (
            usage.input_tokens * (settings.input_token_price or 0.0)
            + usage.cached_tokens * (cached or 0.0)
            + usage.output_tokens * (settings.output_token_price or 0.0)
        ) / TOKENS_PER_PRICE
    return (usage.device_seconds or 0.0) * settings.device_price_per_hour / SECONDS_PER_HOUR


def cpu_cost(seconds: float, settings: Settings) -> float:
    """`seconds` of one core."""
    return seconds * settings.cpu_price_per_hour / SECONDS_PER_HOUR
