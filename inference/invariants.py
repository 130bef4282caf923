"""What always holds, as functions over the scheduler's plain values. Each raises AssertionError and says what broke.

Tests call all of them after every step. In production `check_books` runs whenever the engine goes idle: a pass over the
pages, and nobody waits for it. No torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from inference.memory.pages import DUMMY_PAGE, PagePool
from inference.request import Response

if TYPE_CHECKING:
    from inference.plan import Plan
    from inference.sequence import Sequence


def check_books(pool: PagePool, running: Seq[Sequence], waiting: Seq[Sequence], page_size: int) -> None:
    """Free + cached + owned pages are all pages, each page's count equals its holders, and both queues are in order."""
    holders: Counter[int] = Counter()
    for sequence in running:
        holders.update(sequence.pages)
        assert len(set(sequence.pages)) == len(sequence.pages), "a sequence holds a page twice"
        assert len(sequence.pages) * page_size >= sequence.computed, "computed tokens without a page"
        assert sequence.remaining >= 0, "more tokens computed than there are"
    for sequence in waiting:
        assert not sequence.pages, "a waiting sequence holds pages"
        assert sequence.computed == 0, "a waiting sequence has computed tokens"
    pool.check(dict(holders))
    for queue in (running, waiting):
        assert [s.key for s in queue] == sorted(s.key for s in queue), "a queue is out of order"
    assert not set(map(id, running)) & set(map(id, waiting)), "a sequence runs and waits"


def check_plan(plan: Plan, running: Seq[Sequence], page_size: int) -> None:
    """Before a step: rows are dense, each logits row is of one (request, position), and nobody writes into a page that
    another holds, nor into the dummy."""
    rows = [row for item in plan for row in range(item.row, item.row + item.count)]
    assert rows == list(range(plan.tokens)), "rows are not dense"
    assert len({id(item.sequence) for item in plan}) == len(plan.scheduled), "a sequence is scheduled twice"
    pairs = {(id(row.scheduled.sequence), row.position) for row in plan.logits}
    assert len(pairs) == len(plan.logits), "two logits rows are of one position"
    for row in plan.logits:
        item = row.scheduled
        assert row.row - item.row == row.position - item.start, "a logits row is of another token"
    holders = Counter(page for sequence in running for page in sequence.pages)
    for item in plan:
        assert item.epoch == item.sequence.epoch, "a plan of an older epoch"
        assert item.start == item.sequence.computed, "a gap in what is computed"
        for page in item.sequence.pages[item.start // page_size : (item.stop - 1) // page_size + 1]:
            assert page != DUMMY_PAGE, "the dummy page is written"
            assert holders[page] == 1, "a page that is written has several holders"


def check_ends(accepted: Collection[str], responses: Iterable[Response]) -> None:
    """When all is over: each accepted request has ended once, after all its tokens, and nobody else was answered."""
    ended: set[str] = set()
    for response in responses:
        assert response.request_id in accepted, f"{response.request_id} was never accepted"
        assert response.request_id not in ended, f"{response.request_id} was answered after its end"
        if response.finished:
            ended.add(response.request_id)
    assert ended == set(accepted), f"without an end: {sorted(set(accepted) - ended)}"
