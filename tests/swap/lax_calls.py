"""Calls of jax.lax, jax.lax.linalg, jax.ops and jax.image."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.swap.arguments import (
    MATRICES,
    SIGNED,
    SIGNED_THIN,
    WHOLE,
    X,
    Y,
    around,
    floats,
    grid,
    half,
    integers,
    matrices,
    positive,
    whole,
)

UNARY = """
    acos asin atanh log rsqrt logistic erf erf_inv erfc lgamma digamma bessel_i0e bessel_i1e log1p exp2 expm1
    is_finite reciprocal
"""
WORDS = integers(257, high=2**31 - 1), integers(307, high=2**31 - 1, seed=1)
IMAGES = floats(37, 1, 1, 3, seed=2), floats(24, 23, 1, seed=3), floats(3, 3, 3, 5, seed=4)
SEGMENTS = floats(257, 8), floats(8, 307, seed=1), integers(257, high=11)
PICK = (*SIGNED_THIN, integers(61, high=257))


def pictures(x, m):
    return x * m


def at_grid(x, y):
    return (grid(x, y),)


def two(x, y):
    return x[:, None] + 0 * y, y + 0 * x[:, None]


OF_PRODUCTS = {
    "argmax": lambda a, b: lax.argmax(a @ b, 1, jnp.int32),
    "argmin": lambda a, b: lax.argmin(a @ b, 0, jnp.uint32),
    "cumsum": lambda a, b: lax.cumsum(a @ b, axis=1, reverse=True)[:, ::99],
    "cumprod": lambda a, b: lax.cumprod(1 + (a @ b) / 99, axis=0)[::50],
    "cummax": lambda a, b: lax.cummax(a @ b, axis=1)[:, ::99],
    "cummin": lambda a, b: lax.cummin(a @ b, axis=0, reverse=True)[::50],
    "cumlogsumexp": lambda a, b: lax.cumlogsumexp(a @ b, axis=1)[:, -1],
    "top_k": lambda a, b: lax.top_k(a @ b, 4),
    "top_k, wider": lambda a, b: lax.top_k((a @ b).T, 5)[1],
    "approx_max_k": lambda a, b: lax.approx_max_k(a @ b, 3, recall_target=1.0),
    "approx_min_k": lambda a, b: lax.approx_min_k(a @ b, 3, recall_target=1.0),
    "sort": lambda a, b: lax.sort([a @ b, (a @ b) ** 2], dimension=1)[1][:, ::99],
    "sort_key_val": lambda a, b: lax.sort_key_val(a @ b, 0 * (a @ b) + b[0], dimension=1)[1][:, :3],
    "reduce": lambda a, b: lax.reduce(a @ b, -jnp.inf, lax.max, (0,)),
    "reduce_sum": lambda a, b: lax.reduce_sum(a @ b, axes=(0,)),
    "reduce_max": lambda a, b: lax.reduce_max(a @ b, axes=(1,)),
    "reduce_min": lambda a, b: lax.reduce_min(a @ b, axes=(0, 1)),
    "reduce_prod": lambda a, b: lax.reduce_prod(1 + (a @ b) / 99, axes=(1,)),
    "reduce_and": lambda a, b: lax.reduce_and(a @ b < 2, axes=(1,)),
    "reduce_or": lambda a, b: lax.reduce_or(a @ b > 2, axes=(0,)),
    "reduce_xor": lambda a, b: lax.reduce_xor(a @ b > 0, axes=(0,)),
    "reduce_window": lambda a, b: lax.reduce_window(a @ b, 0.0, lax.add, (1, 5), (1, 3), "SAME").max(axis=1),
    "reduce_window, down": lambda a, b: lax.reduce_window(a @ b, -jnp.inf, lax.max, (7, 1), (2, 1), "VALID").min(0),
    "broadcast": lambda a, b: jnp.sort(lax.broadcast(b[0], (257,)) + a[:, :1], axis=1)[:, 3],
    "broadcast_in_dim": lambda a, b: lax.broadcast_in_dim(a[:, 0], (257, 307), (0,)) @ b[0],
    "reshape": lambda a, b: lax.reshape(a @ b, (307, 257)).max(axis=1),
    "collapse": lambda a, b: jnp.sort(lax.collapse(a[:, :, None] * b, 1, 3), axis=1)[:, ::500],
    "transpose": lambda a, b: lax.transpose(a[:, :, None] * b, (2, 0, 1)).max(axis=1),
    "squeeze": lambda a, b: lax.squeeze((a @ b)[:, None], (1,)).max(axis=1),
    "expand_dims": lambda a, b: lax.expand_dims(a @ b, (1,)).max(axis=2),
    "rev": lambda a, b: lax.cumsum(lax.rev(a @ b, (0, 1)), axis=1)[:, -1],
    "pad": lambda a, b: lax.pad(a @ b, 0.5, [(0, 0, 0), (-2, 3, 1)]).min(axis=1),
    "pad, down": lambda a, b: lax.pad(a @ b, 0.5, [(1, 2, 1), (0, 0, 0)]).max(axis=0),
    "concatenate": lambda a, b: lax.cumsum(lax.concatenate([a @ b, a @ b], 0), axis=0)[::99],
    "slice": lambda a, b: lax.slice(a @ b, (3, 2), (250, 300), (2, 3)).max(axis=1),
    "slice_in_dim": lambda a, b: lax.slice_in_dim(a @ b, 5, 200, stride=4, axis=0).max(axis=1),
    "index_in_dim": lambda a, b: lax.index_in_dim(lax.cumsum(a @ b), 150, axis=0),
    "dynamic_slice": lambda a, b: lax.dynamic_slice(a @ b, (jnp.int32(a[0, 0] + 2), 0), (200, 307)).max(axis=1),
    "dynamic_slice_in_dim": lambda a, b: lax.dynamic_slice_in_dim(a @ b, jnp.argmax(b[0]), 100, axis=1).max(axis=1),
    "dynamic_index_in_dim": lambda a, b: lax.dynamic_index_in_dim(lax.cumsum(a @ b), jnp.argmax(b[0]) % 9, axis=0),
    "dynamic_update_slice": lambda a, b: lax.dynamic_update_slice(a @ b, a, (0, jnp.argmax(b[0]))).max(axis=1),
    "dynamic_update_slice_in_dim": lambda a, b: lax.dynamic_update_slice_in_dim(a @ b, b, 7, axis=0).max(axis=0),
    "dynamic_update_index_in_dim": lambda a, b: lax.dynamic_update_index_in_dim(a @ b, a[:, 0], 3, axis=1).max(1),
    "split": lambda a, b: [v.max(axis=0) for v in lax.split(a @ b, (100, 57, 100))],
    "dot": lambda a, b: lax.dot(a, b).max(axis=1),
    "dot_general": lambda a, b: lax.dot_general(jnp.sin(a @ b), b, (((1,), (1,)), ((), ()))),
    "dot_general, in batches": lambda a, b: lax.dot_general(
        a[:, :, None] * b, a[:, :, None] + b, (((1,), (1,)), ((0,), (0,)))
    ).max(axis=(1, 2)),
    "batch_matmul": lambda a, b: lax.batch_matmul(a[:, :, None] * b, a[:, None, :] + b.T).max(axis=(1, 2)),
    "select": lambda a, b: lax.select(a @ b > 0, jnp.sin(a @ b), a @ b).max(axis=1),
    "clamp": lambda a, b: lax.clamp(-0.5, a @ b, 0.5) @ b[0],
    "complex": lambda a, b: jnp.abs(lax.complex(a @ b, 2 * (a @ b)) @ b[0]),
    "fft": lambda a, b: jnp.abs(lax.fft(lax.complex(a @ b, a @ b), "FFT", (307,))).max(axis=1),
    "convert_element_type": lambda a, b: lax.cumsum(lax.convert_element_type(9 * (a @ b), jnp.int16), axis=1)[:, -1],
    "bitcast_convert_type": lambda a, b: lax.bitcast_convert_type(a[:, :1] * b[0], jnp.uint32).max(axis=1),
    "reduce_precision": lambda a, b: lax.reduce_precision(a @ b, 8, 7) @ b[0],
    "integer_pow": lambda a, b: lax.integer_pow(a @ b, 3) @ b[0],
    "map": lambda a, b: lax.map(lambda row: jnp.sort(row @ b)[::90], a),
    "map, in batches": lambda a, b: lax.map(lambda row: jnp.sort(row @ b)[::90], a, batch_size=50),
    "scan": lambda a, b: lax.scan(lambda c, row: (c + jnp.sin(row @ b), jnp.max(c)), b[0], a),
    "scan, of a product": lambda a, b: lax.scan(lambda c, row: (0.5 * c + row, c @ row), b[0], a @ b),
    "fori_loop": lambda a, b: lax.fori_loop(0, 5, lambda i, v: v + jnp.sort(jnp.sin(a @ b * i), axis=1)[:, i], a[:, 0]),
    "while_loop": lambda a, b: lax.while_loop(
        lambda s: s[0] < 4, lambda s: (s[0] + 1, jnp.tanh((s[1][:, None] * b[0]) @ b[1])), (0, a[:, 0])
    ),
    "cond": lambda a, b: lax.cond(
        a[0, 0] > 0, lambda: jnp.sort(a @ b, axis=1)[:, 0], lambda: jnp.sort(a @ b, axis=1)[:, -1]
    ),
    "switch": lambda a, b: lax.switch(
        jnp.argmax(a[0, :3]), [lambda: (a @ b).max(1), lambda: (a @ b).sum(1), lambda: jnp.sort(a @ b)[:, 4]]
    ),
    "associative_scan": lambda a, b: lax.associative_scan(jnp.maximum, a @ b, axis=1)[:, ::60],
    "stop_gradient": lambda a, b: lax.cumsum(lax.stop_gradient(a @ b), axis=1)[:, -1],
    "optimization_barrier": lambda a, b: lax.optimization_barrier(a @ b).max(axis=1),
    "conv": lambda a, b: lax.conv((a @ b)[:, None, None, :], b[:2, None, None, :5], (1, 1), "SAME").max(axis=3),
    "custom_linear_solve": lambda a, b: lax.custom_linear_solve(
        lambda v: 2 * v, (a @ b).max(axis=1), lambda _, v: v / 2, lambda _, v: v / 2
    ),
}
OF_IMAGES = {
    "conv_general_dilated": lambda x, m, k: lax.conv_general_dilated(
        pictures(x, m), k, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    ).max(axis=(1, 2)),
    "conv_with_general_padding": lambda x, m, k: lax.conv_with_general_padding(
        jnp.moveaxis(pictures(x, m), 3, 1), jnp.moveaxis(k, (3, 2), (0, 1)), (1, 1), ((1, 0), (0, 2)), (1, 1), (2, 1)
    ).sum(axis=(2, 3)),
    "conv_transpose": lambda x, m, k: lax.conv_transpose(pictures(x, m), k, (2, 2), "SAME").max(axis=(1, 2)),
    "conv_general_dilated_patches": lambda x, m, k: lax.conv_general_dilated_patches(
        jnp.moveaxis(pictures(x, m), 3, 1), (3, 3), (2, 2), "VALID"
    ).max(axis=(2, 3)),
}
LAX = {
    **around("jax.lax", UNARY, at_grid, (X, Y)),
    **around("jax.lax", "round cbrt sign asinh", at_grid, SIGNED),
    **around("jax.lax", "population_count clz", at_grid, WORDS),
    **around("jax.lax", "igamma igammac zeta", lambda x, y: two(x + 1.5, y), (X, Y)),
    **around("jax.lax", "atan2 rem pow nextafter", two, (X, Y)),
    **around("jax.lax", "mulhi shift_right_logical", lambda x, y: two(x, y), WORDS),
    "shift_left": (lambda x, y: lax.shift_left(*two(x, y % 5)).max(axis=1), WORDS),
    "betainc": (lambda x, y: lax.betainc(1 + x[:, None] + 0 * y, 2.0 + grid(x, y), y + 0 * x[:, None]) @ y, (X, Y)),
    "polygamma": (lambda x, y: lax.polygamma(jnp.full((257, 307), 2.0), 1 + grid(x, y)) @ y, (X, Y)),
    **{name: (function, SIGNED_THIN) for name, function in OF_PRODUCTS.items()},
    **{name: (function, IMAGES) for name, function in OF_IMAGES.items()},
    "select_n": (lambda x, y: lax.select_n(whole(x, y) % 3, grid(x, y), -grid(x, y), 1 + grid(x, y)).max(1), WHOLE),
    "top_k, of ties": (lambda x, y: lax.top_k(whole(x, y), 5), WHOLE),
    "sort, of ties": (lambda x, y: lax.sort((whole(x, y), grid(x, y)), dimension=1)[1][:, ::60], WHOLE),
    "iota": (lambda x, y: jnp.sort((grid(x, y) + lax.iota(jnp.int32, 307)) % 13, axis=1)[:, ::60], WHOLE),
    "broadcasted_iota": (lambda x, y: (grid(x, y) * lax.broadcasted_iota(jnp.int32, (257, 307), 0)) @ y, WHOLE),
    "gather": (
        lambda a, b, i: lax.gather(
            a @ b, i[:, None], lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 307), mode="clip"
        ).max(axis=1),
        PICK,
    ),
    "index_take": (lambda a, b, i: lax.index_take(a @ b, (i,), (0,)).max(axis=1), PICK),
    **{
        f"scatter{kind}": (
            lambda a, b, i, f=f: f(
                a @ b, i[:, None], jnp.sin(a[:61] @ b), lax.ScatterDimensionNumbers((1,), (0,), (0,)), mode="drop"
            ).max(axis=1),
            PICK,
        )
        for kind, f in {
            "_add": lax.scatter_add,
            "_sub": lax.scatter_sub,
            "_mul": lax.scatter_mul,
            "_min": lax.scatter_min,
            "_max": lax.scatter_max,
        }.items()
    },
    "scatter": (
        lambda x, y, i: lax.scatter(
            grid(x, y), i[:, None], y * i[:, None], lax.ScatterDimensionNumbers((1,), (0,), (0,))
        ).max(axis=0),
        (X, Y, np.unique(integers(61, high=257))),
    ),
    "ragged_dot": (
        lambda x, y: lax.ragged_dot(grid(x, y[:40]), grid(y, x[:40]).reshape(-1, 40, 1)[:3], jnp.array([57, 100, 100])),
        (X, Y),
    ),
}
LAX_LINALG = {
    name: (function, MATRICES)
    for name, function in {
        "cholesky": lambda x, m: lax.linalg.cholesky(positive(x, m)).sum(axis=(1, 2)),
        "eigh": lambda x, m: lax.linalg.eigh(positive(x, m))[1][:, -1],
        "lu": lambda x, m: [v[:, 1].max(axis=-1) for v in lax.linalg.lu(matrices(x, m))[:1]],
        "qr": lambda x, m: jnp.abs(lax.linalg.qr(matrices(x, m), full_matrices=False)[1]).max(axis=2),
        "svd": lambda x, m: lax.linalg.svd(matrices(x, m), compute_uv=False),
        "householder_product": lambda x, m: lax.linalg.householder_product(matrices(x, m), x[:, None] * m[0])[:, 2, 2],
        "triangular_solve": lambda x, m: lax.linalg.triangular_solve(
            matrices(x, m), jnp.broadcast_to(m[:, :2], (x.size, 5, 2)), left_side=True, lower=True
        ).sum(axis=1),
        "tridiagonal": lambda x, m: lax.linalg.tridiagonal(positive(x, m))[1][:, ::2],
        "tridiagonal_solve": lambda x, m: lax.linalg.tridiagonal_solve(
            *(x[:, None] * v for v in (m[0].at[0].set(0), m[1] + 3, m[2].at[4].set(0))), (x[:, None] * m[3])[..., None]
        ).max(axis=1),
        "hessenberg": lambda x, m: lax.linalg.hessenberg(matrices(x, m))[0][:, 0, 0],
        "symmetric_product": lambda x, m: lax.linalg.symmetric_product(matrices(x, m), matrices(x, m)).max(axis=(1, 2)),
        "eig": lambda x, m: jnp.abs(
            lax.linalg.eig(positive(x, m), compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]
        ).max(axis=1),
    }.items()
}
OPS = {
    "segment_sum": (lambda a, b, i: jax.ops.segment_sum(a @ b, i, 11)[:, ::9], SEGMENTS),
    "segment_prod": (lambda a, b, i: jax.ops.segment_prod(1 + (a @ b) / 99, i, 11).max(axis=1), SEGMENTS),
    "segment_max": (lambda a, b, i: jax.ops.segment_max(a @ b, i, 13).min(axis=1), SEGMENTS),
    "segment_min": (lambda a, b, i: jax.ops.segment_min((a @ b).T, jnp.arange(307) // 30, 11).T.max(axis=0), SEGMENTS),
}
IMAGE = {
    "resize": (lambda a, b: jax.image.resize(a @ b, (257, 31), "linear").max(axis=1), SIGNED_THIN),
    "resize, nearest": (lambda a, b: jax.image.resize(a @ b, (40, 307), "nearest")[::9], SIGNED_THIN),
    "scale_and_translate": (
        lambda a, b: jax.image.scale_and_translate(
            a @ b, (60, 50), (0, 1), jnp.array([0.2, 0.2]), jnp.array([1.0, 2.0]), "cubic"
        ),
        SIGNED_THIN,
    ),
}
LAX_FLAGS = {"bitwise_not": (lambda x, y: jnp.sort(lax.bitwise_not(half(x, y)), axis=1)[:, ::60], SIGNED)}
LAX |= LAX_FLAGS
