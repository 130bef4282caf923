"""A request on its way through the engine: its tokens, and how far the cache has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from inference.memory.prefix import page_hash
from inference.request import Request

PRIORITY_SECONDS = 10.0  # of waiting that outweigh one level of priority


@dataclass(eq=False)
class Sequence:
    """Everything the scheduler knows of a request. `tokens` are prompt and output together, in order.

    `computed` tokens have their keys and values in `pages`; the others are still to be caught up on. There is one
    number per step, `len(tokens) - computed`, whatever the reason: a new prompt, a chunk of one, a preemption, one more
    token. A draft comes on top: it is not the sequence's own until it has been verified.
    """

    request: Request
    arrival: int  # order of arrival; breaks ties between equal priorities
    enqueued_at: float
    root: bytes  # where the chain of page hashes starts
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    chain: list[bytes] = field(default_factory=list)  # hashes of the full pages of `tokens`
    published: int = 0  # leading pages that have been entered into the prefix index
    epoch: int = 0  # raised by every preemption; results of an older epoch are dropped
    matcher: Any = None  # inference.grammar.Matcher, or None when unconstrained
    seed: int = 0  # the request's own, or one made up for it
    started_at: float | None = None
    first_token_at: float | None = None
    cached_tokens: int = 0
    accepted_draft_tokens: int = 0
    device_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.tokens:
            self.tokens = list(self.request.prompt_token_ids)

    @property
    def key(self) -> tuple[float, int]:
        """Order of service; a preempted sequence keeps its place.

        A request stands where one of priority 0 would that came `PRIORITY_SECONDS` later for each level. All age alike,
        so the order of two never changes, and what has waited long enough is ahead of any newcomer: nothing starves.
        """
        return (self.enqueued_at + PRIORITY_SECONDS * self.request.priority, self.arrival)

    def overdue(self, now: float) -> bool:
        """Whether the request has taken longer than it may, at `now` in seconds on the monotonic clock."""
        limit = self.request.timeout_seconds
        return limit is not None and now - self.enqueued_at > limit

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def output_length(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.tokens) - self.computed

    def extend_chain(self, page_size: int) -> None:
        """Hash the pages that `tokens` have filled since the last call."""
        while (len(self.chain) + 1) * page_size <= len(self.tokens):
            start = len(self.chain) * page_size
            parent = self.chain[-1] if self.chain else self.root
            self.chain.append(page_hash(parent, self.tokens[start : start + page_size]))
