"""Who may import whom, as docs/architecture.md has it, also inside functions; and that the light parts stay light."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(?P<package>\w+)` \| [^|]+ \| (?P<may>[^|]+) \|$", re.MULTILINE)
MAY_USE_TORCH = ("inference/", "kernels/", "bench/", "cli/serve.py", "cli/model.py", "cli/bench.py")


def table() -> dict[str, set[str]]:
    """Package → the packages that it may import, itself among them."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = {match["package"]: match["may"] for match in ROW.finditer(text)}
    everything = set(rows)
    return {
        package: everything if may.startswith("everything") else {package, *re.findall(r"`(\w+)`", may)}
        for package, may in rows.items()
    }


def modules() -> list[Path]:
    return sorted(path for package in table() for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of each import in the file, wherever it stands, by name too."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""] if node.level == 0 else [path.relative_to(ROOT).parts[0]]
        elif isinstance(node, ast.Call) and node.args:
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0]
            if function in ("import_module", "__import__") and isinstance(first, ast.Constant):
                names = [str(first.value)]
        for name in names:
            yield node.lineno, name.split(".")[0]


def test_the_table_names_the_packages() -> None:
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert set(table()) == found
    assert table()["pipeline"] == {"pipeline", "db"}


def test_packages_import_what_they_may() -> None:
    rules = table()
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules()
        for line, name in imported(path)
        if name in rules and name not in rules[path.relative_to(ROOT).parts[0]]
    ]
    assert wrong == []


def test_only_the_engine_imports_torch() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules()
        for line, name in imported(path)
        if name in ("torch", "triton") and not str(path.relative_to(ROOT)).startswith(MAY_USE_TORCH)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f():\n    from torch import nn", "torch"),
        ("import importlib\nimportlib.import_module('torch.nn')", "torch"),
        ("import torch.nn as nn", "torch"),
        ("from inference.server import app", "inference"),
    ],
)
def test_imports_are_found_wherever_they_stand(tmp_path: Path, source: str, expected: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert expected in {name for _, name in imported(path)}


def test_the_light_parts_load_no_torch() -> None:
    """Imports of imports count too. Ingest workers fork: torch in them would cost seconds and gigabytes each."""
    light = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in modules()
        if path.relative_to(ROOT).parts[0] in ("pipeline", "db", "workers", "cli") and path.name != "__main__.py"
    ]
    script = f"import sys\nfor name in {light!r}:\n    __import__(name)\nassert 'torch' not in sys.modules"
    env = os.environ | {"QUARRY_BROKER_URL": "redis://127.0.0.1:1/0"}
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_scheduling_and_memory_load_no_torch() -> None:
    """Plain Python over integers: they can be tested to the last corner, and run where no tensor library is."""
    memory = [f"memory.{path.stem}" for path in (ROOT / "inference" / "memory").glob("*.py")]
    names = [f"inference.{name}" for name in ("scheduler", "sequence", "plan", "request", "config", *memory)]
    script = f"import sys\nfor name in {names!r}:\n    __import__(name)\nassert 'torch' not in sys.modules"
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_our_kernels_package_does_not_confuse_transformers() -> None:
    """transformers looks for a package of the same name; ours has no version, so it must be taken for another one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import kernels

    assert not hasattr(kernels, "__version__")
    assert kernels.__file__ is not None
    assert Path(kernels.__file__).parents[1] == ROOT
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    with torch.no_grad():
        logits = LlamaForCausalLM(config)(torch.tensor([[1, 2, 3]])).logits
    assert logits.shape == (1, 3, 32)
