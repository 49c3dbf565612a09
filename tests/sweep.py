"""Parameters of which some are run by `pytest -m sweep` only."""

from collections import Counter

import pytest


def all_but(some, values):
    """The values as parameters; those of `some` add little to the others and are swept."""
    missing = [value for value in some if value not in values]
    assert not missing, f"not among the parameters: {missing}"
    return [pytest.param(value, marks=pytest.mark.sweep) if value in some else value for value in values]


def left_to_others(cases, minor, group_of):
    """Of the cases of each group, every other one: those that Python 3.`minor` leaves to the versions beside it.

    Testing two versions in a row, as CI does, runs every case once.
    """
    met = Counter()
    for case in cases:
        met[group_of(case)] += 1
        if met[group_of(case)] % 2 != minor % 2:
            yield case
