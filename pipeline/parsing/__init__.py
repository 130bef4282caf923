"""Foreign bytes are read in child processes that have little memory, little time, no secrets, and nothing to lose.

`child` is what runs there, `pool` keeps such children and asks them, `wire` is what the two say to each other. Only
data comes back: a child that was taken over can lie about its document, and can do nothing else to its parent.
"""

from pipeline.parsing.pool import ParserLimits, ParserPool

__all__ = ["ParserLimits", "ParserPool"]
