"""Who holds which page.

    free ──allocate──▶ owned (holders ≥ 1) ──release, not in the index──▶ free
      ▲                  │      ▲
      │               release   │ share (a prefix hit)
      └──── evict ──── cached (holders 0, in the index)

Page 0 is a reserved dummy: padding reads it, nothing owns it.
"""

from __future__ import annotations

from collections import OrderedDict, deque

DUMMY_PAGE = 0


class OutOfPages(RuntimeError):
    """There is no page to be had. The scheduler asks before it allocates, so this is a mistake of the program."""


class PagePool:
    """Reference-counted pages 1..total, with an index of finished pages by content hash, evicted oldest use first."""

    def __init__(self, total: int) -> None:
        """`total` counts the pages that can be handed out, the dummy not among them."""
        if total < 1:
            raise ValueError(f"{total} pages: the cache must hold at least one")
        self.total = total
        self._free: deque[int] = deque(range(1, total + 1))
        self._holders: dict[int, int] = {}  # owned pages only
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._page_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def owned(self) -> int:
        return len(self._holders)

    @property
    def available(self) -> int:
        """Pages that `allocate` can give: free ones and cached ones, which it would evict."""
        return len(self._free) + len(self._cached)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages, evicting cached ones when no free ones are left."""
        if count > self.available:
            raise OutOfPages(f"{count} pages asked for, {self.available} of {self.total} available")
        pages = []
        for _ in range(count):
            page = self._free.popleft() if self._free else self._evict()
            self._holders[page] = 1
            pages.append(page)
        return pages

    def _evict(self) -> int:
        page, _ = self._cached.popitem(last=False)
        del self._page_of[self._hash_of.pop(page)]
        return page

    def lookup(self, content: bytes) -> int | None:
        """The page with this content hash, if there is one. Takes no hold on it."""
        return self._page_of.get(content)

    def is_cached(self, page: int) -> bool:
        """True when the page is in the index and nobody holds it: sharing it uses up an available page."""
        return page in self._cached

    def share(self, page: int) -> None:
        """Hold a page that is in the index, cached or owned by others."""
        if page in self._cached:
            del self._cached[page]
            self._holders[page] = 1
        else:
            self._holders[page] += 1

    def publish(self, page: int, content: bytes) -> None:
        """Enter a full, computed page into the index. The first page of equal content stays the one that is found."""
        if content not in self._page_of and page not in self._hash_of:
            self._page_of[content] = page
            self._hash_of[page] = content

    def release(self, pages: list[int]) -> None:
        """Give up one hold on each. Later pages go first to the eviction end: a prefix outlives its continuations."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            del self._holders[page]
            if page in self._hash_of:
                self._cached[page] = None
            else:
                self._free.append(page)

    def check(self, holders: dict[int, int]) -> None:
        """Raise AssertionError unless every page is in one place and counts equal `holders` (page -> sequences)."""
        free, cached = set(self._free), set(self._cached)
        owned = set(self._holders)
        assert len(free) == len(self._free), "a page is free twice"
        assert len(free) + len(cached) + len(owned) == self.total, "a page is lost or in two places"
        assert free | cached | owned == set(range(1, self.total + 1)), "the dummy page was handed out"
        assert self._holders == holders, f"hold counts {self._holders} differ from the holders {holders}"
        assert set(self._hash_of) <= cached | owned, "a free page is in the index"
        assert {page: h for h, page in self._page_of.items()} == self._hash_of, "the index disagrees with itself"
