"""A folder with a program in it, as a user has one, from which the commands are given."""

import json
import sys

import pytest

from exla.cli import main

KERNELS = """
import jax
import jax.numpy as jnp
import exla


def smooth(x, y, v, scale=2.0):
    squared = jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)
    return jnp.exp(-squared / scale) @ v


capped = exla.jit(smooth, memory_limit="96KiB", static_argnames="scale")
jitted = jax.jit(smooth, static_argnames="scale")


@exla.jit
@jax.jit
def twice(x):
    return 2 * x


def choose(x, how, *, causal=False):
    return {"sum": jnp.sum, "max": jnp.max}[how](x) + (1 if causal else 0)


def tree(pair, *, bias):
    return pair[0] @ pair[1]["w"] + bias


class Model:
    @staticmethod
    def apply(x):
        return x + 1


number = 3
"""

SHAPES = "f32[400,3] f32[300,3] f32[300]"
"""Arguments and outputs are 11 KiB; the kernel matrix is 469 KiB."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, which holds kernels.py."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXLA_STRICT", "0")  # else errors come with tracebacks
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def exla_command(capsys):
    """Run a command; returns (exit code, standard output, standard error)."""

    def run(*words):
        try:
            code = main([*map(str, words)])
        except SystemExit as stop:
            code = stop.code
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def exla_json(exla_command):
    """Run a command with --json; returns (exit code, what each line of its output holds)."""

    def run(*words):
        cut = words.index("--") if "--" in words else len(words)
        code, out, _ = exla_command(*words[:cut], "--json", *words[cut:])
        return code, [json.loads(line) for line in out.splitlines()]

    return run
