"""From a document's bytes to its text: boilerplate gone, headings, lists and tables kept, metadata aside.

A page goes down a ladder until a rung gives text, and the result names the rung:

    trafilatura   what it takes for the main content
    structure     the whole region around that, for pages of lists and tables, of which it keeps too little
    careful       every visible block but navigation and links, when it finds nothing or the page is too large for it
    visible       every visible block
    hidden        what only scripts would show, `<noscript>` included
    stripped      the bytes without tags, when there is no tree to walk

Sizes, not seconds, decide whether a page is too large, so that the same bytes give the same text on a busy machine.
"""

from __future__ import annotations

import html
import re
import signal
import threading
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from types import FrameType
from typing import Any

import trafilatura
from lxml import etree

from pipeline.errors import DocumentError
from pipeline.gate import GatedText, clean_string, clean_value, decode, looks_binary
from pipeline.html_text import Block, BlockKind, blocks, is_hidden, parse_html, render
from pipeline.page_metadata import PageMetadata, page_metadata
from pipeline.pdf_text import pdf_text

REVISION = 1  # of this module's rules; part of the cleaner's version

MAX_ARTICLE_CHARS = 3_000_000  # above these three trafilatura is not asked: it copies trees recursively
MAX_ARTICLE_NODES = 60_000
MAX_ARTICLE_DEPTH = 200
MIN_ARTICLE_CHARS = 100  # less than this from trafilatura is no article
STRONG_CHARS = 25  # a block this long that trafilatura kept marks the content's region
LINK_SHARE = 0.5  # from here a block is navigation
MISSED_RUN = 3  # list items or rows in a row that trafilatura dropped
MISSED_HEADINGS = 3
MISSED_SHARE = 0.2  # of the region's characters
LINK_RUN = 2  # link blocks in a row that end the region
MAX_TITLE_CHARS = 300  # a longer heading is a paragraph set large
TITLE_WINDOW = 400  # characters at the start in which the title must stand, else it is put there

_DATA_URI = re.compile(r"data:[\w.+/-]{1,80};base64,[A-Za-z0-9+/=\s]{64,}")
_BLANK_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*)+\n")
_TAG = re.compile(r"<[^<>]{0,10000}>")
_SITE_SUFFIX = re.compile(r"(.{3,}?)\s+[|–—·-]\s+([^|–—·]{2,80})$")
_NOT_WORD = re.compile(r"[\W_]+")
_INLINE_TAG = re.compile(
    r"</?(?:p|div|img|br|a|h[1-6]|strong|em|span|center|details|summary|su[bp]|table|thead|tbody|tr|t[dh]|[bi]|kbd|picture|"
    r"source|hr|ul|ol|li|font)\b[^<>]{0,4000}>",
    re.IGNORECASE,
)
_FENCED = re.compile(r"(^```.*?^```[ \t]*$)", re.MULTILINE | re.DOTALL)
_MARKDOWN_TITLE = re.compile(r"^#\s+(.+?)\s*#*$", re.MULTILINE)


@dataclass(frozen=True)
class Cleaned:
    """Text that every later offset counts in, and which rung of the ladder (`cleaner`) gave it."""

    text: str
    title: str | None
    language: str | None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    cleaner: str = ""
    cleaner_version: str = ""


class _Late(Exception):
    """The deadline passed inside trafilatura."""


def cleaner_version(media_type: str) -> str:
    """What identifies the cleaning of this media type; a change means that stored text may differ."""
    if media_type in ("text/html", "application/xhtml+xml"):
        return f"{REVISION}+trafilatura-{version('trafilatura')}"
    if media_type == "application/pdf":
        return f"{REVISION}+pypdfium2-{version('pypdfium2')}"
    return str(REVISION)


def clean(
    data: bytes, media_type: str, *, charset: str | None = None, url: str | None = None, deadline_seconds: float = 30.0
) -> Cleaned:
    """Clean one document. `charset` is what the server declared. Raises DocumentError (`empty`, `binary`,
    `unreadable`, `no_text_layer`) when there is no text at all; never returns an empty text."""
    if not data:
        raise DocumentError("empty", "the document has no bytes")
    if media_type == "application/pdf":
        cleaned = _clean_pdf(data)
    elif looks_binary(data):
        raise DocumentError("binary", f"{len(data):,} bytes that are neither text nor a known format")
    elif media_type in ("text/html", "application/xhtml+xml"):
        cleaned = _clean_html(decode(data, declared=charset), url, deadline_seconds)
    else:
        cleaned = _clean_plain(decode(data, declared=charset), media_type)
    if not cleaned.text.strip():
        raise DocumentError("empty", "no text is left: the document holds only markup, scripts or blanks")
    return Cleaned(
        cleaned.text,
        clean_string(cleaned.title)[:1000] if cleaned.title else None,
        cleaned.language,
        clean_value(cleaned.metadata),
        cleaned.cleaner,
        cleaner_version(media_type),
    )


