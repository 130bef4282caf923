"""The kernel table of `make bench-gpu`: each kernel beside the ceiling, the rivals that run here, and recorded ones.

Every figure is the median over replays of a CUDA graph that goes through several sets of inputs, more than the L2
cache holds: a launch is then no part of it, and nothing is found in the cache that a model would not find there.

A table is a function that yields `Case`s; it stands in a module `bench/kernels_NAME.py` and is listed in TABLES.
"""

from __future__ import annotations

import importlib
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

TABLES = ("bench.kernels_attention", "bench.kernels_linear")
REPLAYS = 20
COPY_BYTES = 1 << 32


@dataclass(frozen=True)
class Case:
    """One line. `amount` is what a run moves or computes, in bytes or operations as `unit` (TB/s or TFLOP/s) has it.

    `ours` and each of `rivals` are functions of one run each, over sets of inputs that together exceed the L2 cache.
    `recorded` holds peers' figures of the same case, in `unit`, measured elsewhere; `aim` is what we want.
    """

    name: str
    unit: str
    amount: float
    ours: Sequence[Callable[[], object]]
    rivals: Mapping[str, Sequence[Callable[[], object]]] = field(default_factory=dict)
    recorded: Mapping[str, float] = field(default_factory=dict)
    aim: float | None = None


Table = Callable[[], Iterator[Case]]


def graph_seconds(runs: Sequence[Callable[[], object]]) -> float:
    """Median seconds of one run, in a CUDA graph that goes through all of `runs`."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for run in runs:  # compiles, and makes handles
            run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for run in runs:
            run()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3 / len(runs))
    return statistics.median(times)


def copy_ceiling() -> float:
    """TB/s of a copy on the device, counting what is read and what is written."""
    source = torch.randint(0, 255, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / graph_seconds([lambda: target.copy_(source)]) / 1e12


def line(case: Case, copy: float) -> str:
    rate = case.amount / graph_seconds(case.ours) / 1e12
    parts = [f"{case.name:<44} {rate:8.2f} {case.unit}"]
    if case.unit == "TB/s":
        parts.append(f"{rate / copy:4.0%} of copy")
    if case.aim is not None:
        parts.append(f"aim {case.aim:.2f}")
    parts += [f"{name} {case.amount / graph_seconds(runs) / 1e12:.2f}" for name, runs in case.rivals.items()]
    parts += [f"{name} {figure:.2f} (recorded)" for name, figure in case.recorded.items()]
    return " · ".join(parts)


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("the kernel table needs an NVIDIA GPU, and torch finds none here")
    copy = copy_ceiling()
    print(f"{torch.cuda.get_device_name()}: copy {copy:.2f} TB/s")
    for module in TABLES:
        table: Table = importlib.import_module(module).table
        for case in table():
            print(line(case, copy), flush=True)


if __name__ == "__main__":
    main()
