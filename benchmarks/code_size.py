"""How large TPUs' code is: the costs of `exla.ir.code`, and how well they foretell what they were not made from.

    python -m benchmarks.code_size [--target tpu:v5e] [--probe]

With `--probe`, programs of one operation each are compiled, and their code is kept in `benchmarks/results/`. From these
the costs start; they are moved, not far, to where they fit what `benchmarks.projection` keeps of the zoo. Errors are
those of tenths of the programs that the costs were not moved for. Costs aim at `AIM` times the code, the middle of what
is wanted of projections.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy.optimize import least_squares

from benchmarks import record
from benchmarks.projection import LEAST, MOST, stored
from exla.call import read
from exla.datasets.profiling.zoo.programs import ZOO
from exla.ir.code import KINDS
from exla.ir.memory import code_amounts
from exla.ir.program import Program
from exla.search.cost import storing_of
from exla.targets.base import compile_for, find_target

AIM = math.sqrt(LEAST * MOST)
FOLDS = 10
FREELY, HARDLY = 3.0, 0.7
"""How far costs may be from where they start, as a factor's logarithm: those of the probes, and those of the zoo."""
NOISE = 0.3
"""Errors beyond this, likewise, count less than their square."""
LEAST_WEIGHT = 0.03
"""Of a program whose code is next to nothing of what it takes."""
SQUARE = (4096, 4096)
PROBES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "nothing": (lambda x: x + 1, ((8, 8),)),
    "add": (lambda x: x + 1, (SQUARE,)),
    "polynomial": (lambda x: sum(x**k for k in range(2, 12)), (SQUARE,)),
    "exponentials": (lambda x: jnp.exp(jnp.exp(jnp.exp(jnp.exp(x)))), (SQUARE,)),
    "small_kernels": (lambda x: _softly(_softly(_softly(x))), ((128, 128),)),
    "kernels": (lambda x: _softly(_softly(_softly(x))), (SQUARE,)),
    "sine": (jnp.sin, (SQUARE,)),
    "power": (jnp.power, (SQUARE, SQUARE)),
    "rows": (lambda x: jnp.sum(x, axis=1), (SQUARE,)),
    "columns": (lambda x: jnp.sum(x, axis=0), (SQUARE,)),
    "differences": (lambda x, y: jnp.sum((x[:, None] - y[None]) ** 2, axis=-1), ((4096, 3), (4096, 3))),
    "kernel_sum": (
        lambda x, y: jnp.sum(jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)), axis=1),
        ((4096, 3),) * 2,
    ),
    "best": (lambda x: jnp.argmax(x, axis=1), (SQUARE,)),
    "thin_product": (jnp.matmul, ((4096, 64), (64, 4096))),
    "product": (jnp.matmul, (SQUARE, SQUARE)),
    "vector_product": (jnp.matmul, (SQUARE, (4096,))),
    "short_sorts": (lambda x: jnp.sort(x, axis=1), ((4096, 256),)),
    "sorts": (lambda x: jnp.sort(x, axis=1), (SQUARE,)),
    "long_sort": (jnp.sort, ((1_000_000,),)),
    "short_sums": (lambda x: jnp.cumsum(x, axis=1), ((4096, 256),)),
    "sums": (lambda x: jnp.cumsum(x, axis=1), (SQUARE,)),
    "short_transform": (lambda x: jnp.abs(jnp.fft.fft(x)), ((1024, 64),)),
    "transform": (lambda x: jnp.abs(jnp.fft.fft(x)), ((1024, 1024),)),
    "factor": (jnp.linalg.cholesky, ((256, 256),)),
    "large_factor": (jnp.linalg.cholesky, ((1024, 1024),)),
    "solve": (lambda x, y: lax.linalg.triangular_solve(x, y, left_side=True), ((512, 512), (512, 64))),
    "orthogonal": (lambda x: jnp.linalg.qr(x)[1], ((100_000, 16),)),
    "gather": (lambda x, i: x[i.astype(int)], ((40_960,), (4_000_000,))),
    "gather_rows": (lambda x, i: x[i.astype(int)], ((409_600, 128), (400_000,))),
    "scatter": (lambda x, i: jnp.zeros(4096).at[i.astype(int)].add(x), ((1_000_000,), (1_000_000,))),
    "scatter_rows": (lambda x, i: jnp.zeros((4096, 128)).at[i.astype(int)].add(x), ((400_000, 128), (400_000,))),
    "selection": (lambda x: lax.top_k(x, 5), (SQUARE,)),
    "convolution": (
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME"),
        ((8, 16, 64, 64), (16, 16, 3, 3)),
    ),
    "loop": (lambda x: lax.fori_loop(0, 10, lambda i, c: c * 2 + 1, x), (SQUARE,)),
}
"""Name -> (function, shapes of its float32 arguments)."""


