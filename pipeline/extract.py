"""From a document's chunks to grounded entities: prompt, engine, JSON gate, grounding, resolution."""

from __future__ import annotations

import contextvars
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pipeline.chunk import Chunk
from pipeline.engine_client import Completion, EngineClient, EngineUsage
from pipeline.errors import DocumentError
from pipeline.ground import NOWHERE, Grounder, Grounding, Leaf, Span, leaves
from pipeline.json_gate import BadAnswer, check_entity, parse_answer
from pipeline.json_spans import confidences, mean_logprob
from pipeline.prompt import Prompt
from pipeline.resolve import Candidate, GroundedLeaf, entity_key, merge, resolve
from pipeline.retrieve import Search, pick, windows
from pipeline.schema import ExtractionSchema
from pipeline.settings import Settings
from pipeline.tracing import Trace

MAX_SPLITS = 6  # halvings of a window whose answer was cut short
MIN_SPLIT_CHARS = 200  # below this a text is not what makes the answer long
WINDOW_CONCURRENCY = 8  # windows of one document in flight
OUTPUT_PER_FIELD = 24  # tokens of an answer beside the words it copies: names, quotes, commas
TITLE_CHARS = 500  # of the document's beginning, where values may be found whatever the window

__all__ = ["DocumentText", "EngineRun", "Entity", "Extraction", "Grounding", "Mention", "extract"]


@dataclass(frozen=True)
class DocumentText:
    """A cleaned document as the extraction sees it. `chunks` are in order; their offsets count in `text`."""

    text: str
    chunks: Sequence[Chunk]
    title: str | None = None
    source_uri: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Mention:
    """One value at one place. `path` is a JSON pointer into the entity's data; `start`/`end` are None when `none`."""

    path: str
    value: Any
    status: Grounding
    start: int | None = None
    end: int | None = None
    chunk_ordinal: int | None = None
    confidence: float | None = None  # geometric mean probability of the value's tokens, 0 to 1
    run: int = 0  # index into Extraction.runs


@dataclass(frozen=True)
class Entity:
    """`key` is the normalised key of its `x-key` fields, "" when it has none. `grounded` is the share of its values
    that have a source, of those that could have one."""

    ordinal: int
    key: str
    data: Mapping[str, Any]
    mentions: Sequence[Mention]
    confidence: float | None
    grounded: float


@dataclass(frozen=True)
class EngineRun:
    """One engine call, as `run` stores it."""

    model: str
    prompt_sha256: str
    usage: EngineUsage
    finish_reason: str
    logprob: float | None  # mean per token
    started_at: datetime
    ended_at: datetime
    chunk_ordinals: tuple[int, ...] = ()


@dataclass(frozen=True)
class Extraction:
    """`notes` say in words what was left out and why (a refusal, a value that failed the schema). `left_out` counts the
    values that the schema wants a source for (`x-grounded: required`) and that have none."""

    entities: Sequence[Entity]
    runs: Sequence[EngineRun]
    notes: Sequence[str] = ()
    left_out: int = 0


def extract(
    document: DocumentText,
    schema: ExtractionSchema,
    engine: EngineClient,
    settings: Settings,
    search: Search | None = None,
    trace: Trace | None = None,
) -> Extraction:
    """Fill `schema` from `document`. Raises DocumentError (no valid JSON, too long) or TransientError (engine)."""
    reading = _Reading(document, schema, engine, settings, trace or Trace.null())
    with reading.trace.span("retrieve") as span:
        if schema.many:
            groups = windows(document.chunks, min(settings.context_tokens, settings.max_output_tokens))
        else:
            groups = [pick(document.chunks, schema, settings.context_tokens, search)]
        span.set(chunks=sum(map(len, groups)), windows=len(groups))
    answers = [answer for parts in _in_parallel(reading.read, groups) for answer in parts]
    runs = [answer.run for answer in answers]
    with reading.trace.span("ground") as span:
        candidates = [found for number, answer in enumerate(answers) for found in reading.ground(answer, number)]
        span.set(values=sum(len(candidate.leaves) for candidate in candidates), left_out=reading.left_out)
    if schema.many:
        candidates = resolve(candidates, schema)
    elif candidates:
        whole = candidates[0]
        for part in candidates[1:]:
            whole = merge(whole, part)
        candidates = [whole]
    entities = [
        _entity(ordinal, candidate, schema, document.chunks)
        for ordinal, candidate in enumerate(candidate for candidate in candidates if _says_something(candidate.data))
    ]
    if not entities and not reading.notes:
        reading.notes.append("the document states none of the schema's fields")
    return Extraction(entities, runs, reading.notes, reading.left_out)