def _reading(gated: GatedText) -> dict[str, Any]:
    found: dict[str, Any] = {"charset": gated.charset, "charset_from": gated.charset_from}
    if gated.repairs:
        found["repairs"] = dict(gated.repairs)
    return found


# ---- plain text, Markdown, PDF -----------------------------------------------------------------------------------


def _clean_plain(gated: GatedText, media_type: str) -> Cleaned:
    text = _DATA_URI.sub("", gated.text)
    if media_type != "text/markdown":
        return Cleaned(_tidy(text), None, None, _reading(gated), "plain")
    # Between fences is code, where a tag is text.
    parts = _FENCED.split(text)
    text = _tidy("".join(part if number % 2 else _INLINE_TAG.sub("", part) for number, part in enumerate(parts)))
    title = _MARKDOWN_TITLE.search(text[:20_000])
    return Cleaned(text, title.group(1) if title else None, None, _reading(gated), "markdown")


def _clean_pdf(data: bytes) -> Cleaned:
    found = pdf_text(data)
    return Cleaned(_tidy(found.text), found.title, None, {"pages": found.pages, "repaired": found.repaired}, "pdf-text")


def _tidy(text: str) -> str:
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    return _BLANK_LINES.sub("\n\n", text).strip("\n")


# ---- HTML --------------------------------------------------------------------------------------------------------


def _clean_html(gated: GatedText, url: str | None, deadline_seconds: float) -> Cleaned:
    text = _DATA_URI.sub("", gated.text)
    tree = parse_html(text)
    if tree is None:
        return Cleaned(_strip_tags(text), None, None, _reading(gated), "stripped")
    depth, nodes = _measure(tree)
    small = len(text) <= MAX_ARTICLE_CHARS and depth <= MAX_ARTICLE_DEPTH and nodes <= MAX_ARTICLE_NODES
    page = page_metadata(tree, url, with_date=small)
    visible = blocks(tree)
    rung, body = _ladder(tree, text, page, visible, small, deadline_seconds)
    title = _title(page, visible)
    if title and _key(title) not in _key(body[:TITLE_WINDOW]):
        body = f"# {title}\n\n{body}"
    return Cleaned(body, title, page.language, {**_reading(gated), **page.as_dict()}, rung)


def _ladder(
    tree: etree._Element, text: str, page: PageMetadata, visible: list[Block], small: bool, deadline_seconds: float
) -> tuple[str, str]:
    article = _article(tree, deadline_seconds) if small else []
    if sum(len(block.text) for block in article) >= MIN_ARTICLE_CHARS:
        region = _region(visible, article, page)
        if region:
            return "structure", render(region)
        return "trafilatura", render(article)
    careful = [block for block in visible if not block.boilerplate and block.link_share < LINK_SHARE]
    if _has_words(careful):
        return "careful", render(careful)
    if _has_words(article):
        return "trafilatura", render(article)
    if _has_words(visible):
        return "visible", render(visible)
    hidden = blocks(tree, keep_hidden=True)
    if _has_words(hidden):
        return "hidden", render(hidden)
    return "stripped", _strip_tags(text)


def _has_words(found: list[Block]) -> bool:
    return sum(len(_key(block.text)) for block in found) > 0


def _article(tree: etree._Element, deadline_seconds: float) -> list[Block]:
    """What trafilatura takes for the main content, as blocks."""
    try:
        with _deadline(deadline_seconds):
            pruned = _without_hidden(tree)
            found = trafilatura.bare_extraction(pruned, fast=True, include_comments=False, include_tables=True)
    except (_Late, RecursionError, etree.LxmlError, ValueError, TypeError, AttributeError, KeyError):
        return []  # whatever goes wrong inside, the next rung has the text
    body = getattr(found, "body", None)
    return blocks(body) if body is not None else []


def _without_hidden(tree: etree._Element) -> etree._Element:
    copy = parse_html(etree.tostring(tree, encoding="unicode", method="html"))
    if copy is None:
        return tree
    for element in list(copy.iter()):
        if isinstance(element.tag, str) and element.tag not in ("html", "body") and is_hidden(element):
            parent = element.getparent()
            if parent is not None:
                element.drop_tree()
    return copy


def _region(visible: list[Block], article: list[Block], page: PageMetadata) -> list[Block] | None:
    """The blocks around what trafilatura kept, when the page is one of lists and tables and it kept too little; else
    None. The region runs from the heading above the first kept block to where two link blocks in a row begin."""
    keys = [_key(block.text) for block in visible]
    kept = _kept(keys, article)
    strong = [index for index, key in enumerate(keys) if kept[index] and len(key) >= STRONG_CHARS]
    if not strong:
        return None
    first, last = strong[0], strong[-1]
    tops = [i for i in range(first + 1) if visible[i].kind is BlockKind.HEADING and visible[i].level == 1]
    first = tops[-1] if tops else _back_to_heading(visible, kept, first)
    if not _keeps_too_little(visible, kept, first, last, page):
        return None
    last = _extend(visible, last)
    return [
        block
        for index, block in enumerate(visible[first : last + 1], first)
        if kept[index] or block.link_share < LINK_SHARE
    ]


