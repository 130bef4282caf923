from __future__ import annotations

import pytest

from inference.pace import LONGEST_SECONDS, UNKNOWN_SECONDS, Pace


def test_refused_clients_come_back_one_after_another_at_the_rate_of_ends() -> None:
    pace = Pace()
    assert pace.refuse(0.0) == UNKNOWN_SECONDS
    for second in range(0, 80, 2):  # one end in two seconds
        pace.ended(float(second))
    assert [pace.refuse(80.0) for _ in range(3)] == pytest.approx([2.0, 4.0, 6.0])
    pace.ended(80.0)
    assert pace.refuse(82.0) == pytest.approx(6.0), "one place was freed, for the first of them"


def test_an_engine_that_has_stopped_ending_requests_is_slow() -> None:
    pace = Pace()
    for second in range(10):
        pace.ended(float(second))
    assert pace.refuse(10.0) == pytest.approx(1.0)
    assert pace.refuse(50.0) == pytest.approx(10.0)
    assert pace.refuse(1e6) == LONGEST_SECONDS
