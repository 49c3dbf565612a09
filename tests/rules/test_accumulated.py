"""Which sums over the rows of a batch a scan may make in parts, and which must see the whole batch."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from exla.ir.program import canonical

ROWS, BATCH, WIDTH = 5, 6, 4


def inner(first, rows):
    """A scan that sums over the batch, from what it is given."""
    return lax.scan(lambda total, row: (total + jnp.sum(rows * row), None), first, jnp.arange(3.0))[0]


TOTALS = {
    "added to": lambda t, rows, turn: (t + jnp.sum(rows), None),
    "added to by two sums": lambda t, rows, turn: (jnp.sum(rows) + t - jnp.sum(rows * rows), None),
}
SHARED = {
    "through a scan inside": lambda t, rows, turn: (inner(t, rows), None),
    "decays": lambda t, rows, turn: (0.5 * t + jnp.sum(rows), None),
    "negated": lambda t, rows, turn: (jnp.sum(rows) - t, None),
    "scaled by what all rows share": lambda t, rows, turn: (t / (1 + turn) + jnp.sum(rows), None),
    "dropped on some turns": lambda t, rows, turn: (jnp.where(turn > 2, t + jnp.sum(rows), 0.0), None),
    "read besides": lambda t, rows, turn: (t + jnp.sum(rows), 3 * t),
    "read by a scan inside": lambda t, rows, turn: (t + jnp.sum(rows), inner(t, rows)),
    "returned on every turn": lambda t, rows, turn: (t + jnp.sum(rows), t),
}
LINEAR = {
    "rolled": lambda total: jnp.roll(total, 1),
    "summed in windows": lambda total: lax.reduce_window(total, 0.0, lax.add, (2,), (1,), "VALID"),
    "convolved": lambda total: jnp.convolve(total, jnp.arange(2.0), mode="same"),
    "transformed": lambda total: jnp.fft.rfft(total).real - jnp.fft.rfft(total).imag,
}
WHOLE = {
    "squared": lambda t, rows, turn: (t, jnp.sum(rows) ** 2),
    "multiplied by another sum": lambda t, rows, turn: (t, jnp.sum(rows) * jnp.sum(rows * rows)),
    "multiplied by the total": lambda t, rows, turn: (t + t * jnp.sum(rows), None),
    "divides": lambda t, rows, turn: (t, turn / jnp.sum(rows)),
    "through a curve": lambda t, rows, turn: (jnp.tanh(t + jnp.sum(rows)), None),
    "with a constant added": lambda t, rows, turn: (t + jnp.sum(rows) + 1, None),
    "compared": lambda t, rows, turn: (jnp.where(jnp.sum(rows) > 0, t, 0.0), None),
    "chooses": lambda t, rows, turn: (t, lax.select_n(jnp.sum(rows.astype(int)), jnp.sum(rows), -jnp.sum(rows))),
    "or a constant": lambda t, rows, turn: (t, jnp.where(turn > 2, jnp.sum(rows), 1.0)),
    "beside a constant": lambda t, rows, turn: (t, jnp.stack([jnp.sum(rows), 1.0])),
    "convolved with itself": lambda t, rows, turn: (t, jnp.convolve(jnp.sum(rows, 0), jnp.sum(rows, 0))),
    "the largest of windows": lambda t, rows, turn: (t, lax.cummax(jnp.sum(rows, 0))),
    "counted": lambda t, rows, turn: (t, jnp.sum(rows).astype(int)),
    "asked for": lambda t, rows, turn: (t, jnp.sum(rows.astype(int)).astype(bool)),
    "read by the rows": lambda t, rows, turn: (t, jnp.sum(rows * jnp.sum(rows), axis=1)),
    "the largest": lambda t, rows, turn: (jnp.maximum(t, jnp.max(rows)), None),
    "a scan inside that starts from a constant": lambda t, rows, turn: (t, inner(1.0, rows)),
    "a scan inside of what was summed": lambda t, rows, turn: (t, inner(0.0, rows + jnp.sum(rows))),
}


def sums_of(step):
    """How a scan whose rows are a batch's is carried along the batch; None where that stays whole."""

    def fn(first, rows):
        def turn(carry, xs):
            total, count = carry
            total, made = step(total, *xs)
            return (total, count + 1), made

        return lax.scan(turn, (first, 0), (rows, jnp.arange(float(ROWS))))

    program = canonical(jax.make_jaxpr(fn)(1.0, jnp.ones((ROWS, BATCH, WIDTH))))
    (position,) = (k for k, e in enumerate(program.eqns) if e.primitive.name == "scan")
    factors = program.factors(position)
    rows = next(k for k, v in enumerate(program.eqns[position].invars) if v.aval.shape == (ROWS, BATCH, WIDTH))
    name = factors.at_operand(rows, 1)
    return None if name is None else factors.rule.carried.get(name)


@pytest.mark.parametrize("name", TOTALS)
def test_a_carry_that_is_only_added_to_starts_every_part_from_zeros(name):
    carried = sums_of(TOTALS[name])
    assert set(carried.into) == carried.adds.inits and len(carried.into) == 1


@pytest.mark.parametrize("name", SHARED)
def test_a_carry_of_linear_equations_starts_one_part_from_what_it_is_given(name):
    carried = sums_of(SHARED[name])
    assert carried.into == () and len(carried.adds.inits) == 1


@pytest.mark.parametrize("name", LINEAR)
def test_what_follows_on_a_sum_over_the_batch_may_be_linear(name):
    carried = sums_of(lambda t, rows, turn: (t, LINEAR[name](jnp.sum(rows, 0))))
    assert carried.into == () and not carried.adds.inits


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_not_linear_in_a_sum_keeps_the_batch_whole(name):
    assert sums_of(WHOLE[name]) is None
