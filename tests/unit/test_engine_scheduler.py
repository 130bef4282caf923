"""Scheduler and pages over integers: random arrivals, cancels and pools, the invariants checked after each step."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.invariants import check_plan
from inference.memory.pages import OutOfPages, PagePool
from inference.memory.prefix import page_hash, root_hash
from inference.plan import Plan
from inference.request import Request
from inference.scheduler import Scheduler
from inference.sequence import Sequence

PAGE = 4


def make(name: str, tokens: list[int], arrival: int = 0, priority: int = 0, salt: str = "") -> Sequence:
    return Sequence(Request(name, tuple(tokens), priority=priority, cache_salt=salt), arrival, 0.0, root_hash(salt))


def next_token(tokens: list[int]) -> int:
    """A stand-in for the model: depends on every token before it."""
    return hash(tuple(tokens)) % 7


@dataclass
class World:
    """A scheduler with a pretended device: `content` is what the model would have left in each slot of the cache."""

    pages: int
    max_seqs: int = 4
    budget: int = 8
    prefix_cache: bool = True
    content: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    finished: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            PagePool(self.pages),
            page_size=PAGE,
            max_num_seqs=self.max_seqs,
            max_num_batched_tokens=self.budget,
            prefix_cache=self.prefix_cache,
        )

    def add(self, sequence: Sequence, outputs: int) -> None:
        self.wanted[sequence.request.id] = outputs
        self.scheduler.add(sequence)

    def step(self) -> Plan:
        plan = self.scheduler.plan()
        self.check_plan(plan)
        rows = plan.logits
        for item in plan:
            tokens = item.sequence.tokens
            for position in range(item.start, item.stop):
                slot = (item.sequence.pages[position // PAGE], position % PAGE)
                self.content[slot] = tuple(tokens[: position + 1])
        for item in plan:
            # What attention would read must be this sequence's own past, wherever the pages came from.
            for position in range(item.stop):
                slot = (item.sequence.pages[position // PAGE], position % PAGE)
                assert self.content[slot] == tuple(item.sequence.tokens[: position + 1])
            assert self.scheduler.commit(item)
        for row in rows:
            sequence = row.scheduled.sequence
            assert row.position == len(sequence.tokens) - 1
            sequence.tokens.append(next_token(sequence.tokens))
            if sequence.output_length == self.wanted[sequence.request.id]:
                self.scheduler.remove(sequence)
                assert sequence.request.id not in self.finished
                self.finished[sequence.request.id] = sequence.tokens
        self.scheduler.check()
        return plan

    def check_plan(self, plan: Plan) -> None:
        assert plan.tokens <= self.budget
        assert len(self.scheduler.running) <= self.max_seqs
        check_plan(plan, self.scheduler.running, PAGE)

    def run(self, limit: int = 2000) -> None:
        for _ in range(limit):
            if not self.scheduler.running and not self.scheduler.waiting:
                return
            assert self.step(), "work is waiting and nothing runs"
        pytest.fail("no end")

    def finish(self, tokens: list[int], outputs: int) -> list[int]:
        tokens = list(tokens)
        for _ in range(outputs):
            tokens.append(next_token(tokens))
        return tokens


# Beginnings of two texts with a few tokens behind, so that long prefixes meet.
TOKENS = st.builds(
    lambda text, length, tail: [(3 * text + i) % 5 for i in range(length)] + tail,
    st.integers(0, 1),
    st.integers(1, 21),
    st.lists(st.integers(0, 2), max_size=3),
)
REQUEST = st.tuples(
    TOKENS,
    st.integers(1, 12),  # outputs
    st.integers(0, 2),  # priority
    st.sampled_from(["", "other"]),  # salt
    st.integers(0, 6),  # steps before it arrives
    st.one_of(st.none(), st.integers(0, 12)),  # steps before it is cancelled
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=10),
    pages=st.integers(9, 24),  # 9 pages hold the longest request and no more
    max_seqs=st.integers(1, 5),
    budget=st.integers(5, 40),
    prefix_cache=st.booleans(),
)
def test_every_request_gets_its_own_tokens(requests, pages, max_seqs, budget, prefix_cache) -> None:
    world = World(pages, max_seqs, budget, prefix_cache)
    alive: dict[int, Sequence] = {}
    cancelled = set()
    for now in range(20):
        for index, (tokens, outputs, priority, salt, arrives, cancel) in enumerate(requests):
            if now == arrives:
                alive[index] = make(str(index), tokens, index, priority, salt)
                world.add(alive[index], outputs)
            if cancel is not None and now == max(cancel, arrives + 1) and str(index) not in world.finished:
                world.scheduler.remove(alive[index])
                world.scheduler.check()
                cancelled.add(str(index))
        world.step()
    world.run()
    for index, (tokens, outputs, *_) in enumerate(requests):
        if str(index) in cancelled:
            assert str(index) not in world.finished
        else:
            assert world.finished[str(index)] == world.finish(tokens, outputs)
    pool = world.scheduler.pool
    assert pool.owned == 0
    assert pool.free + pool.cached == pages


def test_a_long_prompt_does_not_hold_up_decoding() -> None:
    world = World(pages=64, budget=8)
    world.add(make("short", [1, 2], 0), outputs=20)
    world.step()
    world.add(make("long", [3] * 60, 1), outputs=1)
    for _ in range(8):
        before = len(world.scheduler.running[0].tokens)
        plan = world.step()
        assert plan.tokens == 8, "the budget is used up"
        assert len(world.scheduler.running[0].tokens) == before + 1


def test_shared_prefixes_are_computed_once() -> None:
    world = World(pages=64, budget=64)
    prefix = list(range(16))
    for index in range(4):
        world.add(make(str(index), [*prefix, 50 + index], index), outputs=1)
    first, second = world.step(), world.step()
    # The first computes the prefix; the others, arriving together with it, wait a step and then compute one token.
    assert first.tokens == 17
    assert second.tokens == 3
    assert all(item.sequence.cached_tokens == 16 for item in second)


def test_a_salt_keeps_prefixes_apart() -> None:
    world = World(pages=64, budget=64)
    world.add(make("a", [1] * 9, salt="tenant"), outputs=1)
    world.run()
    other = make("b", [1] * 9, salt="other")
    world.add(other, outputs=1)
    world.run()
    assert other.cached_tokens == 0
    same = make("c", [1] * 9, salt="tenant")
    world.add(same, outputs=1)
    world.run()
    assert same.cached_tokens == 8


def test_a_whole_prompt_in_the_cache_still_computes_its_last_token() -> None:
    world = World(pages=64, budget=64)
    for name in ("a", "b"):
        sequence = make(name, [1, 2, 3, 4, 5, 6, 7, 8])
        world.add(sequence, outputs=1)
        world.run()
    assert sequence.cached_tokens == 4


def test_urgent_requests_go_first_and_preemption_takes_the_least_urgent() -> None:
    world = World(pages=6, max_seqs=2, budget=32, prefix_cache=False)
    late = make("late", [1] * 8, 0, priority=5)
    urgent = make("urgent", [2] * 8, 1, priority=0)
    world.add(late, outputs=9)
    world.add(urgent, outputs=9)
    world.run()
    assert world.scheduler.preemptions >= 1
    assert urgent.epoch == 0
    assert late.epoch >= 1
    assert list(world.finished) == ["urgent", "late"]
    assert world.finished["late"] == world.finish([1] * 8, 9)


def test_results_of_before_a_preemption_are_dropped() -> None:
    world = World(pages=64)
    sequence = make("a", [1, 2, 3])
    world.add(sequence, outputs=2)
    plan = world.scheduler.plan()
    world.scheduler._preempt(sequence)
    assert not world.scheduler.commit(plan.scheduled[0])
    assert sequence.computed == 0
    world.scheduler.check()


def test_cached_pages_are_evicted_oldest_use_first() -> None:
    pool = PagePool(3)
    for name in (b"a", b"b", b"c"):
        (page,) = pool.allocate(1)
        pool.publish(page, name)
        pool.release([page])
    first = pool.lookup(b"a")
    assert first is not None
    pool.share(first)
    pool.release([first])
    pool.allocate(1)
    assert pool.lookup(b"b") is None
    assert pool.lookup(b"a") == first
    assert pool.lookup(b"c") is not None


def test_a_prefix_outlives_its_continuation() -> None:
    pool = PagePool(2)
    pages = pool.allocate(2)
    for page, name in zip(pages, (b"root", b"leaf"), strict=True):
        pool.publish(page, name)
    pool.release(pages)
    pool.allocate(1)
    assert pool.lookup(b"root") == pages[0]
    assert pool.lookup(b"leaf") is None


def test_more_pages_than_there_are() -> None:
    pool = PagePool(2)
    with pytest.raises(OutOfPages, match="3 pages asked for, 2 of 2"):
        pool.allocate(3)
    with pytest.raises(ValueError, match="at least one"):
        PagePool(0)


def test_page_hashes_depend_on_all_that_came_before() -> None:
    root = root_hash("")
    assert page_hash(root, [1, 2]) == page_hash(root, [1, 2])
    assert page_hash(root, [1, 2]) != page_hash(root, [2, 1])
    assert page_hash(page_hash(root, [1]), [2]) != page_hash(page_hash(root, [3]), [2])
    assert root_hash("a") != root_hash("b")
