"""A Triton kernel compiled for Hopper (sm_90) on a machine without a GPU, and what the compiler says of it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGET = GPUTarget("cuda", 90, 32)
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True)
class Compiled:
    """`registers` of a thread, `stack` bytes of a thread (spills lie there), `shared` bytes of a program."""

    ptx: str
    registers: int
    stack: int
    shared: int

    def count(self, instruction: str) -> int:
        """How often an instruction stands in the PTX; `instruction` is a regular expression."""
        return len(re.findall(instruction, self.ptx))


def compile_for_hopper(
    kernel: Any, types: Mapping[str, str], constants: Mapping[str, Any], *, warps: int = 4, stages: int = 3
) -> Compiled:
    """`types` names the type of each parameter that is no constant, as Triton writes it: *bf16, *fp8e4nv, i32, fp32.
    Pointers and i32 are taken to be multiples of 16, as those of whole tensors are; an i32 named `…:1` is not."""
    signature = {name: types[name].removesuffix(":1") if name in types else "constexpr" for name in kernel.arg_names}
    aligned = [
        index
        for index, name in enumerate(kernel.arg_names)
        if name in types and (types[name].startswith("*") or types[name] == "i32")
    ]
    source = ASTSource(kernel, signature, dict(constants), {(index,): [["tt.divisibility", 16]] for index in aligned})
    made = triton.compile(source, target=TARGET, options={"num_warps": warps, "num_stages": stages})
    with TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(made.asm["cubin"])
        command = [str(CUOBJDUMP), "--dump-resource-usage", str(cubin)]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"{key}:(\d+)", usage).group(1)) for key in ("REG", "STACK"))  # type: ignore[union-attr]
    return Compiled(made.asm["ptx"], registers, stack, made.metadata.shared)
