import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine_client import TokenLogprob
from pipeline.json_spans import confidences, value_spans

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=15,
)


def scalars(value, path=""):
    if isinstance(value, dict):
        for name, item in value.items():
            yield from scalars(item, f"{path}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from scalars(item, f"{path}/{number}")
    else:
        yield path, value


@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_each_scalar_has_its_place(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    spans = value_spans(text)
    expected = dict(scalars(value))
    assert set(spans) == set(expected)
    for path, (start, end) in spans.items():
        inner = text[start:end]
        assert json.loads(f'"{inner}"' if isinstance(expected[path], str) else inner) == expected[path]


def test_confidence_is_the_geometric_mean_over_the_tokens_that_overlap_the_value():
    tokens = [
        TokenLogprob(b'{"a": "', -9.0),
        TokenLogprob("né".encode()[:2], math.log(0.5)),  # the second character is split between two tokens
        TokenLogprob("né".encode()[2:], math.log(0.125)),
        TokenLogprob(b'", "b": ', -9.0),
        TokenLogprob(b"12", math.log(0.9)),
        TokenLogprob(b"}", -9.0),
    ]
    found = confidences('{"a": "né", "b": 12}', tokens)
    assert found == {"/a": pytest.approx(0.25), "/b": pytest.approx(0.9)}


def test_tokens_that_do_not_spell_the_answer_give_no_confidence():
    assert confidences('{"a": 1}', [TokenLogprob(b'{"a": 2}', -1.0)]) == {}
    assert confidences('{"a": 1}', []) == {}
