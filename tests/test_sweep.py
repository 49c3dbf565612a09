"""What of the tests a Python leaves to others."""

import pytest

from tests.sweep import left_to_others


@pytest.mark.parametrize("first", [11, 12])
def test_two_versions_in_a_row_run_every_case_once(first):
    cases = [("values", k) for k in range(5)] + [("bytes", k) for k in range(4)]
    run = [set(cases) - set(left_to_others(cases, minor, lambda case: case[0])) for minor in (first, first + 1)]
    assert run[0] | run[1] == set(cases) and not run[0] & run[1]
    assert all(len(some) in (4, 5) for some in run)
