"""From what the user names (files, folders, globs, dumps, standard input) to source documents.

Content decides what a file is, never its name. What can't be used comes out as a `Rejected` with a reason; it never
stops the rest.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from pipeline.gate import clean_string, clean_value, decode, looks_binary

HTML, XHTML, TEXT = "text/html", "application/xhtml+xml", "text/plain"
MARKDOWN, PDF, JSONL = "text/markdown", "application/pdf", "application/x-ndjson"

SNIFF_BYTES = 65536
SNIFF_LINES = 100
MAX_METADATA_CHARS = 4096  # of one extra field of a dump
DEFAULT_FIELDS = {"url": "url", "html": "html", "text": "text", "title": "title"}

# Atomic groups: without them the comments before a page can be split up in exponentially many ways.
_HTML_START = re.compile(
    r"\s*+(?>(?:<!--(?>.*?-->)|<\?xml[^>]*+>)\s*+)*+<(?:!doctype\s+html|html|head|body)\b", re.I | re.S
)
_HTML_TAG = re.compile(
    r"<(?:p|div|span|a|h[1-6]|ul|ol|li|table|tr|td|br|img|article|section|script|meta)\b[^<>]*>", re.I
)
_XHTML = re.compile(r"xmlns\s*=\s*[\"']http://www\.w3\.org/1999/xhtml|-//W3C//DTD XHTML", re.I)
_JSON_LINE = re.compile(r'^\s*\{\s*"[^"\n]{0,200}"\s*:')
_MARKDOWN_SIGNS = (
    re.compile(r"^#{1,6}\s+\S", re.M),
    re.compile(r"^```", re.M),
    re.compile(r"\[[^\]\n]{1,200}\]\([^)\s]{1,500}\)"),
    re.compile(r"^\s{0,3}\|.+\|\s*\n\s{0,3}\|\s*:?-{3,}", re.M),
    re.compile(r"(?:^|\s)\*\*[^*\n]{1,200}\*\*"),
    re.compile(r"^\s{0,3}[-*+]\s+\S", re.M),
)
_KNOWN_BINARIES = (
    (b"PK\x03\x04", "a ZIP archive or an Office file"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"RIFF", "a WebP image or a media file"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\xd0\xcf\x11\xe0", "an old Office file"),
    (b"BZh", "a bzip2 archive"),
    (b"7z\xbc\xaf", "a 7-Zip archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"(\xb5/\xfd", "a zstd archive"),
)
_READ_ERRORS = (OSError, EOFError, zlib.error)


@dataclass(frozen=True)
class SourceDocument:
    """One document as it was found. `metadata` may hold `charset` (declared by the server), `url`, `title`, `line`."""

    source_uri: str
    data: bytes
    media_type: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rejected:
    """What could not be loaded. `reason`: missing, empty, binary, too_big, unreadable, bad_line, no_match."""

    source_uri: str
    reason: str
    detail: str


Source = SourceDocument | Rejected


def iter_sources(
    paths: Iterable[str],
    *,
    stdin: BinaryIO | None = None,
    fields: Mapping[str, str] | None = None,
    max_bytes: int = 16 * 2**20,
) -> Iterator[Source]:
    """Each document behind `paths`, in order. `-` reads `stdin`. `fields` renames the JSONL fields, for example
    `{"html": "body", "url": "link"}`. Nothing larger than `max_bytes` is held in memory."""
    names = {**DEFAULT_FIELDS, **(fields or {})}
    for path in paths:
        if path == "-":
            if stdin is None:
                yield Rejected("stdin:", "unreadable", "there is no standard input to read")
            else:
                yield from _from_stream(stdin, None, names, max_bytes)
            continue
        found, problem = _expand(path)
        if problem:
            yield problem
        for file in found:
            yield from _from_file(file, names, max_bytes)


def sniff(head: bytes, *, complete: bool = True) -> str | None:
    """The media type of content that begins with `head`; None when it is binary. `complete`: `head` is all of it."""
    if b"%PDF-" in head[:1024]:
        return PDF
    if looks_binary(head):
        return None
    text = decode(head).text
    if _JSON_LINE.match(text) and _is_json_line(text, complete):
        return JSONL
    if _HTML_START.match(text):
        return XHTML if _XHTML.search(text[:4096]) and text.lstrip().startswith("<?xml") else HTML
    signs = sum(bool(sign.search(text)) for sign in _MARKDOWN_SIGNS)
    if len(_HTML_TAG.findall(text)) >= 3 and text.lstrip()[:1] == "<" and signs < 3:  # a README may begin with tags
        return HTML
    if signs >= 2 or _MARKDOWN_SIGNS[0].match(text.lstrip()):
        return MARKDOWN
    return HTML if len(_HTML_TAG.findall(text)) >= 10 else TEXT


def _is_json_line(text: str, complete: bool) -> bool:
    """Whether records begin here, one a line. The first may be broken: then a later one has to be whole, or all of a
    dump would pass for prose because of one bad line."""
    lines = text.lstrip().split("\n")
    if len(lines) == 1 and not complete:
        return True  # the first record is longer than what was looked at
    if not _JSON_LINE.match(lines[0]):
        return False  # one object over many lines
    return any(map(_is_record, lines[:SNIFF_LINES]))


def _is_record(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _expand(path: str) -> tuple[list[Path], Rejected | None]:
    """The files behind a name: itself, everything below a folder, or what a pattern matches; sorted, hidden skipped."""
    plain = Path(path).expanduser()
    try:
        if plain.is_dir():
            files = list(_below(plain))
            none = Rejected(_uri(plain), "no_match", f"the folder {path} holds no files") if not files else None
            return files, none
        if plain.exists():
            return [plain], None
    except OSError as error:
        return [], Rejected(path, "unreadable", _words(error))
    if glob.has_magic(path):
        matches = sorted(Path(match) for match in glob.glob(os.path.expanduser(path), recursive=True))
        files = [match for match in matches if match.is_file()]
        return files, None if files else Rejected(path, "no_match", f"no file matches the pattern {path}")
    return [], Rejected(_uri(plain), "missing", f"there is no file or folder {path}")


def _below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield Path(parent, name)


def _from_file(path: Path, names: Mapping[str, str], max_bytes: int) -> Iterator[Source]:
    uri = _uri(path)
    if not path.is_file():
        yield Rejected(uri, "unreadable", "it is not a regular file")
        return
    try:
        with path.open("rb") as stream:
            yield from _from_stream(stream, uri, names, max_bytes)
    except OSError as error:
        yield Rejected(uri, "unreadable", _words(error))


class _Rejoined(io.RawIOBase):
    """A stream put back together after its head was read."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        data = self._head[: len(view)] or self._rest.read(len(view)) or b""
        self._head = self._head[len(view) :]
        view[: len(data)] = data
        return len(data)


