from hypothesis import given
from hypothesis import strategies as st

from pipeline.chunk import Chunk
from pipeline.retrieve import pick, queries, windows
from pipeline.schema import ExtractionSchema

SCHEMA = ExtractionSchema.parse(
    "recipe",
    {
        "type": "object",
        "description": "A dish",
        "properties": {"title": {"type": "string", "description": "Name of the dish"}, "cook_time": {"type": "string"}},
    },
    "Ignore the comments.",
)


def chunks(*sizes):
    return [Chunk(number, number * 10, number * 10 + 5, "text", (), size) for number, size in enumerate(sizes)]


def ordinals(found):
    return [chunk.ordinal for chunk in found]


def test_queries_are_the_schema_and_its_fields():
    assert queries(SCHEMA) == ["recipe A dish Ignore the comments.", "title: Name of the dish", "recipe cook time"]


def test_a_document_that_fits_goes_whole_and_nothing_is_searched():
    def search(texts, limit):
        raise AssertionError

    assert ordinals(pick(chunks(10, 10, 10), SCHEMA, 30, search)) == [0, 1, 2]


def test_the_best_ranked_go_in_document_order_with_their_neighbours():
    asked = []

    def search(texts, limit):
        asked.append(list(texts))
        return [[7], [7, 2], [2, 99]]

    assert ordinals(pick(chunks(*[10] * 10), SCHEMA, 45, search)) == [2, 6, 7, 8]
    assert asked == [queries(SCHEMA)]


def test_without_search_the_beginning_is_taken():
    assert ordinals(pick(chunks(*[10] * 10), SCHEMA, 35)) == [0, 1, 2]


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 60), st.lists(st.integers(0, 25), max_size=8))
def test_the_budget_holds(sizes, budget, ranking):
    found = pick(chunks(*sizes), SCHEMA, budget, lambda texts, limit: [ranking])
    assert ordinals(found) == sorted(set(ordinals(found)))
    assert sum(chunk.token_count for chunk in found) <= budget or len(found) == 1
    assert bool(found) == bool(sizes)


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 60))
def test_windows_hold_every_chunk_once_in_order(sizes, budget):
    groups = windows(chunks(*sizes), budget)
    assert [chunk.ordinal for group in groups for chunk in group] == list(range(len(sizes)))
    assert all(sum(chunk.token_count for chunk in group) <= budget or len(group) == 1 for group in groups)
