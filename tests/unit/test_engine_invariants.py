"""Scheduler and memory driven at random: arrivals, priorities, drafts, cancels, deadlines, preemptions, few pages.

The invariants are checked before and after every step, and each request gets the tokens that it would get alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference.invariants import check_books, check_ends, check_plan
from inference.memory.pages import PagePool
from inference.memory.prefix import root_hash
from inference.plan import Plan, Scheduled
from inference.request import FinishReason, Request, Response
from inference.scheduler import NO_DRAFTS, Scheduler, Tokens
from inference.sequence import Sequence

LONGEST_PROMPT = 24
LONGEST_ANSWER = 12


def next_token(tokens: list[int]) -> int:
    """A stand-in for the model: depends on every token before it."""
    return hash(tuple(tokens)) % 7


class Requests(RuleBasedStateMachine):
    """A scheduler, and what a device would have left in each slot of the cache."""

    @initialize(
        page=st.sampled_from([2, 4, 16, 32, 64]),
        spare=st.integers(0, 12),
        max_seqs=st.integers(1, 5),
        budget=st.integers(5, 40),
        prefix_cache=st.booleans(),
    )
    def start(self, page: int, spare: int, max_seqs: int, budget: int, prefix_cache: bool) -> None:
        self.page = page
        pages = -(-(LONGEST_PROMPT + LONGEST_ANSWER) // page) + spare  # the longest request fits alone
        self.scheduler = Scheduler(
            PagePool(pages),
            page_size=page,
            max_num_seqs=max_seqs,
            max_num_batched_tokens=budget,
            prefix_cache=prefix_cache,
        )
        self.now = 0.0
        self.budget, self.max_seqs = budget, max_seqs
        self.alive: dict[str, Sequence] = {}
        self.outputs: dict[str, int] = {}
        self.responses: list[Response] = []
        self.cache: dict[tuple[int, int], tuple[str, tuple[int, ...]]] = {}

    @rule(
        text=st.integers(0, 1),
        length=st.integers(1, LONGEST_PROMPT - 3),
        tail=st.lists(st.integers(0, 2), max_size=3),
        outputs=st.integers(1, LONGEST_ANSWER),
        priority=st.integers(-3, 3),
        salt=st.sampled_from(["", "other"]),
        timeout=st.one_of(st.none(), st.integers(1, 60)),
    )
    def arrive(
        self, text: int, length: int, tail: list[int], outputs: int, priority: int, salt: str, timeout: int | None
    ) -> None:
        number = len(self.outputs)
        prompt = [(3 * text + i) % 5 for i in range(length)] + tail  # two texts, so that long prefixes meet
        request = Request(
            str(number), tuple(prompt), priority=priority, cache_salt=salt, timeout_seconds=timeout and float(timeout)
        )
        self.alive[request.id] = Sequence(request, number, self.now, root_hash(salt))
        self.outputs[request.id] = outputs
        self.scheduler.add(self.alive[request.id])

    @rule(seconds=st.integers(1, 30))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        for sequence in [s for s in self.alive.values() if s.overdue(self.now)]:
            self.end(sequence, FinishReason.TIMEOUT)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.end(self.alive[data.draw(st.sampled_from(sorted(self.alive)))], FinishReason.CANCELLED)

    @precondition(lambda self: self.scheduler.running)
    @rule(data=st.data())
    def step_and_lose_one(self, data: st.DataObject) -> None:
        """While a step runs one of its requests is cancelled or preempted; its result comes late."""
        plan = self.plan()
        if not plan:
            return
        self.compute(plan)
        lost = data.draw(st.sampled_from(plan.scheduled))
        if data.draw(st.booleans()):
            self.end(lost.sequence, FinishReason.CANCELLED)
        else:
            self.scheduler._preempt(lost.sequence)
        for item in plan:
            assert self.scheduler.commit(item) == (item is not lost), "a late result was taken"
        self.take([item for item in plan if item is not lost and item.samples])

    @rule(ahead=st.integers(0, 6), right=st.integers(0, 6))
    def step(self, ahead: int = 0, right: int = 0) -> None:
        """With drafts of `ahead` tokens, the first `right` of them what the model will say."""
        plan = self.plan({s.request.id: self.guess(s, ahead, right) for s in self.scheduler.decoding()})
        assert plan or not self.alive, "work is waiting and nothing runs"
        self.compute(plan)
        for item in plan:
            assert self.scheduler.commit(item)
        self.take([item for item in plan if item.samples])

    def guess(self, sequence: Sequence, ahead: int, right: int) -> list[int]:
        tokens = list(sequence.tokens)
        for index in range(ahead):
            tokens.append(next_token(tokens) if index < right else 9)
        return tokens[len(sequence.tokens) :]

    def plan(self, drafts: Mapping[str, Tokens] = NO_DRAFTS) -> Plan:
        plan = self.scheduler.plan(drafts)
        assert plan.tokens <= self.budget
        assert len(self.scheduler.running) <= self.max_seqs
        check_plan(plan, self.scheduler.running, self.page)
        return plan

    def compute(self, plan: Plan) -> None:
        for item in plan:
            for position in range(item.start, item.stop):
                self.cache[self.slot(item.sequence, position)] = self.past(item, position)
        for item in plan:  # what attention would read is this request's own past, of its own tenant
            for position in range(item.stop):
                assert self.cache[self.slot(item.sequence, position)] == self.past(item, position)

    def slot(self, sequence: Sequence, position: int) -> tuple[int, int]:
        return sequence.pages[position // self.page], position % self.page

    def past(self, item: Scheduled, position: int) -> tuple[str, tuple[int, ...]]:
        tokens = (*item.sequence.tokens, *item.draft)
        return item.sequence.request.cache_salt, tokens[: position + 1]

    def take(self, sampled: list[Scheduled]) -> None:
        """Commit what the model says behind each request and, as long as the draft foresaw it, behind the draft."""
        for item in sampled:
            sequence, accepted = item.sequence, 0
            while True:
                sequence.tokens.append(next_token(sequence.tokens))
                if sequence.output_length == self.outputs[sequence.request.id]:
                    self.end(sequence, FinishReason.LENGTH)
                    break
                self.responses.append(Response(sequence.request.id, (sequence.tokens[-1],)))
                if item.draft[accepted : accepted + 1] != (sequence.tokens[-1],):
                    self.scheduler.accept(item, accepted)
                    break
                accepted += 1

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        del self.alive[sequence.request.id]
        self.scheduler.remove(sequence)
        self.responses.append(Response(sequence.request.id, finish_reason=reason))
        expected = list(sequence.request.prompt_token_ids)
        while len(expected) < len(sequence.tokens):
            expected.append(next_token(expected))
        assert sequence.tokens == expected, "other tokens than alone"

    @invariant()
    def books(self) -> None:
        check_books(self.scheduler.pool, self.scheduler.running, self.scheduler.waiting, self.page)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(5000):
            if not self.alive:
                break
            self.step()
            self.books()
        check_ends(self.outputs, self.responses)
        pool = self.scheduler.pool
        assert pool.owned == 0
        assert pool.free + pool.cached == pool.total


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=100, stateful_step_count=40, deadline=None, derandomize=True)


# The invariants themselves: each must be able to fail.


def scheduler(pages: int = 8) -> Scheduler:
    return Scheduler(PagePool(pages), page_size=4, max_num_seqs=4, max_num_batched_tokens=32)


def sequence(name: str, tokens: tuple[int, ...] = (1, 2, 3, 4, 5)) -> Sequence:
    return Sequence(Request(name, tokens), 0, 0.0, root_hash(""))


def test_a_lost_page_is_noticed() -> None:
    one = scheduler()
    one.add(sequence("a"))
    one.plan()
    one.check()
    one.running[0].pages.pop()
    with pytest.raises(AssertionError, match="hold counts"):
        one.check()


def test_a_shared_page_that_is_written_is_noticed() -> None:
    one = scheduler()
    first, second = sequence("a"), sequence("b", (7, 8, 9))
    one.add(first)
    one.add(second)
    plan = one.plan()
    check_plan(plan, one.running, 4)
    second.pages = first.pages[:1]
    with pytest.raises(AssertionError, match="several holders"):
        check_plan(plan, one.running, 4)


def test_a_row_of_another_request_is_noticed() -> None:
    one = sequence("a")
    one.pages = [1, 2]
    plan = Plan((Scheduled(one, 0, 0, 5, 0), Scheduled(one, 0, 0, 5, 5)))
    with pytest.raises(AssertionError, match="scheduled twice"):
        check_plan(plan, [one], 4)
    with pytest.raises(AssertionError, match="not dense"):
        check_plan(Plan((Scheduled(one, 0, 0, 5, 1),)), [one], 4)


@pytest.mark.parametrize(
    ("responses", "words"),
    [
        ([], "without an end"),
        ([Response("a", finish_reason=FinishReason.STOP)] * 2, "after its end"),
        ([Response("b", (1,))], "never accepted"),
    ],
)
def test_a_request_without_exactly_one_end_is_noticed(responses: list[Response], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_ends({"a"}, responses)


# Order of service


def test_nothing_starves_behind_a_stream_of_urgent_requests() -> None:
    one = Scheduler(PagePool(2), page_size=4, max_num_seqs=1, max_num_batched_tokens=32)
    patient = Sequence(Request("patient", (1, 2, 3), priority=3), 0, 0.0, root_hash(""))
    one.add(patient)
    served = []
    for number in range(1, 60):  # one urgent request a second, and one is served a second
        one.add(Sequence(Request(str(number), (number, 2, 3)), number, float(number), root_hash("")))
        (item,) = one.plan()
        one.commit(item)
        one.remove(item.sequence)
        served.append(item.sequence.request.id)
    assert served.index("patient") == 29, "three levels outweigh thirty seconds, and no more"


def test_a_priority_out_of_bounds_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="priority is 101; it must be between -100 and 100"):
        Request("r", (1,), priority=101)
