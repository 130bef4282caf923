"""HTML as blocks of text: one linear, iterative walk that keeps headings, lists and tables, and drops what nobody sees.

The walk knows no document model: it takes any lxml tree, HTML or trafilatura's own (whose `head`, `item`, `row` and
`cell` mean what `h2`, `li`, `tr` and `td` mean), of any depth.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from lxml import etree, html

MAX_CELL_CHARS = 400  # a longer cell holds prose: the table lays out a page rather than data


class BlockKind(StrEnum):
    PARAGRAPH = "paragraph"
    HEADING = "heading"
    ITEM = "item"
    ROW = "row"
    CODE = "code"


@dataclass(slots=True)
class Block:
    """One line or paragraph as rendered. `boilerplate`: it stands in navigation, a footer, a form or the like."""

    kind: BlockKind
    text: str
    level: int = 0  # of a heading 1 to 6; of a list item its depth from 0
    link_chars: int = 0
    boilerplate: bool = False

    @property
    def link_share(self) -> float:
        return self.link_chars / len(self.text) if self.text else 0.0

    def markdown(self) -> str:
        match self.kind:
            case BlockKind.HEADING:
                return "#" * max(1, min(self.level, 6)) + " " + self.text.replace("\n", " ")
            case BlockKind.ITEM:
                return "  " * self.level + "- " + self.text.replace("\n", " ")
            case BlockKind.ROW:
                return self.text
            case BlockKind.CODE:
                return f"```\n{self.text}\n```"
            case _:
                return self.text


_SKIP = frozenset(
    "script style noscript template svg math iframe object embed applet canvas audio video source track map area link "
    "meta head select option datalist button input textarea progress meter dialog graphic".split()
)
_BLOCKS = frozenset(
    "address article aside blockquote body center dd details dialog dir div dl dt fieldset figcaption figure footer "
    "form header hgroup hr html legend main menu nav ol p pre quote section summary table tbody tfoot thead ul list ab "
    "caption search code-block".split()
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_ITEMS, _ROWS, _CELLS = frozenset({"li", "item"}), frozenset({"tr", "row"}), frozenset({"td", "th", "cell"})
_LISTS = frozenset({"ul", "ol", "menu", "dir", "list"})
_BOILERPLATE_TAGS = frozenset({"nav", "footer", "aside", "form", "search"})
_BOILERPLATE_ROLES = frozenset(
    {
        "navigation",
        "banner",
        "contentinfo",
        "complementary",
        "search",
        "dialog",
        "alertdialog",
        "menu",
        "menubar",
        "form",
    }
)
_BOILERPLATE_NAMES = re.compile(
    r"(?:^|[\s_-])(?:nav|navbar|navigation|menu|footer|breadcrumbs?|cookies?|consent|gdpr|newsletter|subscribe|signup|login|"
    r"share|sharing|social|related|recommended|comments?|respond|sidebar|promo|sponsor(?:ed)?|advert(?:s|isement)?|ads?|"
    r"banner|popup|modal|skip|pagination|toolbar|widget)(?:$|[\s_-])",
    re.IGNORECASE,
)
_HIDDEN_STYLE = re.compile(r"(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)
_SPACE = re.compile(r"[ \t\r\n\f\v\u00a0\u2028\u2029]+")


def parse_html(text: str) -> html.HtmlElement | None:
    """Parse gated text; None when there is nothing to parse, or when libxml2 gave up in the middle: it stops at a depth
    of 2,048 elements, and half a page must not pass for the whole."""
    # An encoding declaration inside text that is already decoded would be read a second time.
    text = re.sub(r"^\s*<\?xml[^>]*\?>", "", text, count=1)
    parser = html.HTMLParser(encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True)
    try:
        tree = html.document_fromstring(text.encode("utf-8", "replace"), parser=parser)
    except (etree.ParserError, etree.XMLSyntaxError, ValueError):
        return None
    gave_up = any("depth" in entry.message.lower() for entry in parser.error_log.filter_from_fatals())
    return None if gave_up else tree


def is_hidden(element: etree._Element) -> bool:
    """Hidden by its own attributes. Style sheets are not read."""
    get = element.get
    if get("hidden") is not None:
        return True
    style = get("style")
    return bool(style and _HIDDEN_STYLE.search(style))


def is_boilerplate(element: etree._Element, tag: str) -> bool:
    """Marked up as not being the content: by tag, by role, or by a telling class or id."""
    if tag in _BOILERPLATE_TAGS:
        return True
    if not element.attrib:
        return False
    if (element.get("role") or "").lower() in _BOILERPLATE_ROLES:
        return True
    if tag in ("body", "html", "main", "article"):
        return False
    return any((value := element.get(name)) and _BOILERPLATE_NAMES.search(value) for name in ("class", "id"))


@dataclass(slots=True)
class _State:
    """What the walk carries: the open inline text and the counters of what is open around it."""

    blocks: list[Block] = field(default_factory=list)
    inline: list[str] = field(default_factory=list)
    link_chars: int = 0
    links: int = 0
    pre: int = 0
    lists: int = 0
    boilerplate: int = 0
    kind: BlockKind = BlockKind.PARAGRAPH
    level: int = 0
    cells: list[str] | None = None  # of the open row of a data table
    heads: int = 0  # how many of them are header cells, from the left

    def add(self, text: str | None) -> None:
        if text:
            self.inline.append(text)
            if self.links:
                self.link_chars += len(text.strip())

    def take(self) -> str:
        raw = "".join(self.inline)
        self.inline.clear()
        if self.pre:
            return raw.strip("\n").rstrip()
        if "\x00" not in raw:
            return _SPACE.sub(" ", raw).strip()
        return "\n".join(line for part in raw.split("\x00") if (line := _SPACE.sub(" ", part).strip()))

    def flush(self) -> None:
        if self.cells is not None:
            self.inline.append(" ")  # blocks inside a cell stay on the row's line
            return
        if text := self.take():
            kind = BlockKind.CODE if self.pre else self.kind
            self.blocks.append(Block(kind, text, self.level, min(self.link_chars, len(text)), self.boilerplate > 0))
        self.link_chars = 0
        if self.kind is BlockKind.ITEM:  # what follows inside the same item is a paragraph of its own
            self.kind = BlockKind.PARAGRAPH


def blocks(root: etree._Element, *, keep_hidden: bool = False) -> list[Block]:
    """All visible text under `root` in document order."""
    state = _State()
    undo: list[tuple[str, object]] = []
    walker = etree.iterwalk(root, events=("start", "end"))
    skipped: etree._Element | None = None
    for event, element in walker:
        tag = element.tag if isinstance(element.tag, str) else ""
        tag = tag.rpartition("}")[2].lower()
        if event == "start":
            if (
                not tag
                or _is_skipped(element, tag, keep_hidden)
                or (element is not root and not keep_hidden and is_hidden(element))
            ):
                skipped = element
                walker.skip_subtree()
                continue
            _open(state, element, tag, undo)
        else:
            if element is skipped:
                skipped = None
            else:
                _close(state, element, tag, undo)
            if element is not root:
                state.add(element.tail)
    state.flush()
    return state.blocks


def _is_skipped(element: etree._Element, tag: str, keep_hidden: bool) -> bool:
    if tag == "head":
        return not _is_tei_head(element)
    return tag in _SKIP and not (keep_hidden and tag in ("noscript", "template"))


def _is_tei_head(element: etree._Element) -> bool:
    parent = element.getparent()
    return parent is None or parent.tag != "html"


def _heading_level(element: etree._Element, tag: str) -> int | None:
    if tag == "head":
        rend = element.get("rend") or ""
        return _HEADINGS.get(rend, 2)
    return _HEADINGS.get(tag)


def _open(state: _State, element: etree._Element, tag: str, undo: list[tuple[str, object]]) -> None:
    if tag in ("br", "lb"):
        state.add(
            "\x00"
            if state.cells is None and state.kind is BlockKind.PARAGRAPH and not state.pre
            else "\n"
            if state.pre
            else " "
        )
    elif tag in ("a", "ref"):
        state.links += 1
    elif (level := _heading_level(element, tag)) is not None:
        state.flush()
        if state.cells is None:
            state.kind, state.level = BlockKind.HEADING, level
    elif tag in _ITEMS or tag in ("dt", "dd"):
        state.flush()
        if state.cells is None:
            state.kind, state.level = BlockKind.ITEM, max(0, state.lists - 1)
    elif tag in _ROWS:
        state.flush()
        undo.append(("cells", state.cells))
        if state.cells is None and _is_data_row(element):
            state.cells, state.heads = [], 0
    elif tag in _CELLS:
        state.flush()
    elif tag in _BLOCKS:
        state.flush()
        if tag in _LISTS:
            state.lists += 1
        if tag == "pre":
            state.pre += 1
        if state.cells is None and tag not in ("p", "div", "section", "ul", "ol", "quote", "blockquote"):
            state.kind = BlockKind.PARAGRAPH
    if is_boilerplate(element, tag):
        state.flush()
        state.boilerplate += 1
        undo.append(("boilerplate", element))
    state.add(element.text)


def _close(state: _State, element: etree._Element, tag: str, undo: list[tuple[str, object]]) -> None:
    if undo and undo[-1][0] == "boilerplate" and undo[-1][1] is element:
        undo.pop()
        state.flush()
        state.boilerplate -= 1
    if tag in ("a", "ref"):
        state.links -= 1
    elif _heading_level(element, tag) is not None:
        state.flush()
        state.kind, state.level = BlockKind.PARAGRAPH, 0
    elif tag in _ITEMS or tag in ("dt", "dd"):
        state.flush()
        if state.cells is None:
            state.kind, state.level = BlockKind.PARAGRAPH, 0
    elif tag in _CELLS:
        if state.cells is not None:
            is_head = tag == "th" or element.get("role") == "head"
            state.heads += is_head and state.heads == len(state.cells)
            state.cells.append(state.take())
        else:
            state.flush()
    elif tag in _ROWS:
        _, outer = undo.pop()
        if outer is None and state.cells is not None:
            cells, state.cells = state.cells, None
            stray = state.take()
            filled = [cell for cell in (*cells, stray) if cell]
            if filled:
                pair = len(cells) == len(filled) == 2 and state.heads == 1  # a name and its value
                text = ": ".join([cells[0].rstrip(" :"), cells[1]]) if pair else " | ".join(cells)
                text = text if len(filled) > 1 else filled[0]
                state.blocks.append(
                    Block(BlockKind.ROW, text, 0, min(state.link_chars, len(text)), state.boilerplate > 0)
                )
            state.link_chars = 0
        else:
            state.flush()
    elif tag in _BLOCKS:
        state.flush()
        if tag in _LISTS:
            state.lists -= 1
        if tag == "pre":
            state.pre -= 1


def _is_data_row(row: etree._Element) -> bool:
    """Cells with short inline content; a row with prose, lists or another table in it lays out the page."""
    for cell in row:
        if not isinstance(cell.tag, str):
            continue
        size = 0
        for node in cell.iter():
            tag = node.tag if isinstance(node.tag, str) else ""
            if tag in _LISTS or tag == "table" or tag in _HEADINGS:
                return False
            size += len(node.text or "") + len(node.tail or "")
            if size > MAX_CELL_CHARS:
                return False
    return True


def render(found: list[Block]) -> str:
    """Blocks as Markdown: items and rows on lines of their own, everything else apart by a blank line."""
    parts: list[str] = []
    before: Block | None = None
    for block in found:
        if before is not None:
            tight = block.kind is before.kind and block.kind in (BlockKind.ITEM, BlockKind.ROW)
            parts.append("\n" if tight else "\n\n")
        parts.append(block.markdown())
        before = block
    return "".join(parts)
