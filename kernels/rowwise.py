"""Activations on the CPU whose results do not depend on the rows beside them.

Torch computes an activation in vectors and what is left at the end of a piece one by one, with other functions: SiLU
and GELU then differ in the last bit. Where pieces end depends on the number of elements and of threads, once there are
enough elements for more than one thread. So rows are only handed over together where all pieces end with a vector.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference import gated_mul

# Torch gives a thread at least so many elements (at::internal::GRAIN_SIZE) ...
GRAIN = 32768
# ... except for GELU, which goes to all threads from here on.
ONE_THREAD = 16384
# Elements in the widest vectors, taken twice or four times at once.
ALIGNMENT = 64


def gated_mul_by_row(gate_up: Tensor, activation: str = "silu") -> Tensor:
    """`kernels.reference.gated_mul`, a row of it the same to the last bit whatever rows stand beside it."""
    size = gate_up.shape[1] // 2
    if gate_up.device.type != "cpu" or _ends_with_vectors(gate_up.shape[0], size, torch.get_num_threads()):
        return gated_mul(gate_up, activation)
    parts = gate_up.split(max(1, ONE_THREAD // size))
    return torch.cat([gated_mul(part, activation) for part in parts])


def _ends_with_vectors(rows: int, size: int, threads: int) -> bool:
    """Whether each thread's piece of a [rows, size] tensor ends where a vector does, or at the end of a row."""
    elements = rows * size
    if elements <= ONE_THREAD or threads == 1 or rows == 1:
        return True
    counts = {threads, min(threads, -(-elements // GRAIN))}
    return size % ALIGNMENT == 0 and all(-(-elements // count) % ALIGNMENT == 0 for count in counts)