@dataclass(frozen=True)
class _Answer:
    """One engine call that ended well: its run, its completion, and the chunks that it read."""

    run: EngineRun
    completion: Completion
    chunks: Sequence[Chunk]
    value: Any


@dataclass
class _Reading:
    """One document under one schema on its way through the engine."""

    document: DocumentText
    schema: ExtractionSchema
    engine: EngineClient
    settings: Settings
    trace: Trace
    notes: list[str] = field(default_factory=list)
    left_out: int = 0

    def __post_init__(self) -> None:
        self.prompt = Prompt.of(self.schema, document_first=self.settings.document_first)

    def read(self, chunks: Sequence[Chunk], splits: int = 0) -> list[_Answer]:
        """Ask about `chunks`; when the answer is cut short, ask about each half instead."""
        text = self._text_of(chunks)
        messages = self.prompt.messages(text)
        started = datetime.now(UTC)
        with self.trace.span("generation", model=self.engine.model) as span:
            completion = self.engine.chat(
                messages,
                json_schema=self.schema.grammar_schema,
                max_tokens=self._output_budget(chunks),
                logprobs=True,
            )
            span.usage(completion.usage, model=completion.model)
            span.set(finish_reason=completion.finish_reason)
        run = EngineRun(
            completion.model,
            self.prompt.sha256(text),
            completion.usage,
            completion.finish_reason,
            mean_logprob(completion.tokens),
            started,
            datetime.now(UTC),
            tuple(chunk.ordinal for chunk in chunks),
        )
        if completion.finish_reason == "length":
            return [_Answer(run, completion, chunks, None), *self._read_halves(chunks, splits)]
        return [_Answer(run, completion, chunks, self._value(completion))]

    def ground(self, answer: _Answer, run: int) -> list[Candidate]:
        """The entities of one answer, each value with its place."""
        values = answer.value if self.schema.many else [answer.value]
        if answer.value is None:
            return []
        regions = [(chunk.start, chunk.end) for chunk in answer.chunks]
        beginning = (0, min(TITLE_CHARS, len(self.document.text)))
        sure = confidences(answer.completion.text, answer.completion.tokens)
        checked: list[tuple[str, dict[str, Any]]] = []
        for number, value in enumerate(values):
            try:
                data, notes = check_entity(value, self.schema)
            except BadAnswer as error:
                if not self.schema.many:
                    raise DocumentError(
                        "bad_answer", f"the engine's answer does not fit the schema: {error.detail}"
                    ) from error
                self.notes.append(f"entity {number} left out: {error.detail}")
                continue
            self.notes.extend(notes)
            checked.append((f"/{number}" if self.schema.many else "", data))
        found = []
        scalars = [leaves(data, self.schema) for _, data in checked]
        spans = self._places(
            scalars, (Grounder(self.document.text, regions), Grounder(self.document.text, [beginning]))
        )
        for (prefix, data), entries, places in zip(checked, scalars, spans, strict=True):
            grounded = [
                GroundedLeaf(leaf, span, sure.get(prefix + leaf.path), run)
                for leaf, span in zip(entries, places, strict=True)
            ]
            candidate = self._supported(data, grounded)
            missing = [name for name in self.schema.required if name not in candidate.data]
            if missing:
                self.notes.append(
                    f"entity {prefix.lstrip('/')} left out: {', '.join(missing)} has no source in the text"
                )
                continue
            found.append(candidate)
        return found

    def _places(self, entities: Sequence[Sequence[Leaf]], grounders: Sequence[Grounder]) -> list[list[Span]]:
        """A span for each value, by the first grounder that finds it."""
        placed = [[NOWHERE] * len(entity) for entity in entities]
        for grounder in grounders:
            missing = [[n for n, span in enumerate(spans) if span.start is None] for spans in placed]
            asked = [[entity[n] for n in numbers] for entity, numbers in zip(entities, missing, strict=True)]
            answers = grounder.place(asked, many=self.schema.many)
            for spans, numbers, answer in zip(placed, missing, answers, strict=True):
                for number, span in zip(numbers, answer, strict=True):
                    spans[number] = span
        return placed

    def _supported(self, data: dict[str, Any], grounded: Sequence[GroundedLeaf]) -> Candidate:
        """The entity without the values that must go."""
        kept: list[GroundedLeaf] = []
        drop: list[str] = []
        taken: set[tuple[str, int | None, int | None]] = set()
        for entry in grounded:
            leaf, span = entry.leaf, entry.span
            if self._lacks_source(leaf, span):
                problem = "it is not in the text"
                self.left_out += 1
            elif leaf.slot.endswith("/*") and (leaf.slot, span.start, span.end) in taken:
                problem = "it repeats an item of the list"  # a model going in circles
            else:
                if span.start is not None:
                    taken.add((leaf.slot, span.start, span.end))
                kept.append(entry)
                continue
            self.notes.append(f"{leaf.path}: {str(leaf.value)[:80]!r} left out: {problem}")
            drop.append(leaf.path)
        return Candidate(data, kept) if not drop else _without(data, kept, drop)

    def _lacks_source(self, leaf: Leaf, span: Span) -> bool:
        """Whether the schema asks for a source and there is none."""
        name = leaf.path.split("/", 2)[1].replace("~1", "/").replace("~0", "~")
        return span.start is None and name in self.schema.grounded_required and not leaf.derived

    def _value(self, completion: Completion) -> Any:
        if completion.refusal or completion.finish_reason == "content_filter":
            self.notes.append(f"the model refused: {(completion.refusal or completion.text)[:200]}")
            return None
        try:
            value = parse_answer(completion.text)
        except BadAnswer as error:
            raise DocumentError("bad_answer", f"the engine's answer is not usable: {error.detail}") from error
        if self.schema.many and not isinstance(value, list):
            raise DocumentError(
                "bad_answer", f"the engine's answer is a {type(value).__name__}; the schema is an array"
            )
        return value

    def _read_halves(self, chunks: Sequence[Chunk], splits: int) -> list[_Answer]:
        halves = _halves(chunks, self.document.text)
        if halves is None or splits >= MAX_SPLITS:
            raise DocumentError(
                "truncated",
                f"the answer for {sum(len(chunk.text) for chunk in chunks)} characters of text did not end within "
                f"{self._output_budget(chunks)} tokens, the room for what can be copied from it (at most "
                f"QUARRY_MAX_OUTPUT_TOKENS, {self.settings.max_output_tokens}); bound the schema's lists by maxItems "
                "and its texts by maxLength, or use a larger model",
            )
        return [answer for half in halves for answer in self.read(half, splits + 1)]

    def _output_budget(self, chunks: Sequence[Chunk]) -> int:
        """An answer copies from the text, so the text bounds it; a model going in circles is stopped there."""
        if self.schema.many:
            return self.settings.max_output_tokens
        copied = sum(chunk.token_count for chunk in chunks)
        return min(self.settings.max_output_tokens, copied + OUTPUT_PER_FIELD * (len(self.schema.fields) + 2))

    def _text_of(self, chunks: Sequence[Chunk]) -> str:
        """The chunks as one text: neighbours with what lies between them, gaps marked."""
        parts: list[str] = []
        for before, chunk in zip([None, *chunks], chunks, strict=False):
            if before is not None:
                between = self.document.text[before.end : chunk.start]
                parts.append(between if not between.strip() else "\n\n[…]\n\n")
            parts.append(chunk.text)
        text = "".join(parts)
        title = self.document.title
        if title and chunks and chunks[0].start > TITLE_CHARS and title not in text:
            return f"# {title}\n\n[…]\n\n{text}"
        return text


