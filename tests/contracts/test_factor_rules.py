"""Every factor rule keeps its word: any factor, cut into any chunks, gives the unsplit values.

The tests walk the registry. A rule without an example fails `test_every_rule_has_an_example`, so that a rule
without a test cannot exist.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.random import threefry2x32_p

from exla.ir.emit import emit
from exla.ir.factors import FACTOR_RULES, parse
from exla.ir.memory import Held
from exla.ir.primitives import ELEMENTWISE
from exla.ir.program import canonical
from exla.passes.seal import sealed_p
from exla.passes.split.apply import split_program
from exla.passes.split.decide import enumerate_splits, growths
from exla.passes.unless import EXPANSIONS, unless_p

pytestmark = pytest.mark.usefixtures("compiled_quickly")

SIZES = {"n": 6, "p": 7, "u": 1}


def array(*shape, dtype=np.float64, seed=0, low=0.1, high=0.9):
    values = np.random.default_rng(seed).uniform(low, high, size=shape)
    return (values if np.issubdtype(dtype, np.floating) else values * 7).astype(dtype)


def positive_definite(*shape):
    a = array(*shape)
    return a @ np.swapaxes(a, -1, -2) + 3 * np.eye(shape[-1])


def running_total(x, y):
    def step(state, row):
        total, count = state
        a, b = row
        total = total * 0.9 + a * b[0]
        return (total, count + 1), (total, jnp.max(total) * b[1])

    return lax.scan(step, (x[0] * 0, 0), (x, y))


def mixing(rows, start):
    """The second axis is mixed on every turn, the first is not, and a scalar is carried along."""

    def step(state, row):
        level, count = state
        level = jnp.tanh(level - level.sum(1, keepdims=True) + row[0])
        return (level, count + 1), (level[:, 0], count)

    return lax.scan(step, (start, 0), rows)


def multiplied_until(x, y):
    return lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] @ y), (0, x))


def backwards(x):
    return lax.scan(lambda c, a: (c * 0.5 + a, jnp.sin(c)), jnp.zeros(3), x, reverse=True)


def two_layers(x, first, second):
    numbers = ("NHWC", "HWIO", "NHWC")
    hidden = jnp.tanh(lax.conv_general_dilated(x, first, (1, 1), "SAME", dimension_numbers=numbers))
    return lax.conv_general_dilated(hidden, second, (1, 1), [(1, 0), (1, 1)], dimension_numbers=numbers)


def diffused(x):
    inner = x[1:-1] + 0.1 * (x[2:] - 2 * x[1:-1] + x[:-2])
    return jnp.concatenate([x[:1], inner, x[-1:]])


def spd_examples(fn):
    return [(fn, (positive_definite(3, 4, 4),)), (fn, (positive_definite(7, 3, 3),))]


def lookup(x, i):
    return x[i]


def batched_lookup(x, i):
    return jax.vmap(lambda row, k: row[k])(x, i)


def narrowly_looked_up(x, i):
    """By indices of a type that cannot count to the last row."""
    rows = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    return lax.gather(x, i.astype(np.uint8)[:, None], rows, (1, x.shape[1]), mode="fill")


def narrowly_added(x, i, u):
    rows = lax.ScatterDimensionNumbers(
        update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    return lax.scatter_add(x, i.astype(np.uint8)[:, None], u, rows, mode="clip")


def tallied(x, w):
    """Sums over the rows of what is carried, of whole numbers: no order of adding them changes a bit."""
    x, w = jnp.round(4 * x), jnp.round(w)

    def step(carry, rows):
        level, turns, total, smooth, last = carry
        level = jnp.round(0.5 * level) + rows @ w
        smooth = 0.5 * smooth + jnp.where(turns > 1, jnp.sum(level, axis=0), 0.0)
        carry = level, turns + 1, total + jnp.sum(level), smooth, total
        return carry, (jnp.sum(level * level, axis=0), level[:, 0], rows.T @ level - smooth, smooth @ w)

    return lax.scan(step, (x[0], 1, 3.0, jnp.ones(4), 2.0), x)


def tallied_in_turn(x, w):
    """The same in scans inside a scan, whose total goes through all of them."""

    def step(carry, scale):
        x, total = carry
        (level, _, more, smooth, _), _ = tallied(x * scale, w)
        return (jnp.round(x - level), total - more), smooth

    return lax.scan(step, (x, 5.0), jnp.array([1.0, 0.5, 2.0]))


def drawn(x, key):
    """Random bits and numbers that count along the rows, as of the whole array on every turn."""

    def step(level, key):
        kept = jax.random.bernoulli(key, 0.7, level.shape)
        level = jnp.where(kept, jnp.round(level + jnp.arange(level.shape[0])[:, None]), -1.0)
        return level, jnp.sum(level, axis=0)

    return lax.scan(step, x, jax.random.split(key, 3))


def walked(keys, x):
    """A chain of keys for each row."""

    def step(carry, _):
        x, key = carry
        key, mine = jax.random.split(key)
        return (x + jax.random.randint(mine, x.shape, 0, 9), key), x

    return jax.vmap(lambda key, row: lax.scan(step, (row, key), None, length=3)[1])(keys, x)


def written(x, i):
    """Scatters into the rows of what is carried, wherever they are."""
    return lax.scan(lambda c, k: (c.at[i + k].add(k), c[0, 0]), x, jnp.arange(3))


def written_under_a_condition(x, i):
    return lax.cond(x[0, 0] > 0, lambda: x.at[i].add(1.0), lambda: written(x, i)[0])


def rejected(keys):
    """Draws for each key until one is accepted."""

    def draw(state):
        key, mine = jax.random.split(state[0])
        return key, jax.random.uniform(mine, (2,))

    return jax.vmap(lambda key: lax.while_loop(lambda s: jnp.sum(s[1]) > 1, draw, (key, jnp.ones(2)))[1])(keys)


def of_keys(of):
    return lambda keys: jax.random.key_data(jax.vmap(of)(keys))


def pooled(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 1), (1, 2, 1), "VALID")


def pooled_pairs(x, y):
    def add(a, b):
        return a[0] + b[0], a[1] * b[1]

    return lax.reduce_window((x, y), (0.0, 1.0), add, (1, 2, 1), (1, 2, 1), "VALID")


def doubled_unless(mask_of):
    """Twice the operand, computed as a sum where a mask does not hold."""

    def doubled(x):
        if not isinstance(x, jax.core.Tracer):
            return 2 * x  # the equation exists in programs only
        mask = mask_of(x)
        body = jax.make_jaxpr(lambda m, cheap, x: [jnp.where(m, cheap, x + x)])(mask, x, x)
        return unless_p.bind(mask, 2 * x, x, otherwise=body)[0]

    return doubled


def distances_alone(x, y):
    """Distances of all pairs, computed by themselves."""

    def distances(x, y):
        return [jnp.sum(jnp.abs(x[:, None] - y[None]), axis=-1)]

    if not isinstance(x, jax.core.Tracer):
        return distances(x, y)[0]  # the equation exists in programs only
    return sealed_p.bind(x, y, body=jax.make_jaxpr(distances)(x, y))[0]


index = np.array([2, 0, 1, 1, 5, 3, 9])

KEYS, OTHER_KEYS = (jax.random.split(jax.random.key(0, impl=impl), 6) for impl in ("threefry2x32", "unsafe_rbg"))

EXAMPLES = {
    "exla_unless": [
        (doubled_unless(lambda x: x[:, :1] > 0.5), (array(6, 7),)),
        (doubled_unless(lambda x: jnp.sum(x) > 0), (array(6, 7),)),
    ],
    "exla_sealed": [(distances_alone, (array(6, 3), array(7, 3)))],
    "broadcast_in_dim": [
        (lambda x: jnp.broadcast_to(x[:, None], (6, 7)), (array(6),)),
        (lambda x: lax.broadcast_in_dim(x, (6, 1, 7), (0, 2)), (array(6, 7),)),
        (lambda x: jnp.broadcast_to(x, (5, 7)), (array(1, 7),)),
    ],
    "transpose": [(lambda x: x.transpose(2, 0, 1), (array(6, 7, 2),))],
    "squeeze": [(lambda x: lax.squeeze(x, [1]), (array(6, 1, 7),))],
    "reshape": [
        (lambda x: x.reshape(-1), (array(6, 7, 2),)),
        (lambda x: x.reshape(6, 7, 2), (array(84),)),
        (lambda x: x.reshape(6, 14), (array(6, 7, 2),)),
        (lambda x: x.reshape(8, 3), (array(4, 6),)),
        (lambda x: x.reshape(1, 6, 1, 7), (array(6, 7),)),
        (lambda x: x.reshape(3, 4, 7), (array(6, 2, 7),)),
    ],
    "iota": [
        (lambda x: x + lax.broadcasted_iota(jnp.float64, (6, 7), 0), (array(6, 7),)),
        (lambda x: x + lax.broadcasted_iota(jnp.uint8, (6, 7), 1), (array(6, 7),)),
    ],
    "concatenate": [(lambda x, y: jnp.concatenate([x, y, x], 1), (array(6, 2), array(6, 3)))],
    "split": [(lambda x: tuple(jnp.split(x, 2, axis=1)), (array(7, 4),))],
    "slice": [
        (lambda x: x[:, 1:4], (array(6, 7),)),
        (lambda x: x[::2], (array(6, 7),)),
        (lambda x: jnp.sum(jnp.diff(jnp.sin(x), axis=0) ** 2, axis=0), (array(9, 7),)),
        (lambda x: diffused(diffused(x * x)), (array(9, 7),)),
        (lambda x: jnp.exp(jnp.roll(jnp.sin(x), 2, axis=0)) * x[::-1], (array(9, 7),)),
        (lambda x: (x[1::3] + x[:-2:3]).sum(1), (array(10, 7),)),
        (lambda keys: jax.random.key_data(keys[1:5]), (KEYS,)),
    ],
    "pad": [
        (lambda x: jnp.pad(x, ((0, 0), (1, 2))), (array(6, 7),)),
        (lambda x: lax.pad(x, 0.0, [(0, 0, 1), (0, 0, 0)]), (array(6, 7),)),
        (lambda x: lax.pad(jnp.cos(x), 2.0, [(-1, 3, 0), (2, -2, 0)]), (array(6, 7),)),
    ],
    "rev": [(lambda x: jnp.flip(x, 1), (array(6, 7),))],
    "tile": [(lambda x: jnp.tile(x, (1, 3)), (array(6, 7),))],
    "dynamic_slice": [(lambda x, i: lax.dynamic_slice(x, (jnp.int32(0), i), (6, 3)), (array(6, 7), np.int32(2)))],
    "dynamic_update_slice": [
        (lambda x, u, i: lax.dynamic_update_slice(x, u, (jnp.int32(0), i)), (array(6, 7), array(6, 2), np.int32(3))),
        (lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i + 2)), (array(6, 7), array(1, 1), np.int32(3))),
        (lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)), (array(9, 7), array(3, 5), np.int32(40))),
        (lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)), (array(9, 7), array(3, 5), np.int32(-40))),
    ],
    **{
        name: [(lambda x, f=f: f(x, axis=1), (array(6, 7, 2),))]
        for name, f in {
            "cumsum": lax.cumsum,
            "cumprod": lax.cumprod,
            "cummax": lax.cummax,
            "cummin": lax.cummin,
            "cumlogsumexp": lax.cumlogsumexp,
        }.items()
    },
    "cumsum": [
        (lambda x: lax.cumsum(x, axis=1), (array(6, 7, 2),)),
        (lambda x: lax.cumsum(lax.cumsum(x, axis=0), axis=0, reverse=True), (array(7, 2),)),
        (lambda x: lax.cumsum(lax.cumsum(x, axis=0, reverse=True), axis=0) + lax.cumsum(x, axis=0), (array(7, 2),)),
        (lambda x: x / lax.cumsum(x, axis=0)[-1] - lax.cumsum(x, axis=0, reverse=True), (array(7, 2),)),
    ],
    "scan": [
        (running_total, (array(7, 3), array(7, 2))),
        (backwards, (array(6, 3),)),
        (jax.grad(lambda x: jnp.sum(backwards(x)[1])), (array(6, 3),)),
        (jax.vmap(running_total), (array(3, 7, 2), array(3, 7, 2))),
        (lambda x, y: jnp.searchsorted(y, x), (array(6, 7), np.sort(array(9)))),
        (mixing, (array(6, 4, 4), array(4, 4))),
        (tallied, (array(5, 6, 4), array(4, 4))),
        (tallied_in_turn, (array(5, 6, 4), array(4, 4))),
        (drawn, (array(6, 7), jax.random.key(1))),
        (written, (array(6, 7), np.array([0, 2, 3]))),
        (lambda x, i: lax.scan(lambda c, k: (written(c * k, i)[0], None), x, jnp.arange(3.0))[0], (array(6, 7), index)),
        (walked, (KEYS, np.arange(24).reshape(6, 4))),
    ],
    "random_split": [
        (of_keys(jax.random.split), (KEYS,)),
        (lambda key: jax.random.key_data(jax.random.split(key, (7, 3))), (KEYS[0],)),
        (lambda key: jax.random.key_data(jax.random.split(key, 7)), (jax.random.key(1, impl="rbg"),)),
        (of_keys(jax.random.split), (OTHER_KEYS,)),
    ],
    "random_gamma": [
        (lambda a: jax.vmap(jax.random.loggamma)(KEYS[:2], a), (array(2, 3),)),
        (lambda a: jax.vmap(jax.random.gamma)(OTHER_KEYS[:2], a), (array(2, 3),)),
    ],
    "random_fold_in": [
        (of_keys(lambda key: jax.random.fold_in(key, 3)), (KEYS,)),
        (of_keys(lambda key: jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(7))), (KEYS,)),
    ],
    "random_clone": [(of_keys(jax.random.clone), (KEYS,))],
    "random_unwrap": [(lambda keys: jax.random.key_data(keys)[:, 1], (KEYS,))],
    "random_wrap": [
        (
            lambda words: jax.random.bits(jax.random.wrap_key_data(words)[0]),
            (np.arange(8, dtype=np.uint32).reshape(4, 2),),
        )
    ],
    "random_seed": [(lambda seeds: jax.random.key_data(jax.vmap(jax.random.key)(seeds)), (np.arange(6),))],
    "while": [
        (lambda x, n: lax.fori_loop(0, n, lambda i, c: jnp.cos(c) * 2 + i, x), (array(6, 7), np.int32(3))),
        (multiplied_until, (array(6, 3), array(3, 3))),
        (lambda x: lax.while_loop(lambda c: jnp.any(c < 1), lambda c: c + 0.3, x), (array(6, 7),)),
        (lambda x: lax.while_loop(lambda c: c[0, 0] < 1, lambda c: jnp.sort(c + 0.3, axis=0), x), (array(6, 7),)),
        (rejected, (KEYS,)),
        (lambda x, i: lax.fori_loop(0, i[2], lambda k, c: c.at[i].mul(k + 1), x), (array(6, 7), index)),
    ],
    "cond": [
        (lambda x, y: lax.cond(x[0, 0] > 0.5, lambda: x + y, lambda: jnp.sin(x)), (array(6, 7), array(7))),
        (lambda x: lax.switch(jnp.int32(1), [jnp.sin, lambda x: x[::-1], jnp.cos], x), (array(6, 7),)),
        (lambda x: lax.cond(x[0, 0] > 0.5, lambda: jnp.cumsum(x, 0), lambda: x + jnp.arange(7.0)), (array(6, 7),)),
        (lambda x: lax.cond(x[0, 0] > 0.5, lambda: x @ x, lambda: x), (array(5, 5),)),
        (written_under_a_condition, (array(6, 7), np.array([0, 2, 3]))),
    ],
    "sort": [
        (lambda x: lax.sort(x, dimension=1), (array(6, 7),)),
        (lambda x, y: lax.sort((jnp.round(x * 2), y), dimension=0, num_keys=1), (array(6, 7), array(6, 7, seed=1))),
    ],
    "top_k": [
        (lambda x: lax.top_k(x, 3), (array(6, 7),)),
        (lambda x: lax.top_k(jnp.round(x * 3), 2), (array(2, 3, 11),)),
    ],
    "approx_top_k": [(lambda x: lax.approx_max_k(x, 2), (array(6, 7, dtype=np.float32),))],
    "gather": [
        (lookup, (array(10, 3), index)),
        (batched_lookup, (array(7, 10), index)),
        (lambda x, i: x[:, i], (array(6, 10), index)),
        (lambda x, i: jnp.take_along_axis(x, i, axis=1), (array(6, 10), np.full((6, 2), 3))),
        (lambda x, i: x.at[i].get(mode="fill", fill_value=7.0), (array(5, 3), index)),
        (lambda x, i: x.at[i].get(mode="clip"), (array(5, 3), index)),
        (lambda x, i: x.at[i].get(mode="promise_in_bounds"), (-0.0 * array(10, 3), index)),
        (lambda x, i, j: x.at[i, j].get(mode="fill"), (array(5, 9), index, index[::-1] - 1)),
        (lambda x, i, j: x[i, 1, j], (array(10, 4, 7), index.astype(np.uint8), index[::-1] % 7)),
        (narrowly_looked_up, (array(259, 3), index)),
        (lambda keys, i: jax.random.key_data(keys[i]), (KEYS, np.array([4, 0, 4]))),
    ],
    **{
        name: [
            (lambda x, i, u, f=f: f(x, i, u), (array(10, 3), index, array(7, 3))),
            (lambda x, i, u, f=f: jax.vmap(f)(x, i, u), (array(7, 10), index, array(7))),
            *(
                (lambda x, i, u, f=f, mode=mode: f(x, i, u, mode=mode), (array(5, 3), index - 1, array(7, 3)))
                for mode in ("drop", "clip")
            ),
            (
                lambda x, i, j, u, f=f: f(x, (i, j), u, mode="clip"),
                (array(5, 9), index, (index[::-1] - 1).astype(np.int8), array(7)),
            ),
            *([(narrowly_added, (array(259, 3), index, array(7, 3)))] if name == "scatter-add" else []),
        ]
        for name, f in {
            "scatter": lambda x, i, u, **how: x.at[i].set(u, **how),
            "scatter-add": lambda x, i, u, **how: x.at[i].add(u, **how),
            "scatter-sub": lambda x, i, u, **how: x.at[i].subtract(u, **how),
            "scatter-mul": lambda x, i, u, **how: x.at[i].mul(u, **how),
            "scatter-min": lambda x, i, u, **how: x.at[i].min(u, **how),
            "scatter-max": lambda x, i, u, **how: x.at[i].max(u, **how),
        }.items()
    },
    "cholesky": spd_examples(lax.linalg.cholesky),
    "lu": spd_examples(lax.linalg.lu),
    "qr": spd_examples(lambda a: lax.linalg.qr(a)),
    "geqrf": spd_examples(lambda a: lax.linalg.qr(a)),
    "householder_product": [(lambda a, t: lax.linalg.householder_product(a, t), (array(5, 4, 3), array(5, 3)))],
    "eigh": spd_examples(lambda a: lax.linalg.eigh(a, symmetrize_input=False)[1]),
    "svd": spd_examples(lambda a: lax.linalg.svd(a, compute_uv=False)),
    "lu_pivots_to_permutation": [
        (lambda p: lax.linalg.lu_pivots_to_permutation(p, 3), (np.array([[1, 1, 2], [2, 2, 2], [0, 1, 2]], np.int32),))
    ],
    "triangular_solve": [
        (
            lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
            (positive_definite(2, 4, 4), array(2, 4, 7)),
        ),
        (
            lambda a, b: lax.linalg.triangular_solve(a, b, left_side=False, lower=True),
            (positive_definite(4, 4), array(7, 4)),
        ),
    ],
    "fft": [(lambda x: jnp.fft.fft(x, axis=-1), (array(6, 8),)), (lambda x: jnp.fft.rfft2(x), (array(7, 4, 4),))],
    "conv_general_dilated": [
        (
            lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
            (array(5, 4, 4, 6), array(3, 3, 6, 7)),
        ),
        (
            lambda x, w: lax.conv_general_dilated(x, w, (2,), "VALID", feature_group_count=4),
            (array(3, 8, 9), array(12, 2, 3)),
        ),
        (two_layers, (array(1, 9, 5, 2), array(3, 3, 2, 4), array(2, 3, 4, 3))),
        (
            jax.grad(lambda *a: jnp.sum(two_layers(*a)), argnums=(0, 1, 2)),
            (array(1, 9, 5, 2), array(3, 3, 2, 4), array(2, 3, 4, 3)),
        ),
        (
            lambda x, w: lax.conv_general_dilated(x, w, (2,), [(3, 1)], rhs_dilation=(2,)),
            (array(2, 3, 13), array(4, 3, 3)),
        ),
        (
            lambda x, w: lax.conv_general_dilated(x, w, (1,), [(2, 2)], lhs_dilation=(2,)),
            (array(2, 3, 7), array(4, 3, 3)),
        ),
        (
            lambda x, w: lax.conv_general_dilated(x, w, (1,), [(1, 1)], batch_group_count=3),
            (array(6, 6, 7), array(6, 6, 3)),
        ),
    ],
    "reduce_window_sum": [
        (lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 2), "VALID"), (array(6, 9),)),
        (lambda x: lax.reduce_window(jnp.sin(x), 0.0, lax.add, (3, 2), (2, 2), "SAME"), (array(9, 8),)),
        (lambda x: lax.reduce_window(x, 0.0, lax.add, (3,), (1,), "SAME", window_dilation=(2,)), (array(11),)),
    ],
    "reduce_window_max": [(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3), (1, 2), "SAME"), (array(6, 9),))],
    "reduce_window_min": [(lambda x: lax.reduce_window(x, jnp.inf, lax.min, (3, 1), (2, 1), "SAME"), (array(9, 6),))],
    "reduce": [
        (
            lambda x, y: lax.reduce((x, y), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1] + 0 * a[0]), (1,)),
            (array(6, 7), array(6, 7, seed=1)),
        )
    ],
    **{
        f"reduce_{name}": [(lambda x, f=f: f(x, axis=(0, 2)), (array(6, 7, 5),))]
        for name, f in {"sum": jnp.sum, "prod": jnp.prod, "max": jnp.max, "min": jnp.min}.items()
    },
    **{
        f"reduce_{name}": [(lambda x, f=f: f(x > 0.2, axis=1), (array(6, 7, 5),))]
        for name, f in {"and": jnp.all, "or": jnp.any}.items()
    },
    "reduce_xor": [(lambda x: lax.reduce_xor(x, axes=(1,)), (array(6, 7, dtype=np.int64),))],
    "argmax": [(lambda x: jnp.argmax(jnp.round(x * 3), 1), (array(6, 7, 2),))],
    "argmin": [(lambda x: jnp.argmin(jnp.round(x * 3), 0), (array(6, 7),))],
    "dot_general": [
        (lambda a, b: jnp.einsum("bijk,bkjl->bil", a, b), (array(3, 5, 2, 7), array(3, 7, 2, 4))),
        (
            lambda a, b: a @ b,
            (
                array(6, 7),
                array(
                    7,
                ),
            ),
        ),
        (lambda a, b: jnp.einsum("ij,kl->ijkl", a, b), (array(2, 3), array(4, 5))),
    ],
    "add": [(lambda x, y: lax.add(x, y), (array(6, 7), array(6, 7))), (lambda x: x + 1, (array(6, 7),))],
    "select_n": [
        (lambda p, x: lax.select(p, x, 2 * x), (np.bool_(True), array(6, 7))),
        (lambda x: jnp.where(x > 0.5, x, 0), (array(6, 7),)),
    ],
    "clamp": [(lambda x, y: lax.clamp(0.2, x * y, 0.3), (array(6, 7), array(6, 7)))],
    "convert_element_type": [(lambda x: x.astype(jnp.int32), (array(6, 7),))],
    "bitcast_convert_type": [
        (lambda x: lax.bitcast_convert_type(x, jnp.int64), (array(6, 7),)),
        (lambda x: lax.bitcast_convert_type(x, jnp.int32), (array(6, 7),)),
        (lambda x: lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int32), jnp.float64), (array(6, 7),)),
    ],
    "stack": [(lambda x, y: jnp.stack([x, y, x], 1), (array(6, 7), array(6, 7)))],
    "unstack": [(lambda x: jnp.unstack(x, axis=1), (array(6, 3, 7),))],
    "reduce_window": [(pooled_pairs, (array(3, 4, 6), array(3, 4, 6)))],
    "select_and_scatter_add": [(jax.grad(lambda x: jnp.sum(pooled(x) ** 2)), (array(3, 6, 4),))],
    "select_and_gather_add": [
        (lambda x: jax.jvp(jax.grad(lambda x: jnp.sum(pooled(x) ** 2)), (x,), (x,))[1], (array(3, 6, 4),))
    ],
    "tridiagonal_solve": [
        (lambda a, d, b: lax.linalg.tridiagonal_solve(a, d + 5, a, b), (array(5, 6), array(5, 6), array(5, 6, 3)))
    ],
    "eig": [(lambda x: lax.linalg.eig(x, compute_left_eigenvectors=False)[0], (array(5, 4, 4),))],
    "schur": [(lambda x: lax.linalg.schur(x)[0], (array(5, 4, 4),))],
    "hessenberg": [(lambda x: lax.linalg.hessenberg(x)[0], (array(5, 4, 4),))],
    "tridiagonal": [(lambda x: lax.linalg.tridiagonal(x + x.swapaxes(1, 2))[1], (array(5, 4, 4),))],
    "symmetric_product": [
        (
            lambda a, c: lax.linalg.symmetric_product(a, c + c.swapaxes(1, 2), alpha=2.0, beta=1.0),
            (array(5, 4, 3), array(5, 4, 4)),
        )
    ],
    "random_bits": [
        (lambda: jax.random.bits(jax.random.key(0), (6, 7)), ()),
        (lambda: jax.random.bits(jax.random.key(1), (5, 3, 4), "uint8"), ()),
        (lambda: jax.random.bits(jax.random.key(2), (7,), "uint64"), ()),
        (lambda: jax.vmap(lambda k: jax.random.bits(k, (3, 4), "uint16"))(jax.random.split(jax.random.key(3), 5)), ()),
        (lambda: jax.random.bits(jax.random.key(4, impl="rbg"), (6, 7)), ()),
        (lambda keys: jax.vmap(lambda k: jax.random.bits(k, (3,)))(keys), (OTHER_KEYS,)),
    ],
    "threefry2x32": [
        (
            lambda a, b: threefry2x32_p.bind(jnp.uint32(3), jnp.uint32(4), a, b),
            (np.arange(42, dtype=np.uint32).reshape(6, 7), np.arange(42, 84, dtype=np.uint32).reshape(6, 7)),
        ),
    ],
}

ELEMENTWISE_WITHOUT_AN_EXAMPLE = ELEMENTWISE - set(EXAMPLES)
CASES = [
    pytest.param(name, fn, args, id=f"{name}-{k}")
    for name, examples in sorted(EXAMPLES.items())
    for k, (fn, args) in enumerate(examples)
]
TOLERANCE = frozenset(
    ("dot_general", "conv_general_dilated", "reduce_sum", "reduce_prod", "reduce", "cumsum", "cumprod", "cumlogsumexp")
    + ("cholesky", "lu", "qr", "geqrf", "eigh", "svd", "triangular_solve", "householder_product", "eig", "schur")
    + ("hessenberg", "tridiagonal", "tridiagonal_solve", "symmetric_product", "fft", "slice")
    + ("reduce_window_sum",)
)
"""Primitives whose chunks, or whose examples', may be summed, solved or contracted in another order than the whole."""


