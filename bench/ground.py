"""Grounding on gold strings: how many values get their exact span, and how long each takes, beside LangExtract.

The gold is a folder of re3d subsets (https://github.com/dstl/re3d): `*/documents.jsonl` and `*/entities.jsonl`, each
entity with its string and its offsets. The strings of a document, nothing else, go to each contestant in three ways:

    in order      as the document has them, of those that begin together the longest first
    shuffled      in random order, each document with the same seed
    misspelt      in order, the last letter of each replaced by another one

Two shares are printed. `own place`: the value got the very span it was annotated at. `as a set`: equal strings of a
document may trade places, each gold span counted once. Nothing but their order says which of two equal strings is
which, so once shuffled they can be right as a set alone, and that is where the aim for shuffled strings stands.
Annotations of one span under two types are one string here.

LangExtract's resolver runs in the same process on the same strings and texts when it is installed
(`pip install 'quarry[bench]'`).
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from string import ascii_letters, ascii_lowercase, ascii_uppercase
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.ground import Grounder, Leaf

SEED = 7
ROUNDS = 3  # of each measurement; the median counts
AIMS = {"in order": ("own place", 0.985), "shuffled": ("as a set", 0.85), "misspelt": ("own place", 0.70)}
_NEXT_LETTER = dict(zip(ascii_letters, ascii_lowercase[1:] + "a" + ascii_uppercase[1:] + "A", strict=True))

Place = tuple[int, int]
Contestant = Callable[[str, Sequence[str]], list[Place | None]]


class BadGold(ValueError):
    """The folder holds no gold, or a line of it can't be read. The message names the file."""


@dataclass(frozen=True)
class Gold:
    """One document: its text, and each annotated string with its code-point offsets, in document order."""

    text: str
    values: Sequence[str]
    places: Sequence[Place]


@dataclass(frozen=True)
class Score:
    """Shares are of all values; `microseconds` are per value, reading the document included."""

    contestant: str
    variant: str
    values: int
    own_place: float
    as_a_set: float
    unplaced: float
    microseconds: float


def run(folder: Path, *, as_json: bool = False) -> list[Score]:
    """Measure and print: a table, or JSON on standard output. Raises BadGold."""
    gold = read_gold(folder)
    console = Console(stderr=True)
    scores = []
    for variant in AIMS:
        for name, contestant in contestants().items():
            with console.status(f"{name}, {variant}"):
                scores.append(measure(name, contestant, variant, gold))
    if as_json:
        print(json.dumps({"documents": len(gold), "scores": [asdict(score) for score in scores]}, indent=2))
    else:
        show(scores, len(gold))
    return scores


def read_gold(folder: Path) -> list[Gold]:
    """The documents of every subset below `folder`, in the order of their names. Raises BadGold."""
    documents = {str(row["_id"]): str(row["text"]) for row in _rows(folder, "documents.jsonl")}
    places: dict[str, dict[Place, str]] = defaultdict(dict)
    for row in _rows(folder, "entities.jsonl"):
        places[str(row["documentId"])][int(row["begin"]), int(row["end"])] = str(row["value"])
    gold = []
    for document, text in documents.items():
        ordered = sorted(places[document].items(), key=lambda item: (item[0][0], -item[0][1]))
        gold.append(Gold(text, [value for _, value in ordered], [place for place, _ in ordered]))
    return gold


def _rows(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    files = sorted(folder.glob(f"*/{name}"))
    if not files:
        raise BadGold(f"{folder} has no */{name}: name the folder that holds the subsets of re3d")
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8-sig").splitlines(), 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise BadGold(f"{file}:{number}: {error}") from None


def contestants() -> dict[str, Contestant]:
    """Ours, and LangExtract's where it is installed."""
    found: dict[str, Contestant] = {"quarry": ground}
    if find_spec("langextract") is not None:
        found[f"langextract {metadata.version('langextract')}"] = ground_langextract
    return found


def ground(text: str, values: Sequence[str]) -> list[Place | None]:
    """The pipeline's own grounding, the values as the names of one list of entities."""
    entities = [[Leaf("/name", "/name", value, False)] for value in values]
    spans = [span for (span,) in Grounder(text).place(entities, many=True)]
    return [None if span.start is None or span.end is None else (span.start, span.end) for span in spans]


def ground_langextract(text: str, values: Sequence[str]) -> list[Place | None]:
    """LangExtract's alignment with its default settings; the index tells whose a place is."""
    from langextract.core.data import Extraction
    from langextract.resolver import Resolver

    asked = [Extraction("entity", value, extraction_index=i) for i, value in enumerate(values)]
    places: list[Place | None] = [None] * len(values)
    for found in Resolver().align(asked, text, token_offset=0, char_offset=0):
        interval = found.char_interval
        if interval is not None and interval.start_pos is not None and interval.end_pos is not None:
            places[found.extraction_index] = (interval.start_pos, interval.end_pos)
    return places


def varied(variant: str, gold: Sequence[Gold]) -> list[tuple[Gold, list[str]]]:
    """For each document its gold in the order asked, and the strings to be found."""
    if variant == "misspelt":
        return [(document, [misspell(value) for value in document.values]) for document in gold]
    if variant == "in order":
        return [(document, list(document.values)) for document in gold]
    shuffled = []
    for document in gold:
        order = list(range(len(document.values)))
        random.Random(SEED).shuffle(order)
        values = [document.values[i] for i in order]
        shuffled.append((Gold(document.text, values, [document.places[i] for i in order]), values))
    return shuffled


def misspell(value: str) -> str:
    """The last letter replaced by the next one of the alphabet; without a letter, the value as it is."""
    for at in reversed(range(len(value))):
        if value[at] in _NEXT_LETTER:
            return value[:at] + _NEXT_LETTER[value[at]] + value[at + 1 :]
    return value


def measure(name: str, contestant: Contestant, variant: str, gold: Sequence[Gold]) -> Score:
    """All documents, `ROUNDS` times."""
    cases = varied(variant, gold)
    seconds = []
    answers: list[list[Place | None]] = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        answers = [contestant(document.text, values) for document, values in cases]
        seconds.append(time.perf_counter() - started)
    own = alike = unplaced = 0
    for (document, _), places in zip(cases, answers, strict=True):
        own += sum(place == gold_place for place, gold_place in zip(places, document.places, strict=True))
        wanted: Counter[tuple[str, Place | None]] = Counter(zip(document.values, document.places, strict=True))
        given: Counter[tuple[str, Place | None]] = Counter(zip(document.values, places, strict=True))
        alike += (wanted & given).total()
        unplaced += places.count(None)
    total = sum(len(document.values) for document, _ in cases)
    microseconds = 1e6 * statistics.median(seconds) / total
    return Score(name, variant, total, own / total, alike / total, unplaced / total, microseconds)


def show(scores: Sequence[Score], documents: int) -> None:
    table = Table(title=f"Grounding {scores[0].values} gold strings of {documents} documents")
    for column in ("", "strings", "own place", "as a set", "aim", "no place", "µs per value"):
        table.add_column(column, justify="left" if column in ("", "strings") else "right")
    for score in scores:
        table.add_row(
            score.contestant,
            score.variant,
            f"{score.own_place:.4f}",
            f"{score.as_a_set:.4f}",
            "{} ≥ {}".format(*AIMS[score.variant]),
            f"{score.unplaced:.4f}",
            f"{score.microseconds:.0f}",
        )
    Console().print(table)
    if len({score.contestant for score in scores}) == 1:
        Console(stderr=True).print("LangExtract is not installed: pip install 'quarry[bench]' puts it beside.")