def _softly(x: jax.Array) -> jax.Array:
    return jnp.exp(x - jnp.sum(x, axis=1)[:, None])


def probe(target_name: str) -> None:
    """Compile the programs of one operation, and keep a line for each."""
    target, results = find_target(target_name), record.open_results("code_size")
    for name, (function, shapes) in PROBES.items():
        structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        code = target.compiled_bytes(compile_for(target, function, structs, compiler_options={})).code
        results.append(target=target_name, compiler=target.fingerprint()["jaxlib"], program=name, code_bytes=code)
        print(f"{name}: {code / 1024:.0f} KiB", flush=True)


def probed(target_name: str) -> dict[str, int]:
    """Code of each of these programs by the last line that is kept of it."""
    lines = [line for file in sorted(record.RESULTS.glob("code_size-*")) for line in file.read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    return {row["program"]: row["code_bytes"] for row in rows if row["target"] == target_name}


def design(programs: Sequence[Program], target_name: str) -> np.ndarray:
    """How much of each kind (columns) each program (rows) has."""
    storing = storing_of(find_target(target_name).machine())
    found: list[Mapping[str, float]] = [code_amounts(program, storing) for program in programs]
    return np.array([[amounts.get(kind, 0.0) for kind in KINDS] for amounts in found], float)


def fit(amounts: np.ndarray, code: np.ndarray, weights: np.ndarray, start: np.ndarray, freedom: float) -> np.ndarray:
    """Costs by which the amounts give the code, within a factor of `e**freedom` or so of where they start."""

    def errors(logarithms: np.ndarray) -> np.ndarray:
        wrong = np.log(amounts @ np.exp(logarithms) / code) / NOISE
        robust = np.sqrt(2 * (np.sqrt(1 + wrong**2) - 1))
        return np.concatenate([weights * robust, (logarithms - np.log(start)) / freedom])

    return np.exp(least_squares(errors, np.log(start)).x)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="tpu:v5e", help="a TPU")
    parser.add_argument("--probe", action="store_true", help="compile the programs of one operation")
    options = parser.parse_args(argv)
    if options.probe:
        probe(options.target)
    single = probed(options.target)
    traced = [read(jax.make_jaxpr(f)(*(jnp.zeros(s) for s in shapes)), "tpu") for f, shapes in map(PROBES.get, single)]
    code = np.array(list(single.values()), float)
    start = fit(design(traced, options.target), code, np.ones(len(code)), np.full(len(KINDS), 5e4), FREELY)

    rows = [r for key, r in stored().items() if key[1] == options.target and key[3] == "plain" and "ratio" in r]
    amounts = design([_traced(row) for row in rows], options.target)
    code, compiled = (np.array([row[k] for row in rows], float) for k in ("code_bytes", "compiled_bytes"))
    weights = np.sqrt(np.clip(code / compiled, LEAST_WEIGHT, 1))
    costs = fit(amounts, AIM * code, weights, start, HARDLY)
    names = sorted({row["program"] for row in rows})
    fold = np.random.RandomState(0).permutation(len(names)) % FOLDS
    of_row = np.array([fold[names.index(row["program"])] for row in rows])
    foretold = np.zeros(len(rows))
    for one in range(FOLDS):
        kept = of_row != one
        foretold[~kept] = amounts[~kept] @ fit(amounts[kept], AIM * code[kept], weights[kept], start, HARDLY)
    print(
        "TPU = CodeCosts(",
        *(f"    {k}={v:.0f},  # starts at {s:.0f}" for k, v, s in zip(KINDS, costs, start, strict=True)),
        ")",
        sep="\n",
    )
    all_found = {"of programs left out": foretold, "of all": amounts @ costs, "at the start": AIM * amounts @ start}
    for title, found in all_found.items():
        errors = np.exp(np.abs(np.log(found / code / AIM)))
        print(f"errors {title}: {np.median(errors):.2f} times (median), {np.quantile(errors, 0.9):.2f} (nine in ten)")
    return 0


def _traced(row: Mapping[str, Any]) -> Program:
    program = ZOO[row["program"]]
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), program.arguments(row["size"]))
    return read(jax.make_jaxpr(program.function)(*structs), "tpu")


if __name__ == "__main__":
    sys.exit(main())
