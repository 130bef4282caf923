"""What a page says about itself beside its text: title, date, language, site, JSON-LD, and what kind of page it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lxml import etree
from trafilatura.metadata import extract_metadata

MAX_JSON_LD_CHARS = 64 * 1024  # kept per page; more is a catalogue, not a description
MAX_JSON_LD_SCRIPT = 2**20  # a larger script is not even parsed

# Types whose pages are lists and tables first, prose second.
_STRUCTURED = re.compile(
    r"^(?:Recipe|Product|ProductGroup|Event|\w+Event|JobPosting|HowTo|LocalBusiness|Restaurant|Course|Book|Movie|Hotel|"
    r"Dataset|SoftwareApplication|Vehicle|Car|Offer|RealEstateListing|Apartment|House|MedicalCondition|Drug)$"
)
_ARTICLE = re.compile(r"^(?:\w*Article|BlogPosting|LiveBlogPosting|Report)$")
_TYPE_IN_TEXT = re.compile(r'"@type"\s*:\s*\[?\s*"(?:https?://schema\.org/)?(\w{1,40})"')


@dataclass(frozen=True)
class PageMetadata:
    """`structured` and `article` are what the page's own markup declares; both may be false, or both true."""

    title: str | None = None
    date: str | None = None
    language: str | None = None
    site: str | None = None
    author: str | None = None
    description: str | None = None
    canonical: str | None = None
    json_ld: list[Any] = field(default_factory=list)
    structured: bool = False
    article: bool = False

    def as_dict(self) -> dict[str, Any]:
        """What is stored; empty fields are left out."""
        names = ("date", "site", "author", "description", "canonical", "json_ld")
        return {name: value for name in names if (value := getattr(self, name))}


def page_metadata(tree: etree._Element, url: str | None, *, with_date: bool = True) -> PageMetadata:
    """Read the head of a parsed page. `with_date=False` leaves out the search that looks through the whole page."""
    json_ld, types = _json_ld(tree)
    types |= {value.rstrip("/").rpartition("/")[2] for value in tree.xpath("//@itemtype")[:200]}
    og_type = _meta(tree, "og:type") or ""
    found = _extracted(tree, url) if with_date else None
    declared = _meta(tree, "og:title") or _first(tree.xpath("//head/title/text()"))
    # Without a declared title trafilatura takes any heading for one.
    title = (getattr(found, "title", None) or declared) if declared else None
    return PageMetadata(
        title=_short(title),
        date=getattr(found, "date", None),
        language=_language(tree),
        site=_short(getattr(found, "sitename", None) or _meta(tree, "og:site_name")),
        author=_short(getattr(found, "author", None)),
        description=_short(_meta(tree, "description") or _meta(tree, "og:description"), 2000),
        canonical=_short(_first(tree.xpath("//link[@rel='canonical']/@href")) or url, 2000),
        json_ld=json_ld,
        structured=any(_STRUCTURED.match(name) for name in types),
        article=og_type.lower() == "article" or any(_ARTICLE.match(name) for name in types),
    )


def _extracted(tree: etree._Element, url: str | None) -> Any:
    try:
        return extract_metadata(tree, default_url=url, extensive=False)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, etree.LxmlError):
        return None  # metadata is a gift: a page that breaks its reader still has its text


def _json_ld(tree: etree._Element) -> tuple[list[Any], set[str]]:
    kept: list[Any] = []
    types: set[str] = set()
    room = MAX_JSON_LD_CHARS
    for script in tree.xpath("//script[contains(@type, 'ld+json')]"):
        text = script.text or ""
        if not text.strip() or len(text) > MAX_JSON_LD_SCRIPT:
            continue
        types.update(_TYPE_IN_TEXT.findall(text))
        try:
            value = json.loads(text, strict=False, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            continue
        if len(text) <= room:
            kept.append(value)
            room -= len(text)
    return kept, types


def _meta(tree: etree._Element, name: str) -> str | None:
    return _first(tree.xpath("//meta[@property=$name or @name=$name]/@content", name=name))


def _language(tree: etree._Element) -> str | None:
    declared = _first(_attributes(tree, ("lang", "{http://www.w3.org/XML/1998/namespace}lang", "xml:lang")))
    return declared.strip().replace("_", "-")[:35] or None if declared else None


def _attributes(tree: etree._Element, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if value := tree.get(name):
            yield value


def _first(values: Any) -> str | None:
    for value in values:
        if text := str(value).strip():
            return text
    return None


def _short(text: str | None, limit: int = 500) -> str | None:
    return " ".join(text.split())[:limit] or None if text else None
