"""The zoo: every program with its arguments and the scales at which it is tried.

>>> from exla.datasets.profiling.zoo.programs import ZOO
>>> program = ZOO["chamfer"]
>>> program.function(*program.arguments(program.tiny))
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from exla.datasets.profiling.zoo import (
    attention,
    derivatives,
    distances,
    gaussian_processes,
    graphs,
    losses,
    ordinary,
    particles,
    sequences,
    signals,
    statistics,
    transport,
    vision,
)


@dataclass(frozen=True, kw_only=True)
class ZooProgram:
    """One program.

    Attributes:
      name: the key in `ZOO`.
      function: the plain program.
      arguments: scale -> float32 and int32 NumPy arrays, or pytrees of them; the same for the same scale.
      tiny: the scale at which values are compared with float64.
      fitting: the scale at which 256 MiB are plenty.
      over: the scale at which jax.jit needs 2 GiB of temporaries, or None where none does.
      needs_nothing: whether exla should leave it alone.
      tolerance: largest error of float32, as a part of the largest value.
    """

    name: str
    function: Callable[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]
    tiny: int
    fitting: int
    over: int | None
    needs_nothing: bool = False
    tolerance: float = 1e-3


def normal(*shapes: tuple[int, ...], scale: float = 1.0) -> tuple[np.ndarray, ...]:
    generator = np.random.default_rng(0)
    return tuple(scale * generator.standard_normal(shape, dtype=np.float32) for shape in shapes)


def uniform(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    generator = np.random.default_rng(0)
    return tuple(generator.random(shape, dtype=np.float32) for shape in shapes)


def integers(high: int, *shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    generator = np.random.default_rng(0)
    return tuple(generator.integers(0, high, shape, dtype=np.int32) for shape in shapes)


def number(value: float) -> np.ndarray:
    return np.asarray(value, np.float32)


def weights(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Matrices that keep the size of what they multiply."""
    return tuple(w / np.float32(np.sqrt(np.prod(w.shape[:-1]))) for w in normal(*shapes))


def ascending(count: int, high: float) -> np.ndarray:
    return np.linspace(0, high, count, dtype=np.float32)


def block_arguments(n: int) -> tuple[Any, ...]:
    qkv, out, up, down = weights((64, 192), (64, 64), (64, 256), (256, 64))
    ones = np.ones(64, np.float32)
    return {"qkv": qkv, "out": out, "up": up, "down": down, "scale_1": ones, "scale_2": ones}, *normal((n, 64))


