"""The text layer of a PDF, with the line breaks that its producer put where the page ended rather than the sentence."""

from __future__ import annotations

import re
import statistics
import threading
from dataclasses import dataclass, field

import pypdfium2 as pdfium

from pipeline.errors import DocumentError
from pipeline.gate import gate_text

_PDFIUM = threading.Lock()  # PDFium is not thread-safe, whichever document it reads
MAX_PAGES = 5000
_HYPHEN = re.compile(r"(\w)[-\u00ad\u2010\ufffe\u0002]\n(?=[a-zß-ÿ])")
_ENDS_SENTENCE = re.compile(r"[.!?:;…。！？]['\"”’)\]]*$")
_STARTS_ITEM = re.compile(r"^(?:[-–•●▪◦*]|\(?\d{1,3}[.)])\s")


@dataclass(frozen=True)
class PdfText:
    """`pages` are the code-point offsets at which each page begins; `repaired` names what was mended."""

    text: str
    title: str | None
    pages: list[int] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)


def pdf_text(data: bytes) -> PdfText:
    """Raises DocumentError: `unreadable` (damaged, encrypted), `no_text_layer` (scanned pages)."""
    with _PDFIUM:
        raw, title = _read(data)
    pages: list[str] = []
    repaired: set[str] = set()
    for page in raw:
        gated = gate_text(_HYPHEN.sub(r"\1", page.replace("\r\n", "\n").replace("\r", "\n")))
        text, fixed = repair_lines(gated.text)
        pages.append(text)
        repaired.update(gated.repairs)
        if fixed:
            repaired.add(fixed)
    starts: list[int] = []
    parts: list[str] = []
    length = 0
    for page in pages:
        starts.append(length)
        if page:
            parts.append(page)
            length += len(page) + 2
    text = "\n\n".join(parts)
    if not text.strip():
        raise DocumentError("no_text_layer", f"{len(raw)} pages without a text layer: run OCR on the file first")
    return PdfText(text, title, starts, sorted(repaired))


def repair_lines(text: str) -> tuple[str, str | None]:
    """Join lines that belong together. Returns the text and what kind of damage it had, if any."""
    lines = [line.strip() for line in text.split("\n")]
    filled = [line for line in lines if line]
    if len(filled) >= 20 and statistics.mean(len(line.split()) for line in filled) < 1.6:
        return _join_words(lines), "one_word_per_line"
    if len(filled) < 2:
        return "\n".join(filled), None
    full = statistics.quantiles([len(line) for line in filled], n=10)[-1] * 0.7
    parts: list[str] = []
    before = ""
    for line in lines:
        if not line:
            before = ""
            if parts and parts[-1] != "\n\n":
                parts.append("\n\n")
            continue
        if before:
            wraps = len(before) >= full and not _ENDS_SENTENCE.search(before) and not _STARTS_ITEM.match(line)
            parts.append(" " if wraps else "\n")
        parts.append(line)
        before = line
    return "".join(parts).strip(), None


def _join_words(lines: list[str]) -> str:
    """Words on lines of their own: a single blank line is a space, two or more are a paragraph."""
    parts: list[str] = []
    blank = 0
    for line in lines:
        if not line:
            blank += 1
            continue
        if parts:
            parts.append("\n\n" if blank >= 2 else " ")
        parts.append(line)
        blank = 0
    return "".join(parts)


def _read(data: bytes) -> tuple[list[str], str | None]:
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        locked = "password" in str(error).lower()
        words = "it is protected by a password" if locked else f"it is damaged ({error})"
        raise DocumentError("unreadable", f"the PDF can't be opened: {words}") from error
    try:
        if len(document) > MAX_PAGES:
            raise DocumentError("too_big", f"the PDF has {len(document):,} pages; at most {MAX_PAGES:,} are read")
        pages = []
        for index in range(len(document)):
            page = document[index]
            textpage = page.get_textpage()
            pages.append(textpage.get_text_bounded())
            textpage.close()
            page.close()
        title = (document.get_metadata_dict().get("Title") or "").strip() or None
        return pages, title
    finally:
        document.close()