def on_device(values):
    """An example's arguments as arrays; 64-bit ones need x64, which is on inside tests only."""
    return tuple(jax.device_put(v) for v in values)


def splits_of(fn, args, primitive):
    """The program, and (seed, axis) for every factor of the primitive's equation that can be cut."""
    program = canonical(jax.make_jaxpr(fn)(*args))
    positions = [i for i, e in enumerate(program.eqns) if e.primitive.name == primitive]
    held = []
    for i in positions:
        eqn = program.eqns[i]
        for var in [*eqn.outvars, *(v for v in eqn.invars if not hasattr(v, "val"))]:
            held.append(Held(program=program, path=(), var=var, bytes=1))
    return program, positions, list(enumerate_splits(program, held, growths((1,)), values=100))


def run_all(programs, args):
    """The results of each program, all compiled as one."""
    return jax.jit(lambda *a: [emit(p, EXPANSIONS)(*p.consts, *a) for p in programs])(*args)


def test_every_rule_has_an_example():
    assert not set(FACTOR_RULES) - set(EXAMPLES) - ELEMENTWISE_WITHOUT_AN_EXAMPLE


@pytest.mark.parametrize(("primitive", "fn", "args"), CASES)
def test_any_factor_in_any_chunks_gives_the_unsplit_values(x64, primitive, fn, args):
    args = on_device(args)
    program, positions, seeds = splits_of(fn, args, primitive)
    if not positions:
        pytest.skip(f"this JAX spells the example without `{primitive}`")
    splits = []
    for region in (seed.region for seed in seeds):
        # One index, a divisor of the sixes but not of the sevens, and a remainder of one.
        chunks = {region.least_chunk, 3, region.size - 1} if len(seeds) <= 12 else {region.least_chunk, 3}
        splits += [split_program(region, c) for c in sorted(chunks) if region.least_chunk <= c < region.size]
    expected = jax.tree.leaves(fn(*args))
    for results in run_all(splits, args):
        for a, b in zip(results, expected, strict=True):
            assert a.dtype == b.dtype
            if primitive in TOLERANCE:
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
            else:
                np.testing.assert_array_equal(a, b)