def sgpr_arguments(n: int) -> tuple[Any, ...]:
    parameters = {"log_scale": np.full(3, 0.1, np.float32), "log_noise": number(-1)}
    m = min(512, n // 4)
    return parameters, *normal((m, 3), (n, 3), (n,))


def sphere_arguments(n: int) -> tuple[Any, ...]:
    origins, directions, centres = normal((n, 3), (n, 3), (n, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return 0.1 * origins, directions, centres * np.float32(4), uniform((n,))[0] + np.float32(0.1)


def splat_arguments(n: int) -> tuple[Any, ...]:
    pixels, means, colours, opacities = uniform((n, 2), (n, 2), (n, 3), (n,))
    precisions = np.broadcast_to(40 * np.eye(2, dtype=np.float32), (n, 2, 2)).copy()
    return pixels, means, precisions, colours, opacities * np.float32(0.1)


def box_arguments(n: int) -> tuple[Any, ...]:
    corners, sizes, scores = uniform((n, 2), (n, 2), (n,))
    return np.concatenate([corners, corners + sizes * np.float32(0.3) + np.float32(0.05)], axis=1), scores


def layers(*sizes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    pairs = zip(sizes[:-1], sizes[1:], strict=True)
    return [(*weights((a, b)), np.zeros(b, np.float32)) for a, b in pairs]


def adam_arguments(n: int) -> tuple[Any, ...]:
    trees = [{"w": w, "b": w[0]} for w in normal((n, n), (n, n), (n, n), (n, n))]
    return (*trees[:3], {name: v**2 for name, v in trees[3].items()})


def vocabulary_arguments(n: int) -> tuple[Any, ...]:
    vocabulary = min(32_000, 8 * n)
    return *normal((n, 64)), *weights((64, vocabulary)), *integers(vocabulary, (n,))


def rnn_arguments(n: int) -> tuple[Any, ...]:
    return *normal((n, 64, 4)), *weights((4, 256), (256, 256), (256, 8)), np.zeros((64, 256), np.float32)


def program(function: Callable[..., Any], arguments: Callable[[int], tuple], tiny: int, **rest: Any) -> ZooProgram:
    return ZooProgram(name=function.__name__, function=function, arguments=arguments, tiny=tiny, **rest)


def easy(function: Callable[..., Any], arguments: Callable[[int], tuple], tiny: int, **rest: Any) -> ZooProgram:
    return program(function, arguments, tiny, over=None, needs_nothing=True, **rest)


_g, _d, _t, _p, _a, _l = gaussian_processes, distances, transport, particles, attention, losses
_v, _r, _q, _s, _c, _j, _o = vision, graphs, sequences, signals, statistics, derivatives, ordinary

_PAIRS = {"tiny": 96, "fitting": 2000, "over": 24_000}

_LONG = {"tiny": 160, "fitting": 1000, "over": 12_000}

PROGRAMS = [
    program(_g.rbf_product, lambda n: (*normal((n, 3), (n, 3), (n,)), np.ones(3, np.float32)), **_PAIRS),
    program(_g.matern_product, lambda n: normal((n, 3), (n, 3), (n,)), **_PAIRS),
    program(_g.periodic_product, lambda n: (*normal((n, 3), (n, 3), (n,)), number(1.5)), **_PAIRS),
    program(_g.additive_product, lambda n: (*normal((n, 4), (n, 4), (n,)), np.ones(4, np.float32)), **_PAIRS),
    program(
        _g.exact_marginal_likelihood,
        lambda n: (*normal((n, 3), (n,)), number(0), number(-1)),
        tiny=96,
        fitting=1000,
        over=24_000,
    ),
    program(_g.sgpr_gradient, sgpr_arguments, tiny=160, fitting=2000, over=400_000),
    program(_d.nearest_neighbours, lambda n: normal((n, 8), (n, 8)), **_PAIRS),
    program(_d.chamfer, lambda n: normal((n, 3), (n, 3)), **_PAIRS),
    program(_d.chamfer_gradient, lambda n: normal((n, 3), (n, 3)), **_PAIRS),
    program(_d.hausdorff, lambda n: normal((n, 3), (n, 3)), **_PAIRS),
    program(_d.hamming, lambda n: integers(4, (n, 32)), **_PAIRS),
    program(_d.cosine_top5, lambda n: normal((n, 32), (n, 32)), **{**_PAIRS, "tiny": 256}),
    program(_t.sinkhorn_half_step, lambda n: (*uniform((n, 8), (n, 8)), *normal((n,), (n,), scale=0.1)), **_PAIRS),
    program(_t.sinkhorn_fori, lambda n: uniform((n, 3), (n, 3)), **_PAIRS),
    program(_t.barycentric_map, lambda n: (*uniform((n, 3), (n, 3)), *normal((n,), (n,), scale=0.1)), **_PAIRS),
    program(_t.sliced_wasserstein, lambda n: normal((n, 3), (n, 3), (3, 64)), 96, fitting=2000, over=5_000_000),
    program(_p.nbody_forces, lambda n: (*normal((n, 3)), *uniform((n,))), **_PAIRS),
    program(_p.nbody_energy, lambda n: (*normal((n, 3), (n, 3)), *uniform((n,))), **_PAIRS),
    program(_p.lennard_jones_forces, lambda n: (uniform((n, 3))[0] * 8, number(8)), **_PAIRS),
    program(_p.svgd_step, lambda n: normal((n, 4), (n, 4)), **_PAIRS),
    program(_p.mean_shift, lambda n: normal((n, 3), (n, 3)), **_PAIRS),
    program(_p.kmeans_step, lambda n: normal((n, 8), (min(1024, n // 8), 8)), 160, fitting=4000, over=600_000),
    program(_p.tsne_gradient, lambda n: normal((n, 2), (n, 16)), **_PAIRS),
    program(
        _p.radial_distribution, lambda n: (uniform((n, 3))[0] * 4, ascending(25, 2)), 64, fitting=1000, over=24_000
    ),
    program(_p.sph_density, lambda n: (*normal((n, 3)), *uniform((n,), (n,))), **_PAIRS),
    easy(
        _p.particle_filter_step,
        lambda n: (*normal((n, 4)), np.zeros(n, np.float32), *normal((4,))),
        96,
        fitting=100_000,
    ),
    program(_a.attention, lambda n: normal(*3 * [(n, 4, 32)]), **_LONG),
    program(_a.causal, lambda n: normal(*3 * [(n, 4, 32)]), **_LONG),
    program(_a.alibi, lambda n: normal(*3 * [(n, 4, 32)]), **_LONG),
    program(_a.grouped_query, lambda n: normal((n, 2, 2, 32), (n, 2, 32), (n, 2, 32)), **_LONG),
    program(
        _a.cross,
        lambda n: (*normal((min(512, n // 4), 16), (n, 16)), *weights(*3 * [(16, 16)])),
        640,
        fitting=4000,
        over=1_200_000,
    ),
    program(_a.block, block_arguments, 160, fitting=1000, over=12_000),
    program(_a.block_training_step, lambda n: (*block_arguments(n), *normal((n, 64))), 160, fitting=1000, over=12_000),
    program(
        _a.outer_product_mean,
        lambda n: (*normal((32, n, 16)), *weights((16, 32), (16, 32), (1024, 16))),
        16,
        fitting=64,
        over=800,
    ),
    program(
        _a.triangle_attention,
        lambda n: (*normal((n, n, 16)), *weights(*3 * [(16, 4, 8)], (16, 4))),
        12,
        fitting=64,
        over=520,
    ),
    program(_a.neighbourhood_attention, lambda n: normal(*4 * [(n, 16)]), 48, fitting=500, over=6200),
    program(_l.clip, lambda n: (*normal((n, 32), (n, 32)), number(1)), **{**_PAIRS, "tiny": 256}),
    program(_l.info_nce, lambda n: normal((n, 32), (n, 32), (n, 32)), **{**_PAIRS, "tiny": 256}),
    program(_l.linear_cross_entropy, vocabulary_arguments, 128, fitting=1000, over=20_000),
    program(_l.ranknet, lambda n: (*normal((n,)), *integers(5, (n,))), **_PAIRS),
    program(
        _l.cox_partial_likelihood, lambda n: (*normal((n, 8), (8,)), *uniform((n,)), np.ones(n, np.float32)), **_PAIRS
    ),
    program(
        _v.conv_net,
        lambda n: (*normal((1, n, n, 3)), weights((3, 3, 3, 32), (3, 3, 32, 32), (3, 3, 32, 3))),
        24,
        fitting=256,
        over=3072,
    ),
    program(_v.ray_triangles, lambda n: normal((n, 3), (n, 3), (n, 3, 3)), **_PAIRS),
    program(_v.ray_spheres, sphere_arguments, **_PAIRS),
    program(
        _v.volume_rendering,
        lambda n: (*normal((n, 3), (n, 3)), *weights((24, 64), (64, 4))),
        24,
        fitting=1000,
        over=140_000,
    ),
    program(_v.gaussian_splats, splat_arguments, 64, fitting=2000, over=24_000),
    program(_v.non_local_means, lambda n: normal((n, 9), (n,), scale=0.5), **_PAIRS),
    program(_v.box_overlaps, box_arguments, **_PAIRS),
    easy(_v.warp, lambda n: normal((n, n, 4), (n, n, 2)), 24, fitting=512),
    program(
        _r.graph_convolution,
        lambda n: (*normal((n, 32)), *integers(n, (32 * n,), (32 * n,)), *weights((32, 64))),
        32,
        fitting=2000,
        over=300_000,
    ),
    program(
        _r.graph_attention,
        lambda n: (
            *normal((n, 32)),
            *integers(n, (32 * n,)),
            np.tile(np.arange(n, dtype=np.int32), 32),
            *weights((32, 64), (64,), (64,)),
        ),
        32,
        fitting=2000,
        over=300_000,
    ),
    program(
        _r.continuous_filter,
        lambda n: (*normal((n, 3), (n, 32)), *weights((32, 32), (32, 32))),
        32,
        fitting=300,
        over=4500,
    ),
    program(
        _r.equivariant_layer,
        lambda n: (*normal((n, 3), (n, 16)), *weights((33, 32), (32, 1))),
        32,
        fitting=300,
        over=4500,
    ),
    program(
        _r.edge_network,
        lambda n: (*normal((n, 16), (4 * n, 4)), *integers(n, (4 * n,), (4 * n,)), *weights((4, 256))),
        32,
        fitting=2000,
        over=600_000,
    ),
    easy(_q.rnn, rnn_arguments, 16, fitting=500),
    program(_q.rnn_gradient, rnn_arguments, 16, fitting=500, over=36_000),
    program(
        _q.selective_scan,
        lambda n: normal((n, 64), (n, 64), (64, 32), (n, 32), (n, 32), scale=0.5),
        40,
        fitting=1000,
        over=290_000,
    ),
    program(_q.smith_waterman, lambda n: normal((n, 16), (n, 16)), 64, fitting=1000, over=24_000),
    easy(_q.viterbi, lambda n: normal((n, 32), (32, 32)), 40, fitting=4000),
    program(
        _q.embedding_bag,
        lambda n: (*normal((500, 64)), *integers(500, (n, 64)), *normal((n, 64))),
        16,
        fitting=1000,
        over=150_000,
    ),
    program(
        _q.bigram_scores, lambda n: (*normal((500, 64)), *integers(500, (n,), (n, 32))), 32, fitting=1000, over=300_000
    ),
    program(_q.einsum_chain, lambda n: weights((n, 64), (64, n), (n, 32), (32,)), **_PAIRS),
    program(_s.delay_and_sum, lambda n: normal((32, 2000), (32, 3), (n, 3)), 32, fitting=1000, over=300_000),
    program(
        _s.phased_power, lambda n: (*normal((32, 32), (32, 3), (n, 3)), number(3)), 96, fitting=4000, over=9_000_000
    ),
    program(_s.visibilities, lambda n: normal((n,), (n, 3), (n, 3)), **_PAIRS),
    program(_s.complex_visibilities, lambda n: normal((n,), (n, 3), (n, 3)), **_PAIRS),
    program(_s.fft_convolution, lambda n: normal((n, 128), (n, 128)), 16, fitting=100, over=1600),
    program(
        _s.spectrogram,
        lambda n: (*normal((n,)), np.hanning(min(512, n // 8)).astype(np.float32)),
        2048,
        fitting=50_000,
        over=36_000_000,
    ),
    program(
        _s.back_projection,
        lambda n: (*normal((180, 256)), ascending(180, 3.14), uniform((n, 2))[0] - 0.5),
        64,
        fitting=4000,
        over=3_200_000,
    ),
    program(_s.structure_factor, lambda n: normal((n, 3), (n, 3)), **_PAIRS),
    easy(_s.neural_operator, lambda n: (*normal((n, 256, 8)), *weights((16, 8, 8, 2))), 4, fitting=32),
    program(_c.kernel_density, lambda n: normal((n, 3), (n, 3)), **_PAIRS),
    # Its means are 10,000 times as large as what is left of them: one unit in their last place is 1e-3 of the result.
    program(_c.maximum_mean_discrepancy, lambda n: normal((n, 3), (n, 3)), **_PAIRS, tolerance=5e-3),
    program(_c.distance_correlation, lambda n: normal((n, 3), (n, 3)), **_PAIRS),
    program(_c.ripley_k, lambda n: (*uniform((n, 2)), ascending(20, 0.5)), 64, fitting=1000, over=24_000),
    program(
        _c.bootstrap_means, lambda n: (*normal((256, 16)), *integers(256, (n, 256))), 32, fitting=1000, over=150_000
    ),
    program(_c.kendall_tau, lambda n: normal((n,), (n,)), **_PAIRS),
    program(_j.jacobian, lambda n: (weights((32, 64), (64, 32)), *normal((n, 32))), 24, fitting=1000, over=300_000),
    program(_j.hessian_diagonal, lambda n: (*weights((n,)), *normal((32, n), (32,))), **_PAIRS),
    program(
        _j.example_norms,
        lambda n: (weights((64, 128), (128, 16)), *normal((n, 64), (n, 16))),
        16,
        fitting=500,
        over=60_000,
    ),
    program(_j.laplacian, lambda n: (weights((16, 64), (64, 1)), *normal((n, 16))), 24, fitting=1000, over=600_000),
    program(_j.kernel_gradient, lambda n: normal((n, 3), (n, 3), (n,)), **_PAIRS),
    easy(_o.mlp_step, lambda n: (layers(n, 64, 64, 8), *normal((n, n), (n, 8))), 24, fitting=512),
    easy(_o.layer_norm, lambda n: normal((n, 64), (64,), (64,)), 24, fitting=4096),
    easy(_o.batch_norm, lambda n: normal((4, n, n, 8), (8,), (8,)), 12, fitting=128),
    easy(_o.low_pass, lambda n: normal((n,)), 256, fitting=65_536),
    easy(_o.cholesky_solve, lambda n: normal((n, n), (n, 4)), 24, fitting=512),
    easy(_o.sort_pairs, lambda n: normal((n,), (n, 4)), 128, fitting=100_000),
    easy(_o.dropout, lambda n: (*normal((n, 64)), *weights((64, 32))), 24, fitting=4096),
    easy(_o.linear_regression, lambda n: normal((n, 16), (n,)), 64, fitting=50_000),
    easy(_o.qr_least_squares, lambda n: normal((n, 12), (n,)), 48, fitting=4096),
    easy(_o.kalman_filter, lambda n: normal((n,)), 40, fitting=2000),
    easy(_o.power_iteration, lambda n: normal((n, 64), (n,)), 32, fitting=1000),
    easy(
        _o.softmax_regression_step,
        lambda n: (*weights((32, 10)), *normal((n, 32)), *integers(10, (n,))),
        32,
        fitting=20_000,
    ),
    easy(_o.small_conv, lambda n: (*normal((2, n, n, 3)), *weights((5, 5, 3, 8)), *normal((8,))), 12, fitting=128),
    easy(_o.embedding_lookup, lambda n: (*normal((500, 64)), *integers(500, (4, n))), 32, fitting=2048),
    easy(_o.moving_average, lambda n: normal((n,)), 256, fitting=1_000_000),
    easy(_o.histogram, lambda n: uniform((n,), (n,)), 256, fitting=1_000_000),
    easy(
        _o.newton_step,
        lambda n: (*normal((16,), (n, 16), scale=0.3), integers(2, (n,))[0].astype(np.float32)),
        48,
        fitting=50_000,
    ),
    easy(_o.adam_update, adam_arguments, 24, fitting=1000),
    easy(_o.bilinear_resize, lambda n: normal((n, n, 3)), 16, fitting=512),
    easy(_o.lorenz, lambda n: normal((n, 3)), 32, fitting=100_000),
    easy(_o.heat_equation, lambda n: normal((n, n)), 24, fitting=512),
    easy(_o.lstm_cell, lambda n: (*normal((n, 32), (n, 32), (n, 32)), *weights((64, 128))), 16, fitting=4096),
    easy(
        _o.page_rank,
        lambda n: (*integers(n, (8 * n,)), integers(n, (8 * n,))[0][::-1].copy(), *uniform((n,))),
        32,
        fitting=20_000,
    ),
    easy(_o.bisection, lambda n: (np.zeros(n, np.float32), uniform((n,))[0] + np.float32(0.7)), 128, fitting=500_000),
]

ZOO: dict[str, ZooProgram] = {p.name: p for p in PROGRAMS}
