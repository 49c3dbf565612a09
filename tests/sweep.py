"""Parameters of which some are run by `pytest -m sweep` only."""

import pytest


def all_but(some, values):
    """The values as parameters; those of `some` add little to the others and are swept."""
    missing = [value for value in some if value not in values]
    assert not missing, f"not among the parameters: {missing}"
    return [pytest.param(value, marks=pytest.mark.sweep) if value in some else value for value in values]
