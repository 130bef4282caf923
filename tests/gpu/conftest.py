"""Property tests of the Triton kernels, on a GPU where there is one, else under Triton's interpreter on the CPU.

A kernel is bound to the interpreter when it is made, by TRITON_INTERPRET, so on a CPU these tests want a process of
their own: `tests/unit/test_interpreted_kernels.py` starts one for each file. Elsewhere they are not collected.
"""

from __future__ import annotations

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

collect_ignore_glob = [] if INTERPRETED or torch.cuda.is_available() else ["test_*.py"]


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")
