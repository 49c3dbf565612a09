"""Compilers that a test needs and that need not be there."""

import pytest

from exla.targets.base import TARGETS


def compiler_of(name):
    """The name of a target whose compiler is installed; the test is skipped where it is not."""
    install = TARGETS.get(name).install()
    if install is not None:
        pytest.skip(f"the compiler of {name} is not installed: pip install {install}")
    return name
