"""The one text gate: whatever bytes a page is made of, what leaves here can be stored as PostgreSQL text.

`decode` turns bytes into text and reports what it repaired; `clean_string` and `clean_value` stand before every
write, failure records included.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
META_WINDOW = 4096  # bytes searched for <meta charset>; HTML asks for the first 1024, real pages are sloppier
MIN_BINARY_SIGNS = 8  # a few stray control characters are repaired, not refused
SNIFF_WINDOW = 65536  # bytes looked at to recognise UTF-16 without a byte order mark, or a binary file

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16-LE, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_META_CHARSET = re.compile(rb"<meta[^>]{0,512}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"^\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
# C0 controls but tab, newline and carriage return; DEL; C1 controls but NEL, which is a line break.
_CONTROLS = re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_NO_CHARSETS = frozenset(
    # Codecs of other things, and charsets that browsers refuse or that differ between machines.
    "idna punycode unicode-escape raw-unicode-escape undefined utf-7 mbcs oem palmos".split()
)
# Browsers read these labels as windows-1252; strict ISO-8859-1 would turn its quotes into control characters.
_WINDOWS_LABELS = {"iso-8859-1", "iso8859-1", "latin-1", "latin1", "l1", "ascii", "us-ascii"}


@dataclass(frozen=True)
class GatedText:
    """Text that PostgreSQL takes, the charset it was read as, why that one, and what was repaired (kind → count)."""

    text: str
    charset: str
    charset_from: str  # bom, declared, utf-8, meta, fallback, utf-16-pattern
    repairs: Mapping[str, int] = field(default_factory=dict)


def decode(data: bytes, *, declared: str | None = None) -> GatedText:
    """Read `data` by byte order mark, else `declared` (the HTTP charset), else strict UTF-8, else the document's own
    `<meta>` or XML declaration, else windows-1252. Never raises: what no charset can read becomes U+FFFD."""
    charset, source, body = _choose(data, declared)
    try:
        text = body.decode(charset)
        undecodable = 0
    except UnicodeError:
        text = body.decode(charset, errors="replace")
        undecodable = text.count(REPLACEMENT)
    text, repairs = _repair(text)
    if undecodable:
        repairs["undecodable"] = undecodable
    return GatedText(text, charset, source, repairs)


def gate_text(text: str) -> GatedText:
    """The gate for text that is already decoded (JSONL fields, PDF text layers)."""
    text, repairs = _repair(text)
    return GatedText(text, "unicode", "declared", repairs)


def clean_string(text: str) -> str:
    """`text` without what PostgreSQL or a strict reader refuses: NUL and control characters go, lone surrogates
    become U+FFFD. The length may shrink, so offsets are only ever taken after this."""
    if not _UNSAFE.search(text):
        return text
    text = _join_surrogates(text)
    return _SURROGATES.sub(REPLACEMENT, _CONTROLS.sub("", text.replace("\x00", "")))


def clean_value(value: Any) -> Any:
    """`clean_string` on every string inside a JSON-like value, keys included."""
    if isinstance(value, str):
        return clean_string(value)
    if isinstance(value, Mapping):
        return {clean_string(str(key)): clean_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_value(item) for item in value]
    return value


def looks_binary(data: bytes) -> bool:
    """True when `data` can't be text: many NULs outside a UTF-16 pattern, or many control bytes."""
    window = data[:SNIFF_WINDOW]
    if not window or any(window.startswith(mark) for mark, _ in _BOMS) or _utf16_pattern(window):
        return False
    controls = sum(window.count(byte) for byte in _CONTROL_BYTES)
    return window.count(0) > max(MIN_BINARY_SIGNS, len(window) * 0.01) or controls > max(
        MIN_BINARY_SIGNS, len(window) * 0.05
    )


_CONTROL_BYTES = [bytes([value]) for value in (*range(1, 9), *range(14, 27), *range(28, 32), 127)]


def _choose(data: bytes, declared: str | None) -> tuple[str, str, bytes]:
    for mark, charset in _BOMS:
        if data.startswith(mark):
            return charset, "bom", data[len(mark) :]
    if pattern := _utf16_pattern(data[:SNIFF_WINDOW]):
        return pattern, "utf-16-pattern", data
    if declared and (known := _codec(declared)):
        # A server's default header is often wrong about UTF-8 pages, and strict UTF-8 hardly ever passes by chance.
        if known == "utf-8" or not _is_utf8(data) or data.isascii():
            return known, "declared", data
        return "utf-8", "utf-8", data
    if _is_utf8(data):
        return "utf-8", "utf-8", data
    head = data[:META_WINDOW]
    if (match := _XML_ENCODING.search(head) or _META_CHARSET.search(head)) and (
        known := _codec(match.group(1).decode("ascii"))
    ):
        # A page that could say this in ASCII is not UTF-16, whatever it claims.
        return ("utf-8" if known.startswith(("utf-16", "utf-32")) else known), "meta", data
    return "windows-1252", "fallback", data


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _codec(label: str) -> str | None:
    """Python's name for a charset label, or None when there is no such text codec."""
    label = label.strip().strip("\"'").lower()
    if label in _WINDOWS_LABELS:
        return "windows-1252"
    try:
        info = codecs.lookup(label)
    except LookupError:
        return None
    # rot13, base64 and the like are codecs too, but no charsets.
    known = getattr(info, "_is_text_encoding", True) and info.name.replace("_", "-") not in _NO_CHARSETS
    return info.name if known else None


def _utf16_pattern(window: bytes) -> str | None:
    """UTF-16 without a mark: one byte of each pair is mostly NUL, the other hardly ever."""
    pairs = len(window) // 2
    if pairs < 2:
        return None
    even, odd = window[0 : pairs * 2 : 2].count(0), window[1 : pairs * 2 : 2].count(0)
    if odd > pairs * 0.7 and even < pairs * 0.05:
        return "utf-16-le"
    if even > pairs * 0.7 and odd < pairs * 0.05:
        return "utf-16-be"
    return None


def _repair(text: str) -> tuple[str, dict[str, int]]:
    repairs: dict[str, int] = {}
    if text.startswith("\ufeff"):
        text = text[1:]
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not _UNSAFE.search(text):
        return text, repairs
    if nuls := text.count("\x00"):
        repairs["nul"] = nuls
        text = text.replace("\x00", "")
    text = _join_surrogates(text)
    text, lone = _SURROGATES.subn(REPLACEMENT, text)
    if lone:
        repairs["lone_surrogate"] = lone
    text, controls = _CONTROLS.subn("", text)
    if controls:
        repairs["control"] = controls
    return text, repairs


def _join_surrogates(text: str) -> str:
    """Two halves that stand side by side are one character written badly; only a half alone is lost."""
    return re.sub(
        r"([\ud800-\udbff])([\udc00-\udfff])",
        lambda match: chr(0x10000 + ((ord(match[1]) - 0xD800) << 10) + (ord(match[2]) - 0xDC00)),
        text,
    )
