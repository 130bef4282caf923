"""Every op of a GPU's forward: in Triton as in plain torch, through the cases that `bench.gpu_check` runs on a GPU."""

from __future__ import annotations

import pytest
import torch

from bench.op_cases import SMALL, OpCase, compare, op_cases
from kernels import gpu, ops, plain
from kernels.dispatch import _twin

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("case", list(op_cases(SMALL, DEVICE)), ids=lambda case: case.name)
def test_both_sides_agree(case: OpCase) -> None:
    assert compare(case) <= case.limit


def test_both_sides_have_the_same_ops() -> None:
    assert set(gpu.__all__) <= set(dir(plain))
    assert _twin(DEVICE.type) is gpu
    assert isinstance(ops.gpu_linear(torch.ones(2, 2, device=DEVICE)), gpu.Linear)
