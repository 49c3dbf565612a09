"""Where exla itself fails, the user's program does not; tests and EXLA_STRICT=1 see the failure."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exla


def pairs(x):
    return jnp.sum(jnp.exp(-jnp.abs(x[:, None] - x[None])), axis=1)


X = np.linspace(0, 1, 500, dtype=np.float32)
PLACES = {
    "reading": "exla.call.canonical",
    "proposing": "exla.search.space.rank",
    "projecting": "exla.search.attempt.projected",
    "splitting": "exla.search.space.Space.cut",
    "emitting": "exla.search.attempt.emit",
}


def broken(*args, **kwargs):
    raise TypeError("a bug")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.filterwarnings("ignore::exla.ExlaWarning")
def test_a_failing_pass_costs_no_result_where_the_plain_program_obeys(place, monkeypatch):
    monkeypatch.setenv("EXLA_STRICT", "0")
    monkeypatch.setattr(PLACES[place], broken)
    np.testing.assert_allclose(exla.jit(pairs, memory_limit="1GiB")(X), np.exp(-abs(X[:, None] - X)).sum(1), rtol=1e-4)


@pytest.mark.parametrize("place", ["proposing", "splitting", "emitting"])
def test_a_failing_pass_never_breaks_the_cap_and_is_named(place, monkeypatch):
    monkeypatch.setenv("EXLA_STRICT", "0")
    monkeypatch.setattr(PLACES[place], broken)
    if place == "emitting":
        with pytest.raises(exla.MemoryLimitError):
            exla.jit(pairs, memory_limit="60KiB")(X)
        return
    with (
        pytest.warns(exla.ExlaWarning, match=r"failed in exla\.[a-z.]+ .*a bug.*EXLA_STRICT"),
        pytest.raises(exla.MemoryLimitError),
    ):
        exla.jit(pairs, memory_limit="60KiB")(X)


@pytest.mark.parametrize("place", ["reading", "proposing", "splitting", "emitting"])
def test_strict_makes_it_an_error(place, monkeypatch):
    monkeypatch.setattr(PLACES[place], broken)
    with pytest.raises(TypeError, match="a bug"):
        exla.jit(pairs, memory_limit="60KiB")(X)


def nowhere(x):
    table = pairs(x)[:, None] - x
    return jax.ffi.ffi_call("test_nowhere", jax.ShapeDtypeStruct(table.shape, table.dtype))(table).sum(axis=1)


@pytest.mark.parametrize("limit", ["1GiB", "60KiB"])
@pytest.mark.parametrize("search", ["analytic", "measured"])
@pytest.mark.filterwarnings("error::exla.ExlaWarning")
def test_what_jax_jit_cannot_compile_is_said_as_jax_says_it(limit, search, monkeypatch):
    monkeypatch.setenv("EXLA_STRICT", "0")
    with pytest.raises(jax.errors.JaxRuntimeError) as plain:
        jax.jit(nowhere)(X)
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        exla.jit(nowhere, memory_limit=limit, search=search)(X)
    assert str(raised.value) == str(plain.value)
