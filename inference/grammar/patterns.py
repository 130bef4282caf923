r"""A schema's `pattern` as llguidance should read it, so that what it allows is what the checker of the answer finds.

Two things stand between them:
- llguidance's regular expressions are Rust's. Inside a class, `[`, `&&` and `~~` have a meaning there.
- What it allows is never to be more. Its JSON quoting lets `\"` and `\\` through in a class that has every control
  character but not the quote or the backslash, as `[^"]` has: NUL, which no string here can hold, is taken out of
  negated classes. And its `\D` and `\W` mean ASCII, a Python checker's mean Unicode: they become what both exclude.
"""

from __future__ import annotations

_DIGIT, _WORD = r"\p{Nd}", r"\p{L}\p{N}_"
_OUTSIDE = {"D": rf"[^\x00{_DIGIT}]", "W": rf"[^\x00{_WORD}]"}
_IN_CLASS = {False: _OUTSIDE, True: {"d": _DIGIT, "w": _WORD}}  # by whether the class is negated
_ESCAPED_IN_CLASS = frozenset("[&~")


def for_grammar(pattern: str) -> str:
    """`pattern`, an ECMA or Python regular expression, for llguidance; allows the same or a little less."""
    out: list[str] = []
    negated: bool | None = None  # None outside of classes
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            follows = pattern[at + 1]
            out.append((_OUTSIDE if negated is None else _IN_CLASS[negated]).get(follows, char + follows))
            at += 2
            continue
        at += 1
        if negated is not None:
            out.append(f"\\{char}" if char in _ESCAPED_IN_CLASS else char)
            if char == "]":
                negated = None
        elif char == "[":
            negated = pattern[at : at + 1] == "^"
            out.append(r"[^\x00" if negated else "[")
            at += negated
            if (first := pattern[at : at + 1]) in ("]", "-"):  # one of the class's characters in this place
                out.append(f"\\{first}")
                at += 1
        else:
            out.append(char)
    return "".join(out)
