"""What the documentation says to type exists: commands, options, files, links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "ATTRIBUTION.md"]
_SHELL = ("", "sh", "bash")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def commands() -> Iterator[tuple[str, list[str]]]:
    """(page, words after `quarry`) for each call in a code block, those in `$(…)` too."""
    for page in PAGES:
        for line in _shell_lines(page.read_text()):
            for inner in re.findall(r"\$\(quarry ([^)]*)\)", line):
                yield page.name, inner.split()
            yield from ((page.name, words) for words in _calls(line))


def _shell_lines(text: str) -> Iterator[str]:
    """Lines of shell blocks that name quarry, continued lines joined."""
    language: str | None = None
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            language = line[3:].strip() if language is None else None
        elif language in _SHELL and "quarry" in line:
            yield line


def _calls(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    part: list[str] = []
    for token in [*lexer, ";"]:
        if token and not set(token) - set("();<>|&"):
            while part and "=" in part[0]:  # VARIABLE=value in front of the command
                del part[0]
            if part[:1] == ["quarry"]:
                yield part[1:]
            part = []
        else:
            part.append(token)


@pytest.mark.parametrize(("page", "words"), list(commands()))
def test_each_quarry_line_is_a_command_with_options_it_has(page: str, words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name, *words = words
        assert name in command.commands, f"{page}: no command {name!r}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    used = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    if not command.ignore_unknown_options:
        assert set(used) <= known, f"{page}: {command.name} has no {set(used) - known}"


def test_there_are_commands_to_check() -> None:
    assert len(list(commands())) > 25


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text()) if "://" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_files_named_in_commands_exist() -> None:
    named = {word for _, words in commands() for word in words if word.startswith("examples/")}
    assert named
    assert all((ROOT / name).exists() for name in named)
