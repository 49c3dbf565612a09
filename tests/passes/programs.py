"""Random programs over the ruled primitives, for property tests: grown value by value from a seed."""

import jax
import jax.numpy as jnp
import numpy as np

from exla.ir.emit import emit

UNARY = (
    jnp.sin,
    jnp.tanh,
    lambda x: x * x,
    lambda x: -x,
    lambda x: jnp.where(x > 0, x, 0.5 * x),
    lambda x: jnp.clip(x, -1, 1),
)


def random_function(seed: int, steps: int = 7):
    """Make a function of three float64 matrices, and its arguments.

    Returns:
      (function, arguments); the function returns a tuple of arrays.
    """
    choices = np.random.default_rng(seed)
    n, m, d = (int(choices.integers(2, 9)) for _ in range(3))
    arguments = tuple(
        jax.device_put(np.random.default_rng(seed + k).normal(size=shape))
        for k, shape in enumerate([(n, d), (m, d), (m,)])
    )
    script = [(int(choices.integers(1 << 30)), int(choices.integers(1 << 30))) for _ in range(steps)]

    def function(x, y, v):
        values = [x, y, v, x[:, None, :] - y[None, :, :]]
        for kind, pick in script:
            values.append(_step(values, kind, pick))
        return tuple(w for w in values[-3:])

    return function, arguments


def _step(values, kind, pick):
    a = values[-1] if pick % 3 else values[pick % len(values)]
    b = values[(pick // 7) % len(values)]
    axis = pick % a.ndim if a.ndim else 0
    kind %= 19
    if a.ndim == 0 or kind == 0:
        return UNARY[pick % len(UNARY)](a)
    if kind == 1:
        return jnp.add(*_broadcast(a, b))
    if kind == 2:
        return a.sum(axis)
    if kind == 3:
        return a.max(axis)
    if kind == 4:
        return a.min(axis)
    if kind == 5:
        return jnp.prod(1 + 0.1 * jnp.tanh(a), axis)
    if kind == 6:
        return jnp.argmax(jnp.round(a, 6), axis).astype(float)  # what is equal but for rounding ties in every order
    if kind == 7:
        return jnp.argmin(jnp.round(a), axis).astype(float)
    if kind == 8:
        return jnp.moveaxis(a, axis, 0)
    if kind == 9:
        return jnp.tensordot(a, a, axes=((axis,), (axis,))) if a.ndim <= 2 else jnp.einsum("ijk,ljk->il", a, a)
    if kind == 10:
        return jax.nn.softmax(a, axis)
    if kind == 11:
        return a.reshape(-1) if a.ndim > 1 else a[None]
    if kind == 12:
        return jnp.concatenate([a, 2 * a], axis)
    if kind == 13:
        return jnp.cumsum(a, axis)
    if kind == 14:
        return jax.lax.top_k(jnp.round(a), min(2, a.shape[-1]))[pick % 2].astype(float)
    if kind == 15:
        return jnp.sort(a, axis)
    if kind == 16:
        return jnp.flip(a, axis)
    if kind == 17:
        return a + jnp.arange(a.shape[axis]).reshape([-1 if k == axis else 1 for k in range(a.ndim)])
    return jnp.all(a > -1, axis).astype(float) + jnp.any(a > 1, axis)


def _broadcast(a, b):
    """Two values made to fit by cutting b to its mean where shapes disagree."""
    try:
        jnp.broadcast_shapes(a.shape, b.shape)
        return a, b
    except ValueError:
        return a, b.mean()


def assert_computes(program, fn, args):
    """Assert that a program gives the values and types of `jax.jit(fn)`, to the rounding of float64."""
    want = jax.tree.leaves(jax.jit(fn)(*args))
    got = jax.jit(lambda *xs: emit(program, {})(*program.consts, *xs))(*args)
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape, a.weak_type) == (b.dtype, b.shape, b.weak_type)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max())
