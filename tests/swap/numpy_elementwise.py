"""Calls of jax.numpy that work element by element."""

import jax.numpy as jnp

from tests.swap.arguments import ABOVE_ONE, FRAMES, SIGNED, WHOLE, around, grid, half, whole

UNARY = """
    arcsin arccos arctanh log log10 log2 sqrt reciprocal cbrt exp exp2 expm1 log1p i0 sinc arctan arcsinh sin cos tan
    sinh cosh tanh deg2rad rad2deg
"""
SIGNED_UNARY = """
    abs fabs ceil floor rint round trunc sign signbit negative positive square nan_to_num isfinite isinf isnan
    isneginf isposinf isreal iscomplex real imag conj
"""
BINARY = """
    add subtract multiply divide maximum minimum fmax fmin hypot arctan2 copysign heaviside logaddexp logaddexp2
    equal not_equal less less_equal greater greater_equal isclose floor_divide mod fmod
"""
ON_WHOLE = "bitwise_and bitwise_or bitwise_xor gcd lcm remainder"


def at_grid(x, y):
    return (grid(x, y),)


def as_given(x, y):
    return x[:, None], y


NUMPY_ELEMENTWISE = {
    **around("jax.numpy", UNARY, at_grid, None),
    **around("jax.numpy", SIGNED_UNARY, at_grid, SIGNED),
    **around("jax.numpy", "arccosh", at_grid, ABOVE_ONE),
    **around("jax.numpy", BINARY, as_given, SIGNED),
    **around("jax.numpy", "power float_power", as_given, None),
    **around("jax.numpy", ON_WHOLE, as_given, WHOLE),
    **around("jax.numpy", "bitwise_not bitwise_count", at_grid, WHOLE),
    **around("jax.numpy", "left_shift right_shift", lambda x, y: (x[:, None], y % 5), WHOLE),
    **around("jax.numpy", "logical_and logical_or logical_xor", lambda x, y: (half(x, y), x[:, None] < 0), SIGNED),
    **around("jax.numpy", "logical_not", lambda x, y: (half(x, y),), SIGNED, frames=FRAMES[2:]),
    "angle": lambda x, y: jnp.angle(x[:, None] + 1j * y) @ y,
    "divmod": (lambda x, y: [jnp.sort(part, axis=1)[:, -3:] for part in jnp.divmod(x[:, None], y)], WHOLE),
    "modf": (lambda x, y: tuple(part @ y for part in jnp.modf(3 * grid(x, y))), SIGNED),
    "frexp": (lambda x, y: [x @ part for part in jnp.frexp(grid(x, y))], SIGNED),
    "ldexp": (lambda x, y: jnp.ldexp(x[:, None], jnp.int32(5 * y)) @ y, SIGNED),
    "nextafter": (lambda x, y: jnp.sort(jnp.nextafter(x[:, None], y), axis=0)[7], SIGNED),
    "spacing": lambda x, y: jnp.sort(jnp.spacing(grid(x, y)), axis=1)[:, :2],
    "clip": (lambda x, y: jnp.clip(grid(x, y), -0.5, y) @ y, SIGNED),
    "where": (lambda x, y: jnp.where(half(x, y), x[:, None], 0) @ y, SIGNED),
    "where, of scalars": (lambda x, y: jnp.cumsum(jnp.where(half(x, y), 1, 2), axis=1)[:, -1], SIGNED),
    "select": (lambda x, y: jnp.select([half(x, y), y > 0], [x[:, None], -y], 7.0) @ y, SIGNED),
    "choose": (lambda x, y: jnp.choose(whole(x, y) % 3, [x[:, None], y, 7], mode="clip") @ y, WHOLE),
    "piecewise": (
        lambda x, y: x @ jnp.piecewise(grid(x, y), [grid(x, y) < 0, grid(x, y) > 1], [jnp.sin, 0.5, lambda v: v * v]),
        SIGNED,
    ),
    "interp": lambda x, y: jnp.interp(grid(x, y), jnp.linspace(0, 1, 11), jnp.linspace(0, 1, 11) ** 2) @ y,
    "polyval": (lambda x, y: jnp.polyval(jnp.array([1.0, -2.0, 0.5]), grid(x, y)) @ y, SIGNED),
    "unwrap": (lambda x, y: jnp.unwrap(9 * grid(x, y), axis=1)[:, -1], SIGNED),
    "astype": (lambda x, y: jnp.sort(jnp.astype(9 * grid(x, y), jnp.int8), axis=1)[:, ::50], SIGNED),
    "astype, half precision": lambda x, y: jnp.sort(jnp.astype(grid(x, y), jnp.bfloat16), axis=1)[:, ::50],
    "asarray": (lambda x, y: jnp.sort(jnp.asarray(grid(x, y), dtype="float16"), axis=0)[::50], SIGNED),
    "vectorize": lambda x, y: jnp.vectorize(lambda u, v: jnp.where(u > v, u - v, u * v))(x[:, None], y) @ y,
    "frompyfunc": lambda x, y: jnp.frompyfunc(lambda u, v: u * v + 1, nin=2, nout=1).outer(x, y) @ y,
    "full_like": lambda x, y: jnp.sort(grid(x, y) + jnp.full_like(grid(x, y), 3), axis=1)[:, 0],
    "zeros_like": lambda x, y: jnp.cumsum(jnp.zeros_like(grid(x, y)).at[3].set(y), axis=1)[:, -1],
    "ones_like": lambda x, y: jnp.cumsum(jnp.ones_like(grid(x, y)) * y, axis=0)[-1],
    "allclose": lambda x, y: jnp.allclose(jnp.sort(grid(x, y), axis=1), jnp.sort(grid(x, y) + 1e-9, axis=1)),
    "array_equal": lambda x, y: jnp.array_equal(jnp.sort(grid(x, y), axis=1), jnp.sort(grid(x, y)[:, ::-1], axis=1)),
    "array_equiv": lambda x, y: jnp.array_equiv(jnp.sort(grid(x, y), axis=1), y),
}
