"""The mixes of requests that `quarry bench engine` runs: what is in a prompt, and how many tokens are answered.

    extraction    a scraped page's chunk behind one of eight schemas' prefixes, JSON under that schema on every request:
                  256 tokens of prefix, 200 to 1,800 of chunk (log-normal), 32 to 256 of answer
    seed          short, long and tiny requests in turn: 128 in and 10 out, 512 and 500, 64 and 20
    decode        128 in, 512 out
    mixed         32 to 512 in, 16 to 128 out, evenly drawn

Lengths are those of a GPU's workloads; a CPU divides them by `shrink`. Everything is drawn from a seed. Prompts of the
extraction mix are real text, since drafts copy from it; in the others they are random tokens, as nobody reads them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PREFIXES = 8
RECORDS = 500  # at least so many are demanded: an answer always reaches its number of tokens
FIELDS: dict[str, dict[str, object]] = {
    "name": {"type": "string", "maxLength": 60},
    "kind": {"enum": ["person", "place", "organisation", "product", "other"]},
    "summary": {"type": "string", "maxLength": 120},
    "quantity": {"type": ["number", "null"]},
    "unit": {"type": ["string", "null"], "maxLength": 12},
    "date": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    "year": {"type": ["integer", "null"]},
    "price": {"type": ["number", "null"]},
    "currency": {"enum": ["EUR", "GBP", "USD", "none"]},
    "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
    "available": {"type": "boolean"},
    "url": {"type": ["string", "null"], "maxLength": 80},
    "language": {"enum": ["de", "en", "es", "fr"]},
    "rating": {"type": "integer", "minimum": 1, "maximum": 5},
}
FIELDS_OF_A_SCHEMA = 9


@dataclass(frozen=True)
class Work:
    """A request: prompt tokens, how many tokens are answered, and the JSON Schema of the answer, if it has one."""

    prompt: tuple[int, ...]
    output: int
    schema: str | None = None


@dataclass(frozen=True)
class Source:
    """What prompts are made of: `encode` gives a text's tokens, `text` are tokens of real pages."""

    vocab_size: int
    encode: Callable[[str], Sequence[int]]
    text: Sequence[int]

    def noise(self, rng: random.Random, count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(self.vocab_size // 2) for _ in range(count))

    def slice(self, rng: random.Random, count: int) -> tuple[int, ...]:
        """`count` tokens of the pages, from anywhere."""
        start = rng.randrange(max(1, len(self.text) - count))
        found = tuple(self.text[start : start + count])
        while len(found) < count:
            found += tuple(self.text[: count - len(found)])
        return found


def extraction(count: int, seed: int, shrink: float, source: Source) -> list[Work]:
    rng = random.Random(seed)
    schemas = [_schema(rng) for _ in range(PREFIXES)]
    size = _shrunk(256, shrink)
    prefixes = [_prefix(schema, size, source) for schema in schemas]
    work = []
    for _ in range(count):
        index = rng.randrange(PREFIXES)
        chunk = min(1800, max(200, int(rng.lognormvariate(6.4, 0.55))))
        prompt = prefixes[index] + source.slice(rng, _shrunk(chunk, shrink))
        work.append(Work(prompt, _shrunk(rng.randint(32, 256), shrink), schemas[index]))
    return work


def seed_mix(count: int, seed: int, shrink: float, source: Source) -> list[Work]:
    rng = random.Random(seed)
    kinds = ((128, 10), (512, 500), (64, 20))
    return [
        Work(source.noise(rng, _shrunk(prompt, shrink)), _shrunk(output, shrink))
        for prompt, output in (kinds[i % 3] for i in range(count))
    ]


def decode_heavy(count: int, seed: int, shrink: float, source: Source) -> list[Work]:
    rng = random.Random(seed)
    return [Work(source.noise(rng, _shrunk(128, shrink)), _shrunk(512, shrink)) for _ in range(count)]


def mixed(count: int, seed: int, shrink: float, source: Source) -> list[Work]:
    rng = random.Random(seed)
    lengths = [(rng.randint(32, 512), rng.randint(16, 128)) for _ in range(count)]
    return [Work(source.noise(rng, _shrunk(prompt, shrink)), _shrunk(output, shrink)) for prompt, output in lengths]


MIXES = {"extraction": extraction, "seed": seed_mix, "decode": decode_heavy, "mixed": mixed}


def _shrunk(tokens: int, shrink: float) -> int:
    return max(1, round(tokens / shrink))


def _schema(rng: random.Random) -> str:
    names = rng.sample(sorted(FIELDS), FIELDS_OF_A_SCHEMA)
    record = {
        "type": "object",
        "properties": {name: FIELDS[name] for name in names},
        "required": names,
        "additionalProperties": False,
    }
    records = {"type": "array", "items": record, "minItems": RECORDS}
    return json.dumps(
        {
            "type": "object",
            "properties": {"records": records},
            "required": ["records"],
            "additionalProperties": False,
        }
    )


def _prefix(schema: str, size: int, source: Source) -> tuple[int, ...]:
    """`size` tokens of instructions that name the schema's fields. Those of different schemas soon differ."""
    fields = json.loads(schema)["properties"]["records"]["items"]["properties"]
    rules = " ".join(f"Find {name}: {json.dumps(kind)}." for name, kind in fields.items())
    tokens = list(source.encode(f"{', '.join(fields)}: list every record of the page as JSON. {rules}\n"))
    while len(tokens) < size:
        tokens += tokens
    return tuple(tokens[:size])
