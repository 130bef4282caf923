"""Who computes how many tokens in the next step. Plain Python over integers; no torch.

    waiting ──admit──▶ running ──finish, cancel, time out──▶ gone
       ▲                  │
       └──── preempt ─────┘   (pages given back, outputs kept, recomputed later)

Every step has one token budget. Sequences that need one token come first, so that a long prompt never stalls those that
are decoding; what is left goes to prompts, in chunks. A waiting sequence is admitted only when its whole prompt and one
page for each running sequence fit: admission that has to be undone at once is thrash.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from types import MappingProxyType

from inference.invariants import check_books
from inference.memory.pages import PagePool
from inference.plan import Plan, Scheduled
from inference.sequence import Sequence

Tokens = Seq[int]
NO_DRAFTS: Mapping[str, Tokens] = MappingProxyType({})


class Scheduler:
    """Owns the waiting and running sequences and their pages. Not thread-safe: the engine's loop is its only caller."""

    def __init__(
        self,
        pool: PagePool,
        *,
        page_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prefix_cache: bool = True,
    ) -> None:
        self.pool = pool
        self.waiting: list[Sequence] = []  # by key
        self.running: list[Sequence] = []  # by key
        self.preemptions = 0
        self._page_size = page_size
        self._max_seqs = max_num_seqs
        self._budget = max_num_batched_tokens
        self._prefix_cache = prefix_cache

    # Arrivals and departures

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=lambda s: s.key)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence in any state and take its pages back."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.pages)
        sequence.pages = []
        sequence.computed = 0
        sequence.published = 0

    # The step

    def decoding(self) -> list[Sequence]:
        """Those whose next token will be chosen in the next step, if they need not yield: drafts are for these."""
        return [sequence for sequence in self.running if sequence.remaining == 1]

    def plan(self, drafts: Mapping[str, Tokens] = NO_DRAFTS) -> Plan:
        """Choose the tokens of the next step and give them pages. Empty when there is nothing to run.

        `drafts` has proposals by request id; they get what budget and pages nobody else needs.
        """
        chosen: list[tuple[Sequence, int]] = []
        budget = self._budget
        # Decoding first, then prompts under way, each in the order of service.
        for sequence in sorted(self.running, key=lambda s: (s.remaining > 1, s.key)):
            if sequence not in self.running:  # preempted by one before it
                continue
            count = min(sequence.remaining, budget)
            if count == 0 or not self._grow(sequence, sequence.computed + count, protect=chosen):
                continue
            chosen.append((sequence, count))
            budget -= count
        budget = self._admit(chosen, budget)

        scheduled, row = [], 0
        for sequence, count in chosen:
            draft: tuple[int, ...] = ()
            if count == sequence.remaining and (proposed := drafts.get(sequence.request.id)):
                draft = self._fit(sequence, proposed[:budget])
                budget -= len(draft)
            scheduled.append(Scheduled(sequence, sequence.epoch, sequence.computed, count + len(draft), row, draft))
            row += count + len(draft)
        return Plan(tuple(scheduled))

    def _fit(self, sequence: Sequence, draft: Tokens) -> tuple[int, ...]:
        """As much of a draft as there are pages for, beyond one for each running sequence to grow into."""
        needed = self._pages(len(sequence.tokens) + len(draft)) - len(sequence.pages)
        if needed > 0:
            sequence.pages += self.pool.allocate(max(0, min(needed, self.pool.available - len(self.running))))
        return tuple(draft[: len(sequence.pages) * self._page_size - len(sequence.tokens)])

    def _grow(self, sequence: Sequence, length: int, protect: list[tuple[Sequence, int]]) -> bool:
        """Make room for `length` tokens, preempting later sequences; False when this one itself had to yield."""
        needed = self._pages(length) - len(sequence.pages)
        safe = {id(s) for s, _ in protect} | {id(sequence)}
        while needed > self.pool.available:
            victim = next((s for s in reversed(self.running) if id(s) not in safe), sequence)
            self._preempt(victim)
            if victim is sequence:
                return False
        if needed > 0:
            sequence.pages += self.pool.allocate(needed)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.epoch += 1
        self.preemptions += 1
        self.add(sequence)

    def _admit(self, chosen: list[tuple[Sequence, int]], budget: int) -> int:
        being_computed = self._pages_in_progress()
        for sequence in list(self.waiting):
            if budget == 0 or len(self.running) >= self._max_seqs:
                break
            hits = self._prefix_hits(sequence)
            if self._is_coming(sequence, len(hits), being_computed):
                continue  # another sequence computes its next page right now; wait for it rather than repeat it
            needed = self._pages(len(sequence.tokens)) - len(hits)
            held_back = sum(self.pool.is_cached(page) for page in hits)
            headroom = len(self.running)
            if needed + headroom > self.pool.available - held_back:
                break  # in order of service: a smaller one behind must not starve it
            for page in hits:
                self.pool.share(page)
            sequence.pages = hits + self.pool.allocate(needed)
            sequence.computed = len(hits) * self._page_size
            sequence.published = len(hits)
            if sequence.epoch == 0:  # after a preemption the pages are the sequence's own, not a hit
                sequence.cached_tokens = sequence.computed
            self.waiting.remove(sequence)
            insort(self.running, sequence, key=lambda s: s.key)
            being_computed.update(sequence.chain[len(hits) :])
            count = min(sequence.remaining, budget)
            chosen.append((sequence, count))
            budget -= count
        return budget

    def _pages(self, length: int) -> int:
        return -(-length // self._page_size)

    # Prefix reuse

    def _prefix_hits(self, sequence: Sequence) -> list[int]:
        """Pages in the index that hold the sequence's first tokens; at least one token is always left to compute."""
        if not self._prefix_cache:
            return []
        sequence.extend_chain(self._page_size)
        hits: list[int] = []
        for content in sequence.chain[: (len(sequence.tokens) - 1) // self._page_size]:
            page = self.pool.lookup(content)
            if page is None:
                break
            hits.append(page)
        return hits

    def _pages_in_progress(self) -> set[bytes]:
        return {content for s in self.running for content in s.chain[s.published :]} if self._prefix_cache else set()

    def _is_coming(self, sequence: Sequence, hits: int, being_computed: set[bytes]) -> bool:
        usable = (len(sequence.tokens) - 1) // self._page_size
        return hits < usable and hits < len(sequence.chain) and sequence.chain[hits] in being_computed

    def commit(self, item: Scheduled) -> bool:
        """Note that a scheduled item has been computed; False when its sequence was preempted or left meanwhile."""
        sequence = item.sequence
        if sequence.epoch != item.epoch or not sequence.pages:
            return False
        self._advance(sequence, item.stop - len(item.draft))
        return True

    def accept(self, item: Scheduled, count: int) -> None:
        """The first `count` tokens of an item's draft are the sequence's own now, and computed."""
        self._advance(item.sequence, item.stop - len(item.draft) + count)

    def _advance(self, sequence: Sequence, computed: int) -> None:
        sequence.computed = computed
        if self._prefix_cache:
            sequence.extend_chain(self._page_size)
            full = min(len(sequence.chain), sequence.computed // self._page_size)
            for index in range(sequence.published, full):
                self.pool.publish(sequence.pages[index], sequence.chain[index])
            sequence.published = max(sequence.published, full)

    # Integrity

    def check(self) -> None:
        """Raise AssertionError when pages or queues are inconsistent. Cheap enough for every idle moment."""
        check_books(self.pool, self.running, self.waiting, self._page_size)
