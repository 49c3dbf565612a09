"""Do the rewrites pay? Against jax.jit, the same rewrite written by hand, and scikit-learn; and do they save memory?

    python -m benchmarks.algebra [--rounds 5] [--parts kernel neighbours contractions]

**kernel**: exp(-|x - y|^2 / 2) @ v of 20,000 points of 16 dimensions under 64 MiB, against `jax.jit` and against the
matrix product and chunk loop written by hand, at the best of five chunk sizes, with and without the compiler option
that exla sets. All take turns in one process.

**neighbours**: the 10 nearest of 20,000 for 20,000 (d = 16), and of 2,000 for 100,000 (d = 10 and 100), against
scikit-learn's brute force, taking turns. The neighbours of 1,000 rows are compared with float64 NumPy.

**contractions**: products whose order decides, each planned with twice its arguments and results as the limit and run
in a fresh process, whose growth is measured.
"""

import argparse
import functools
import statistics
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from benchmarks import isolate, record
from benchmarks.isolate import MIB
from benchmarks.timing import alternate, seconds_of

FUSIONS_OFF = {"xla_cpu_experimental_ynn_fusion_type": ""}
CHUNKS = (20, 50, 100, 200, 400)
NEIGHBOURS = ((20_000, 20_000, 16), (100_000, 2_000, 10), (100_000, 2_000, 100))
COUNT = 10
CHECKED_ROWS = 1_000


def kernel_product(x, y, v):
    squared = jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)
    return jnp.exp(-squared / 2) @ v


def kernel_by_hand(chunk: int) -> Callable[..., Any]:
    """The rewrite and the chunk loop as an expert writes them."""

    def product(x, y, v):
        centre = jnp.mean(y, axis=0)
        x, y = x - centre, y - centre
        norms = jnp.sum(y * y, axis=1)

        def rows(some):
            squared = jnp.sum(some * some, axis=1)[:, None] + norms - 2 * some @ y.T
            return jnp.exp(-jnp.maximum(squared, 0) / 2) @ v

        return jax.lax.map(rows, x.reshape(-1, chunk, x.shape[1])).reshape(-1)

    return product


def nearest(x, y):
    squared = jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)
    values, indices = jax.lax.top_k(-squared, COUNT)
    return -values, indices


def quadratic_diagonal(k, q):
    return jnp.diag(k @ q @ k.T)


CONTRACTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "(A.T B) v, 64 x 50,000": (lambda a, b, v: (a.T @ b) @ v, ((64, 50_000), (64, 50_000), (50_000,))),
    "outer product times vector, 50,000": (lambda u, v, w: jnp.outer(u, v) @ w, ((50_000,), (50_000,), (50_000,))),
    "vmap of multi_dot, 10 x 20,000 x 20,000 over 500": (
        lambda a, b, v: jax.vmap(lambda r: jnp.linalg.multi_dot([a, b, r]))(v),
        ((10, 20_000), (20_000, 20_000), (500, 20_000)),
    ),
    "diag(K Q K.T), K 50,000 x 500": (quadratic_diagonal, ((50_000, 500), (500, 500))),
}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def measure_kernel(rounds: int) -> dict[str, Any]:
    """Medians of exla, jax.jit and the best hand-written versions; call it in a fresh process."""
    import exla

    n, d = 20_000, 16
    arguments = [jnp.asarray(a) for a in (normal(n, d), normal(n, d, seed=1), normal(n, seed=2))]
    f = exla.jit(kernel_product, memory_limit="64MiB")
    plan = f.plan(*arguments)
    rivals: dict[str, Callable[[], Any]] = {
        "exla": functools.partial(f, *arguments),
        "jax": functools.partial(jax.jit(kernel_product), *arguments),
    }
    best = {}
    for label, options in (("hand", None), ("hand_option", FUSIONS_OFF)):
        hands = {
            chunk: functools.partial(
                jax.jit(kernel_by_hand(chunk), compiler_options=options).lower(*arguments).compile(), *arguments
            )
            for chunk in CHUNKS
        }
        screened = {chunk: min(seconds_of(run) for _ in range(2)) for chunk, run in hands.items()}
        best[label] = min(screened, key=screened.__getitem__)
        rivals[label] = hands[best[label]]
    alternate(rivals, rounds=1)
    seconds = alternate(rivals, rounds=rounds)
    wide = [np.asarray(a, np.float64) for a in arguments]
    rows = wide[0][:200]
    want = np.exp(-np.square(rows[:, None] - wide[1]).sum(2) / 2) @ wide[2]
    error = float(np.max(np.abs(np.asarray(f(*arguments))[:200] - want)) / np.max(np.abs(want)))
    return {
        "seconds": seconds,
        "median_s": {name: statistics.median(s) for name, s in seconds.items()},
        "best_chunk": best,
        "decisions": [str(d) for d in plan.decisions],
        "compiled_bytes": plan.compiled_bytes,
        "error": error,
    }