def _keeps_too_little(visible: list[Block], kept: list[bool], first: int, last: int, page: PageMetadata) -> bool:
    if page.structured:
        return True
    run = dropped = total = headings = 0
    for index in range(first, last + 1):
        block = visible[index]
        if block.link_share >= 0.3:
            run = 0
            continue
        missing = not kept[index]
        total += len(block.text)
        dropped += len(block.text) if missing else 0
        run = run + 1 if missing and block.kind in (BlockKind.ITEM, BlockKind.ROW) else 0
        if run >= MISSED_RUN:
            return True
        headings += missing and block.kind is BlockKind.HEADING
        # Code without its line breaks is no code, and trafilatura joins them.
        if not page.article and (headings >= MISSED_HEADINGS or (block.kind is BlockKind.CODE and "\n" in block.text)):
            return True
    return not page.article and dropped >= MISSED_SHARE * total > 0


def _back_to_heading(visible: list[Block], kept: list[bool], first: int) -> int:
    """Headings and short kept lines right above the region belong to it."""
    while first > 0 and visible[first - 1].link_share < LINK_SHARE:
        if not kept[first - 1] and visible[first - 1].kind is not BlockKind.HEADING:
            break
        first -= 1
    return first


def _extend(visible: list[Block], last: int) -> int:
    links = 0
    index = last + 1
    while index < len(visible) and links < LINK_RUN:
        if visible[index].link_share >= LINK_SHARE:
            links += 1
        else:
            links = 0
            if visible[index].kind is not BlockKind.HEADING:
                last = index
        index += 1
    return last


def _kept(keys: list[str], article: list[Block]) -> list[bool]:
    """Which visible blocks are in the article. Both come from one page in one order, so a cursor keeps this linear
    where blocks were merged and whole texts don't match."""
    parts = [_key(block.text) for block in article]
    whole, text = set(parts), "".join(parts)
    found, cursor = [], 0
    for key in keys:
        if not key:
            found.append(False)
        elif key in whole:
            found.append(True)
            at = text.find(key, cursor, cursor + 20_000 + len(key))
            cursor = at + len(key) if at >= 0 and len(key) >= STRONG_CHARS else cursor
        else:
            at = text.find(key, max(0, cursor - 2_000), cursor + 20_000 + len(key))
            found.append(at >= 0)
            if at >= 0 and len(key) >= STRONG_CHARS:
                cursor = at + len(key)
    return found


def _title(page: PageMetadata, visible: list[Block]) -> str | None:
    """The page's own headline where there is one clear one, else what its metadata says, without the site's name."""
    tops = [block.text.replace("\n", " ") for block in visible if block.kind is BlockKind.HEADING and block.level == 1]
    distinct = {_key(text): text for text in reversed(tops) if len(text) <= MAX_TITLE_CHARS and _key(text)}
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    if not page.title:
        return None
    said = _key(page.title)
    agreeing = [text for key, text in distinct.items() if key in said or said in key]
    if agreeing:
        return max(agreeing, key=len)
    if page.site and (suffixed := _SITE_SUFFIX.match(page.title)) and _key(suffixed.group(2)) == _key(page.site):
        return suffixed.group(1)
    return page.title


def _measure(tree: etree._Element) -> tuple[int, int]:
    """Greatest depth and number of elements, without recursion."""
    depth = deepest = nodes = 0
    for event, _ in etree.iterwalk(tree, events=("start", "end")):
        if event == "start":
            depth += 1
            nodes += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest, nodes


def _strip_tags(text: str) -> str:
    for name in ("script", "style"):
        text = _without_elements(text, name)
    plain = html.unescape(_TAG.sub("\n", text))
    return _tidy(clean_string("\n".join(" ".join(line.split()) for line in plain.split("\n"))))


def _without_elements(text: str, name: str) -> str:
    """`text` without what stands between `<name` and `</name`. One pass, whatever is left open."""
    low = text.lower()
    parts, at = [], 0
    while (start := low.find(f"<{name}", at)) >= 0:
        parts.append(text[at:start])
        at = low.find(f"</{name}", start)
        if at < 0:
            return "".join(parts)
    return "".join([*parts, text[at:]])


def _key(text: str) -> str:
    return _NOT_WORD.sub("", unicodedata.normalize("NFKC", text).casefold())


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Interrupt Python code in the main thread after `seconds`. Elsewhere (a thread, or someone else's timer is
    running) the size limits alone bound the work."""
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        yield
        return

    def late(signum: int, frame: FrameType | None) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