def _in_parallel(
    read: Callable[[Sequence[Chunk]], list[_Answer]], groups: Iterable[Sequence[Chunk]]
) -> list[list[_Answer]]:
    groups = list(groups)
    if len(groups) < 2:
        return [read(group) for group in groups]
    with ThreadPoolExecutor(min(WINDOW_CONCURRENCY, len(groups)), thread_name_prefix="window") as pool:
        # Each thread gets the caller's context, in which the trace keeps its open span.
        waiting = [pool.submit(contextvars.copy_context().run, read, group) for group in groups]
        return [future.result() for future in waiting]


def _halves(chunks: Sequence[Chunk], text: str) -> tuple[list[Chunk], list[Chunk]] | None:
    if len(chunks) > 1:
        middle = len(chunks) // 2
        return list(chunks[:middle]), list(chunks[middle:])
    (only,) = chunks
    if len(only.text) < MIN_SPLIT_CHARS:
        return None
    cut = _middle(only.text)
    return [_part(only, 0, cut)], [_part(only, cut, len(only.text))]


def _middle(text: str) -> int:
    """The strongest border in the middle half of a text."""
    low, high = len(text) // 4, len(text) * 3 // 4
    for border in ("\n\n", "\n", ". ", " "):
        places = list(_places(text, border, low, high))
        if places:
            return min(places, key=lambda at: abs(at - len(text) // 2)) + len(border)
    return len(text) // 2


def _places(text: str, border: str, low: int, high: int) -> Iterable[int]:
    at = text.find(border, low, high)
    while at >= 0:
        yield at
        at = text.find(border, at + 1, high)


def _part(chunk: Chunk, start: int, end: int) -> Chunk:
    text = chunk.text[start:end]
    tokens = max(1, math.ceil(chunk.token_count * len(text) / max(1, len(chunk.text))))
    return Chunk(chunk.ordinal, chunk.start + start, chunk.start + end, text, chunk.heading_path, tokens)


def _without(data: dict[str, Any], placed: Sequence[GroundedLeaf], drop: Sequence[str]) -> Candidate:
    """The entity without the values at these pointers; later items of a list move up, and so do their pointers."""
    moved: dict[str, str] = {}
    kept = _rebuilt(data, "", "", frozenset(drop), moved)
    return Candidate(
        kept,
        [
            replace(entry, leaf=replace(entry.leaf, path=moved[entry.leaf.path]))
            for entry in placed
            if entry.leaf.path in moved
        ],
    )


def _rebuilt(value: Any, old: str, new: str, drop: frozenset[str], moved: dict[str, str]) -> Any:
    if isinstance(value, dict):
        kept: dict[str, Any] = {}
        for name, item in value.items():
            step = "/" + name.replace("~", "~0").replace("/", "~1")
            if old + step not in drop:
                kept[name] = _rebuilt(item, old + step, new + step, drop, moved)
        return kept
    if isinstance(value, list):
        items: list[Any] = []
        for number, item in enumerate(value):
            if f"{old}/{number}" not in drop:
                items.append(_rebuilt(item, f"{old}/{number}", f"{new}/{len(items)}", drop, moved))
        return items
    moved[old] = new
    return value


def _entity(ordinal: int, candidate: Candidate, schema: ExtractionSchema, chunks: Sequence[Chunk]) -> Entity:
    starts = [chunk.start for chunk in chunks]
    mentions = [
        Mention(
            entry.leaf.path,
            entry.leaf.value,
            entry.span.status,
            entry.span.start,
            entry.span.end,
            _chunk_at(entry.span.start, chunks, starts),
            entry.confidence,
            entry.run,
        )
        for entry in candidate.leaves
    ]
    sure = [mention.confidence for mention in mentions if mention.confidence is not None]
    # A choice from an enumeration is the model's word and can have no source; it does not count against the entity.
    paths = {entry.leaf.path for entry in candidate.leaves if not entry.leaf.derived}
    placed = {mention.path for mention in mentions if mention.start is not None}
    return Entity(
        ordinal,
        entity_key(candidate.data, schema),
        candidate.data,
        mentions,
        sum(sure) / len(sure) if sure else None,
        len(placed) / len(paths) if paths else 0.0,
    )


def _chunk_at(start: int | None, chunks: Sequence[Chunk], starts: Sequence[int]) -> int | None:
    """The chunk in which a value begins."""
    if start is None:
        return None
    at = bisect_right(starts, start) - 1
    return chunks[at].ordinal if at >= 0 and start < chunks[at].end else None


def _says_something(data: Mapping[str, Any]) -> bool:
    return any(value not in (None, "", [], {}) for value in data.values())