def measure_neighbours(n: int, m: int, d: int, rounds: int) -> dict[str, Any]:
    """Medians of exla and scikit-learn, and how many neighbours are wrong; call it in a fresh process."""
    from sklearn.neighbors import NearestNeighbors

    import exla

    x, y = normal(n, d), normal(m, d, seed=1)
    arguments = [jnp.asarray(x), jnp.asarray(y)]
    f = exla.jit(nearest, memory_limit="128MiB")
    plan = f.plan(*arguments)
    brute = NearestNeighbors(n_neighbors=COUNT, algorithm="brute").fit(y)
    rivals = {"exla": functools.partial(f, *arguments), "sklearn": functools.partial(brute.kneighbors, x)}
    alternate(rivals, rounds=1)
    seconds = alternate(rivals, rounds=rounds)
    _, indices = f(*arguments)
    checked = np.random.default_rng(3).choice(n, CHECKED_ROWS, replace=False)
    wrong = 0
    for row in checked:
        exact = np.square(x[row].astype(np.float64) - y.astype(np.float64)).sum(1)
        wrong += int(np.sum(np.argsort(exact, kind="stable")[:COUNT] != np.asarray(indices)[row]))
    return {
        "seconds": seconds,
        "median_s": {name: statistics.median(s) for name, s in seconds.items()},
        "decisions": [str(d) for d in plan.decisions],
        "compiled_bytes": plan.compiled_bytes,
        "wrong_neighbours": wrong,
        "checked_rows": CHECKED_ROWS,
    }


def measure_contraction(name: str) -> dict[str, Any]:
    """Growth of this process while one contraction runs; call it in a fresh process."""
    import exla

    fn, shapes = CONTRACTIONS[name]
    arguments = jax.block_until_ready([jax.random.normal(jax.random.key(k), shape) for k, shape in enumerate(shapes)])
    results = jax.eval_shape(fn, *arguments)
    fixed = sum(a.nbytes for a in arguments) + results.size * results.dtype.itemsize
    f = exla.jit(fn, memory_limit=2 * fixed)
    plan = f.plan(*arguments)
    _, grown = isolate.growth(lambda: f(*arguments))
    return {
        "fixed_bytes": fixed,
        "compiled_bytes": plan.compiled_bytes,
        "plain_bytes": None if plan.plain is None else plan.plain.total - plan.plain.unaccounted,
        "growth_bytes": grown.growth_bytes,
        "decisions": [str(d) for d in plan.decisions],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parts = ("kernel", "neighbours", "contractions")
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    arguments = parser.parse_args()
    results = record.open_results("algebra")
    table = Table(
        "what", "exla / jax.jit", "exla / by hand", "exla / scikit-learn", "peak / (arguments + results)", "notes"
    )
    failed = False

    def call(function: str, **given: Any) -> dict[str, Any]:
        return isolate.call(f"benchmarks.algebra:{function}", timeout_s=1800, **given)

    if "kernel" in arguments.parts:
        found = call("measure_kernel", rounds=arguments.rounds)
        results.append(kind="kernel", **found)
        s = found["median_s"]
        hand = f"{s['exla'] / s['hand']:.2f}, {s['exla'] / s['hand_option']:.2f} with the option"
        table.add_row("kernel product", f"{s['exla'] / s['jax']:.3f}", hand, "", "", f"error {found['error']:.1e}")
        failed |= found["error"] > 1e-4
    for n, m, d in NEIGHBOURS if "neighbours" in arguments.parts else ():
        found = call("measure_neighbours", n=n, m=m, d=d, rounds=arguments.rounds)
        results.append(kind="neighbours", n=n, m=m, d=d, **found)
        s = found["median_s"]
        wrong = f"{found['wrong_neighbours']} wrong neighbours of {CHECKED_ROWS} rows"
        table.add_row(f"{COUNT} nearest, {n} x {m}, d = {d}", "", "", f"{s['exla'] / s['sklearn']:.2f}", "", wrong)
        failed |= found["wrong_neighbours"] > 0
    for name in CONTRACTIONS if "contractions" in arguments.parts else ():
        found = call("measure_contraction", name=name)
        results.append(kind="contraction", program=name, **found)
        share = found["compiled_bytes"] / found["fixed_bytes"]
        grown = f"grows {found['growth_bytes'] / MIB:.1f} MiB"
        table.add_row(name, "", "", "", f"{share:.2f}", grown)
        failed |= share > 2
    record.console().print(table)
    print(f"results in {results.path}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
