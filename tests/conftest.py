"""Fixtures that every test folder shares."""

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before JAX looks for the devices of the compilers that are installed

import jax
import pytest

from tests.sweep import left_to_others


@pytest.fixture(autouse=True)
def records_in_a_folder_of_their_own(tmp_path, monkeypatch):
    """Tests neither read nor write the user's tuning records, whatever the user's environment says."""
    for name in (
        "MEMORY_LIMIT",
        "SEARCH",
        "TARGET",
        "NUMERICS",
        "RECORDS",
        "RULES",
        "VERIFY",
        "LEARN",
        "WEIGHTS",
        "TENSOR_SIZE_THRESHOLD",
        "TENSOR_SPLIT_SIZE",
        "SHARED_DATA",  # no option, but where tests of cost models find data; it was read when they were imported
    ):
        monkeypatch.delenv(f"EXLA_{name}", raising=False)
    monkeypatch.setenv("EXLA_STRICT", "1")
    monkeypatch.setenv("EXLA_RECORDS_DIR", str(tmp_path / "records"))


@pytest.fixture(autouse=True)
def tables_as_wide_as_they_are_without_a_terminal(monkeypatch):
    """Tests see tables as a file does, however wide the window is that they are started from."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def compiled_quickly():
    """XLA's quick code generation, for tests of values and byte counts: it changes machine code, not buffers."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def x64():
    """64-bit values for one test."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Cases that Pythons of the next version run are swept, here; who names tests gets all of them."""
    if not config.option.keyword and not any("::" in arg for arg in config.args):
        marked = ("sweep", "every_python")
        cases = [item for item in items if not any(map(item.get_closest_marker, marked))]
        for item in left_to_others(cases, sys.version_info.minor, lambda item: item.path):
            item.add_marker(pytest.mark.sweep)