def _head(stream: BinaryIO) -> tuple[bytes, io.BufferedReader]:
    parts, size = [], 0
    while size < SNIFF_BYTES and (part := stream.read(SNIFF_BYTES - size)):
        parts.append(part)
        size += len(part)
    head = b"".join(parts)
    return head, io.BufferedReader(_Rejoined(head, stream), SNIFF_BYTES)


def _from_stream(stream: BinaryIO, uri: str | None, names: Mapping[str, str], max_bytes: int) -> Iterator[Source]:
    where = uri or "stdin:"
    try:
        head, whole = _head(stream)
        if head.startswith(b"\x1f\x8b"):
            head, whole = _head(cast(BinaryIO, gzip.GzipFile(fileobj=whole)))
        if not head:
            yield Rejected(where, "empty", "it has no bytes")
            return
        media_type = sniff(head, complete=len(head) < SNIFF_BYTES)
        if media_type is None:
            yield Rejected(where, "binary", f"it is {_kind(head)}, neither text nor a PDF")
        elif media_type == JSONL:
            yield from _from_lines(whole, where, names, max_bytes)
        else:
            yield _from_whole(whole, uri, media_type, max_bytes)
    except _READ_ERRORS as error:
        yield Rejected(where, "unreadable", _words(error))


def _from_whole(stream: io.BufferedReader, uri: str | None, media_type: str, max_bytes: int) -> Source:
    data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        return _too_big(uri or "stdin:", max_bytes)
    uri = uri or f"stdin:{hashlib.sha256(data).hexdigest()[:16]}"
    if media_type != PDF and not data.strip():
        return Rejected(uri, "empty", "it holds nothing but blanks")
    return SourceDocument(uri, data, media_type)


def _from_lines(stream: io.BufferedReader, uri: str, names: Mapping[str, str], max_bytes: int) -> Iterator[Source]:
    limit = max_bytes * 2 + 65536  # escapes make a record longer than its page
    number = 0
    while line := stream.readline(limit + 1):
        number += 1
        where = f"{uri}#line={number}"
        if len(line) > limit:
            while line and not line.endswith(b"\n"):
                line = stream.readline(limit)
            yield _too_big(where, max_bytes)
        elif line.strip(b" \t\r\n\x00\xef\xbb\xbf"):
            yield _from_record(line, where, number, names, max_bytes)


def _from_record(line: bytes, where: str, number: int, names: Mapping[str, str], max_bytes: int) -> Source:
    try:
        record = json.loads(decode(line).text)
    except (ValueError, RecursionError) as error:
        return Rejected(where, "bad_line", f"line {number} is not JSON: {str(error)[:200]}")
    if not isinstance(record, dict):
        return Rejected(where, "bad_line", f"line {number} is a {type(record).__name__}, not an object")
    body = next(
        (value for name in ("html", "text") if isinstance(value := record.get(names[name]), str) and value), None
    )
    if body is None:
        listed = ", ".join(map(str, list(record)[:12])) or "none"
        wanted = f"{names['html']!r} or {names['text']!r}"
        return Rejected(where, "bad_line", f"line {number} has no text in {wanted}; its fields are: {listed}")
    data = clean_string(body).encode()
    if len(data) > max_bytes:
        return _too_big(where, max_bytes)
    if not data.strip():
        return Rejected(where, "empty", f"line {number} holds nothing but blanks")
    is_html = record.get(names["html"]) == body
    media_type = HTML if is_html else (MARKDOWN if sniff(data[:SNIFF_BYTES]) == MARKDOWN else TEXT)
    url = record.get(names["url"])
    metadata: dict[str, Any] = {"charset": "utf-8", "line": number}
    for name, value in record.items():
        if name not in (names["html"], names["text"]) and len(json.dumps(value, default=str)) <= MAX_METADATA_CHARS:
            metadata[name] = value
    uri = clean_string(url.strip()) if isinstance(url, str) and url.strip() else where
    return SourceDocument(uri, data, media_type, clean_value(metadata))


def _too_big(uri: str, max_bytes: int) -> Rejected:
    return Rejected(
        uri, "too_big", f"it is larger than {max_bytes:,} bytes; raise QUARRY_MAX_DOCUMENT_BYTES or split the document"
    )


def _kind(head: bytes) -> str:
    return next((words for magic, words in _KNOWN_BINARIES if head.startswith(magic)), "binary data")


def _words(error: BaseException) -> str:
    return clean_string(str(getattr(error, "strerror", None) or error or type(error).__name__))[:500]


def _uri(path: Path) -> str:
    # A file name may hold bytes that are no UTF-8; as_uri() percent-encodes them.
    return path.absolute().as_uri()
