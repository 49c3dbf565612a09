"""Programs of small runs compile quickly, and once: in this process and in those that tests start."""

import contextlib

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

USUAL = {
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": 1.0,
    "jax_disable_most_optimizations": False,
}


@contextlib.contextmanager
def quickly_compiled(folder):
    """Compile without optimisations, and keep what was compiled in a folder."""
    for name, value in _quick(folder).items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        for name, value in USUAL.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


@pytest.fixture
def compiled_once(tmp_path_factory, monkeypatch):
    """For this process and, by the environment, for those that it starts."""
    folder = tmp_path_factory.getbasetemp() / "compiled"
    for name, value in _quick(folder).items():
        monkeypatch.setenv(name.upper(), str(value))
    with quickly_compiled(folder):
        yield


def _quick(folder):
    return dict(zip(USUAL, (str(folder), 0.0, True), strict=True))