NEEDS_PARAMETERS = {
    "convert_element_type",
    "integer_pow",
    "reduce_precision",
    "round",
    "select_n",
    "clamp",
    "polynomial",
}
"""Elementwise primitives whose functions take more than arrays; those with examples above are tested there."""

CUTTABLE = {
    ("transpose", 0): {"a0", "a1", "a2"},
    ("reshape", 0): {"g0_0"},
    ("reshape", 3): {"g0"},
    ("concatenate", 0): {"a0", "a1"},
    ("slice", 0): {"a0", "a1"},
    ("slice", 1): {"a0", "a1"},
    ("pad", 0): {"a0", "a1"},
    ("rev", 0): {"a0"},
    ("scan", 0): {"t"},
    ("scan", 1): {"t", "c0"},
    ("scan", 3): {"t", "c0"},
    ("scan", 6): {"t", "c0"},
    ("scan", 8): {"t", "c0", "c1"},
    ("random_fold_in", 1): {"b0", "b1"},
    ("random_gamma", 0): {"b0", "a0"},
    ("random_gamma", 1): set(),
    ("random_split", 0): {"b0", "a0"},
    ("random_split", 1): {"a0", "a1"},
    ("random_split", 2): set(),
    ("random_split", 3): set(),
    ("while", 0): {"c0", "c1"},
    ("while", 1): {"c0"},
    ("while", 2): set(),
    ("while", 4): {"c0"},
    ("while", 5): {"c0"},
    ("cond", 0): {"c0", "c1"},
    ("cond", 1): {"c0"},
    ("cond", 2): set(),
    ("cumsum", 0): {"a0", "a1", "a2"},
    ("sort", 0): {"a0"},
    ("top_k", 0): {"a0", "a1"},
    ("gather", 0): {"b0", "w1", "s0"},
    ("gather", 1): {"b0", "s1"},
    ("scatter-add", 0): {"w1", "u0", "s0"},
    ("scatter-add", 1): {"b0", "s1"},
    ("cholesky", 0): {"b0"},
    ("triangular_solve", 0): {"b0", "c"},
    ("triangular_solve", 1): {"c"},
    ("fft", 0): {"b0"},
    ("conv_general_dilated", 0): {"n", "o", "c", "s0", "s1", "t0", "t1"},
    ("conv_general_dilated", 1): {"g", "n", "s0", "t0"},
    ("conv_general_dilated", 6): {"g", "c", "s0", "t0"},
    ("reduce_sum", 0): {"a0", "a1", "a2"},
    ("argmax", 0): {"a0", "a1", "a2"},
    ("dot_general", 0): {"b0", "i1", "j3", "k0", "k1"},
}


