"""The eight programs at their natural sizes: the plain function, its inputs, its hand-written rival and its check.

The Gaussian kernel product comes twice, with points of dimension 3 and 16: one program, two entries.

>>> from benchmarks.programs import BENCHMARKS
>>> program = BENCHMARKS["nbody"]
>>> arguments = program.arguments(seed=0)
>>> outputs = jax.jit(program.by_hand(64))(*arguments)
>>> program.sample_check(arguments, outputs) < program.tolerance
True

Nothing here measures time or memory: see `benchmarks.isolate` and `benchmarks.caps`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks import by_hand, checks, plain


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One program, its inputs, its hand-written rival and its check.

    Attributes:
      name: the key in `BENCHMARKS`.
      function: the plain program.
      arguments: `seed=` -> tuple of float32 NumPy arrays.
      by_hand: chunk -> a function of the same arguments that holds only `chunk` rows of the big array at once.
      chunks: the five chunk sizes that a person would try, spread evenly on a log scale.
      sample_check: (arguments, outputs) -> largest relative error on a random sample against float64 NumPy.
      tolerance: the largest error that float32 and another order of summation explain.
    """

    name: str
    function: Callable[..., Any]
    arguments: Callable[..., tuple[np.ndarray, ...]]
    by_hand: Callable[[int], Callable[..., Any]]
    chunks: tuple[int, int, int, int, int]
    sample_check: Callable[[tuple[np.ndarray, ...], Any], float]
    tolerance: float


def _normal(*shapes: tuple[int, ...], seed: int) -> tuple[np.ndarray, ...]:
    generator = np.random.default_rng(seed)
    return tuple(generator.standard_normal(shape, dtype=np.float32) for shape in shapes)


def _uniform(*shapes: tuple[int, ...], seed: int) -> tuple[np.ndarray, ...]:
    generator = np.random.default_rng(seed)
    return tuple(generator.random(shape, dtype=np.float32) for shape in shapes)


def _kernel_product_arguments(seed: int, *, dimension: int) -> tuple[np.ndarray, ...]:
    x, y = _normal((20_000, dimension), (20_000, dimension), seed=seed)
    (v,) = _uniform((20_000,), seed=seed)
    return x, y, v


def _nbody_arguments(seed: int) -> tuple[np.ndarray, ...]:
    (positions,) = _normal((20_000, 3), seed=seed)
    (masses,) = _uniform((20_000,), seed=seed)
    return positions, masses


def _sinkhorn_arguments(seed: int) -> tuple[np.ndarray, ...]:
    x, y, b = _uniform((16_384, 30), (8_192, 30), (8_192,), seed=seed)
    (g,) = _normal((8_192,), seed=seed)
    return x, y, np.log((b + 0.1) / np.sum(b + 0.1)), np.float32(0.1) * g


_ROW_CHUNKS = (16, 64, 256, 1024, 4096)

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        *(
            Benchmark(
                name=f"kernel-d{dimension}",
                function=plain.kernel_product,
                arguments=partial(_kernel_product_arguments, dimension=dimension),
                by_hand=by_hand.kernel_product,
                chunks=_ROW_CHUNKS,
                sample_check=checks.kernel_product,
                tolerance=2e-4,
            )
            for dimension in (3, 16)
        ),
        Benchmark(
            name="knn",
            function=plain.nearest_neighbours,
            arguments=partial(_normal, (20_000, 16), (20_000, 16)),
            by_hand=by_hand.nearest_neighbours,
            chunks=_ROW_CHUNKS,
            sample_check=checks.nearest_neighbours,
            tolerance=1e-4,
        ),
        Benchmark(
            name="nbody",
            function=plain.nbody_forces,
            arguments=_nbody_arguments,
            by_hand=by_hand.nbody_forces,
            chunks=_ROW_CHUNKS,
            sample_check=checks.nbody_forces,
            tolerance=1e-3,
        ),
        Benchmark(
            name="sinkhorn",
            function=plain.sinkhorn_half_step,
            arguments=_sinkhorn_arguments,
            by_hand=by_hand.sinkhorn_half_step,
            chunks=_ROW_CHUNKS,
            sample_check=checks.sinkhorn_half_step,
            tolerance=1e-4,
        ),
        Benchmark(
            name="attention",
            function=plain.attention,
            arguments=partial(_normal, (8_192, 8, 64), (8_192, 8, 64), (8_192, 8, 64)),
            by_hand=by_hand.attention,
            chunks=(8, 32, 128, 512, 2048),
            sample_check=checks.attention,
            tolerance=1e-3,
        ),
        Benchmark(
            name="sgpr",
            function=plain.sgpr,
            arguments=partial(_normal, (1_000, 8), (200_000, 8), (200_000,)),
            by_hand=by_hand.sgpr,
            chunks=(100, 500, 2_500, 12_500, 50_000),
            sample_check=checks.sgpr,
            tolerance=1e-3,
        ),
        Benchmark(
            name="cosine",
            function=plain.cosine_top5,
            arguments=partial(_normal, (5_000, 64), (500_000, 64)),
            by_hand=by_hand.cosine_top5,
            chunks=(4, 16, 64, 256, 1024),
            sample_check=checks.cosine_top5,
            tolerance=1e-4,
        ),
    )
}
