"""Arguments of the calls, and what is put around a call so that it makes something big of something small.

A call is judged where it matters: its arguments and outputs are small, and what it works on is some 300 KiB. Two ways
to make that: `grid(x, y)`, a product of two vectors, and `a @ b`, a product of two thin matrices, which XLA always
stores. Sizes are primes, so that no chunk divides them.
"""

import pkgutil

import jax
import jax.numpy as jnp
import numpy as np


def floats(*shape, low=0.1, high=0.9, seed=0):
    return np.random.default_rng(seed).uniform(low, high, size=shape).astype(np.float32)


def integers(*shape, low=0, high=100, seed=0, dtype=np.int32):
    return np.random.default_rng(seed).integers(low, high, size=shape).astype(dtype)


X, Y = floats(257), floats(307, seed=1)
SIGNED = floats(257, low=-3, high=3, seed=2), floats(307, low=-1, high=1, seed=3)
ABOVE_ONE = X + 1, Y + 1
WHOLE = integers(257, low=1), integers(307, low=1, seed=1)
THIN = floats(257, 8, low=0.02, high=0.13), floats(8, 307, seed=1)
SIGNED_THIN = floats(257, 8, low=-1, high=1), floats(8, 307, low=-1, high=1, seed=1)
MATRICES = floats(1499), floats(5, 5, seed=1)
SIGNALS = floats(101, low=-1, high=1), floats(997, low=-1, high=1, seed=1)
KEY = jax.random.key(7)


def grid(x, y):
    """[n], [m] -> [n, m]."""
    return x[:, None] * y


def whole(x, y):
    """[n], [m] -> [n, m] of small integers, many of them equal."""
    return (x[:, None] * y) % 17


def half(x, y):
    """[n], [m] -> [n, m] flags."""
    return x[:, None] > y


def holes(a, b):
    """A product in which some are NaN."""
    v = a @ b
    return jnp.where(jnp.abs(v) < 0.1, jnp.nan, v)


def matrices(x, m):
    """[n], [k, k] -> n well-conditioned matrices."""
    return x[:, None, None] * m + 2 * jnp.eye(m.shape[0], dtype=m.dtype)


def positive(x, m):
    """[n], [k, k] -> n positive definite matrices."""
    return x[:, None, None] * (m @ m.T) + jnp.eye(m.shape[0], dtype=m.dtype)


FRAMES = (
    lambda v, x, y: v @ y,
    lambda v, x, y: x @ v,
    lambda v, x, y: jnp.sort(v, axis=1)[:, ::100],
    lambda v, x, y: jnp.sort(v, axis=0)[::100],
    lambda v, x, y: jnp.cumsum(v, axis=1)[:, -1],
)
"""What needs a value whole, or one row or column of it."""


def around(module, names, operands, arguments, frames=FRAMES):
    """Calls of element-wise functions, each inside the next frame.

    Args:
      module: where the functions are, such as "jax.numpy".
      names: theirs, between blanks.
      operands: what each is called with, from the two arguments.
      arguments: the two arguments, [n] and [m].
      frames: what is put around the calls, in turn.

    Returns:
      name -> (function, arguments).
    """
    calls = {}
    for k, name in enumerate(names.split()):
        f, frame = pkgutil.resolve_name(f"{module}.{name}"), frames[k % len(frames)]
        calls[name] = (lambda x, y, f=f, frame=frame: frame(f(*operands(x, y)), x, y), arguments)
    return calls