@pytest.mark.parametrize(("primitive", "k"), CUTTABLE)
def test_no_more_is_whole_than_must_be(x64, primitive, k):
    fn, args = EXAMPLES[primitive][k]
    program = canonical(jax.make_jaxpr(fn)(*on_device(args)))
    position = next(i for i, e in enumerate(program.eqns) if e.primitive.name == primitive)
    assert set(program.factors(position).names) == CUTTABLE[primitive, k]


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_elementwise_primitives_commute_with_permuting_elements(x64, name):
    """What the shared rule claims: each element of the result comes from the operands' elements at its index."""
    fn = getattr(lax, name, None)
    kinds = [
        lambda *s: array(*s),
        lambda *s: array(*s, dtype=np.int64),
        lambda *s: array(*s) > 0.5,
        lambda *s: array(*s) + 1j,
    ]
    order = np.random.default_rng(0).permutation(7)
    for make in kinds:
        for count in (1, 2, 3):
            operands = [make(6, 7) for _ in range(count)]
            try:
                names = {e.primitive.name for e in canonical(jax.make_jaxpr(fn)(*operands)).eqns}
            except (TypeError, ValueError):
                continue
            if name not in names:
                continue
            plain = fn(*operands)
            assert plain.shape == (6, 7)
            np.testing.assert_array_equal(fn(*(o[:, order] for o in operands)), plain[:, order])
            return
    if name not in NEEDS_PARAMETERS:
        pytest.skip(f"jax.lax.{name} is not a plain function of arrays in this JAX")


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (0,)])
def test_sizes_zero_and_one_are_parsed_and_never_cut_wrongly(shape):
    for fn in (jnp.sin, lambda x: x.sum(0), lambda x: x.reshape(-1), lambda x: x[None] - x, lambda x: jnp.sort(x, 0)):
        program = canonical(jax.make_jaxpr(fn)(jnp.ones(shape)))
        for i in range(len(program.eqns)):
            factors = program.factors(i)
            assert factors is None or parse(factors.rule, program.context(i)).sizes == factors.sizes
        held = [Held(program=program, path=(), var=v, bytes=1) for e in program.eqns for v in e.outvars]
        for seed in enumerate_splits(program, held, growths((1,))):
            assert seed.region.size >= 2
