"""Gradients under a cap: forward and backward pass planned together, measured in a fresh process.

    python -m benchmarks.gradients [--programs kernel-sum,attention]

Seven programs whose plain gradients need 2 to 150 GB: the sum of a Gaussian kernel product of 100,000 x 100,000,
attention over 16,384 positions, cross-entropy from hidden states over 65,536 classes, the SGPR bound of 200,000 points
in float64, the Chamfer distance of two clouds of 30,000 points, the contrastive loss of 16,384 pairs, and a recurrent
network over 200 steps of 16,384 series. Each is planned with `memory_limit` = cap + arguments + outputs and run once;
growth of the process and a sample of the values against float64 NumPy are kept. Exits with 1 when one exceeded its cap,
was refused or is wrong.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import isolate, plain, record
from benchmarks.checks import relative_error
from benchmarks.isolate import MIB

SLACK_BYTES = 8 * MIB
SAMPLE = np.random.default_rng(0).choice(8_192, 16, replace=False)


def kernel_sum(x, y, v):
    return jnp.sum(plain.kernel_product(x, y, v))


def attention_loss(query, key, value):
    return jnp.sum(plain.attention(query, key, value) ** 2) / 2


def cross_entropy(hidden, weights, targets):
    """Mean negative log likelihood of a softmax over `hidden @ weights.T` (as in any language model)."""
    logits = hidden @ weights.T
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), targets[:, None], axis=1))


def sgpr_bound(inducing, x, y, lengths, variance, noise):
    """The collapsed bound of Titsias (AISTATS 2009), as GPflow's SGPR computes it, negated."""

    def kernel(a, b):
        return variance * jnp.exp(-jnp.sum(((a[:, None] - b[None]) / lengths) ** 2, axis=-1) / 2)

    count, size = x.shape[0], inducing.shape[0]
    lower = jnp.linalg.cholesky(kernel(inducing, inducing) + 1e-6 * jnp.eye(size))
    a = jax.scipy.linalg.solve_triangular(lower, kernel(inducing, x), lower=True) / jnp.sqrt(noise)
    lower_b = jnp.linalg.cholesky(a @ a.T + jnp.eye(size))
    c = jax.scipy.linalg.solve_triangular(lower_b, a @ y, lower=True) / jnp.sqrt(noise)
    fit = 0.5 * jnp.sum(y**2) / noise - 0.5 * jnp.sum(c**2)
    logs = 0.5 * count * jnp.log(2 * jnp.pi * noise) + jnp.sum(jnp.log(jnp.diag(lower_b)))
    return logs + fit + 0.5 * (count * variance / noise - jnp.sum(a**2))


def chamfer(x, y):
    """The Chamfer distance (Fan, Su and Guibas, CVPR 2017), as PyTorch3D and TensorFlow Graphics compute it."""
    squared = jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)
    return jnp.mean(jnp.min(squared, axis=1)) + jnp.mean(jnp.min(squared, axis=0))


def contrastive(images, texts):
    """The loss of CLIP (Radford et al., ICML 2021) by labels, at a temperature of 0.1, as optax has it."""
    logits, labels = 10 * images @ texts.T, jnp.arange(len(images))
    each = optax.softmax_cross_entropy_with_integer_labels
    return (jnp.mean(each(logits, labels)) + jnp.mean(each(logits.T, labels))) / 2


def recurrent(weights, inputs, rows):
    """A recurrent network (Elman, 1990) over (steps, series, numbers), and the mean square of what it ends with."""

    def step(hidden, row):
        return jnp.tanh(hidden @ weights + row @ inputs), None

    first = jnp.zeros((rows.shape[1], len(weights)), rows.dtype)
    return jnp.mean(jax.lax.scan(step, first, rows)[0] ** 2)


def _check_kernel_sum(arrays, outputs) -> float:
    x, y, v = (np.asarray(a, np.float64) for a in arrays)
    difference = x[SAMPLE][:, None] - y[None]
    weight = np.exp(-np.sum(difference**2, axis=-1) / 2) * v
    return relative_error(np.asarray(outputs[0])[SAMPLE], -np.einsum("ij,ijd->id", weight, difference))


def _check_attention(arrays, outputs) -> float:
    query, key, value = (np.asarray(a, np.float64)[:, 0] for a in arrays)
    scores = query[SAMPLE] @ key.T / np.sqrt(query.shape[-1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    upstream = (weights @ value) @ value.T
    slope = weights * (upstream - np.sum(weights * upstream, axis=1, keepdims=True))
    return relative_error(np.asarray(outputs[0])[SAMPLE, 0], slope @ key / np.sqrt(query.shape[-1]))


def _check_cross_entropy(arrays, outputs) -> float:
    hidden, weights = (np.asarray(a, np.float64) for a in arrays[:2])
    logits = hidden[SAMPLE] @ weights.T
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(SAMPLE)), arrays[2][SAMPLE]] -= 1
    return relative_error(np.asarray(outputs[0])[SAMPLE], chances @ weights / len(hidden))


def _check_sgpr(arrays, outputs) -> float:
    """The value, and its slope in the noise by central differences, by NumPy."""
    import scipy.linalg

    inducing, x, y, lengths, variance, _ = arrays

    def kernel(a, b):
        a, b = a / lengths, b / lengths
        squared = np.sum(a**2, 1)[:, None] + np.sum(b**2, 1) - 2 * a @ b.T
        return variance * np.exp(-np.maximum(squared, 0) / 2)

    lower = np.linalg.cholesky(kernel(inducing, inducing) + 1e-6 * np.eye(len(inducing)))
    half = scipy.linalg.solve_triangular(lower, kernel(inducing, x), lower=True)
    gram, projected = half @ half.T, half @ y

    def bound(noise):
        lower_b = np.linalg.cholesky(gram / noise + np.eye(len(gram)))
        c = scipy.linalg.solve_triangular(lower_b, projected, lower=True) / noise
        logs = 0.5 * len(x) * np.log(2 * np.pi * noise) + np.sum(np.log(np.diag(lower_b)))
        fit = 0.5 * np.sum(y**2) / noise - 0.5 * np.sum(c**2)
        return logs + fit + 0.5 * (len(x) * variance - np.trace(gram)) / noise

    noise, step = float(arrays[-1]), 1e-5
    want = [bound(noise), (bound(noise + step) - bound(noise - step)) / (2 * step)]
    return max(abs(float(g) - w) / abs(w) for g, w in zip((outputs[0], outputs[1][-1]), want, strict=True))


def _check_chamfer(arrays, outputs) -> float:
    from scipy.spatial import cKDTree

    x, y = (np.asarray(a, np.float64) for a in arrays)
    for_x, for_y = cKDTree(y).query(x)[1], cKDTree(x).query(y)[1]
    to_y, to_x = 2 * (x - y[for_x]) / len(x), 2 * (y - x[for_y]) / len(y)
    slopes = [to_y.copy(), to_x.copy()]
    np.add.at(slopes[0], for_y, -to_x)
    np.add.at(slopes[1], for_x, -to_y)
    return max(relative_error(np.asarray(got), want) for got, want in zip(outputs, slopes, strict=True))


def _check_contrastive(arrays, outputs) -> float:
    images, texts = (np.asarray(a, np.float64) for a in arrays)
    heights = 0.0
    for rows in np.split(images, 32):
        heights += np.exp(10 * rows @ texts.T).sum(axis=0)
    weights = np.exp(10 * images[SAMPLE] @ texts.T)
    slope = weights / weights.sum(axis=1, keepdims=True) + weights / heights
    slope[np.arange(len(SAMPLE)), SAMPLE] -= 2
    return relative_error(np.asarray(outputs[0])[SAMPLE], 5 * slope @ texts / len(images))


def _check_recurrent(arrays, outputs) -> float:
    """Back through time, over a part of the series after the other."""
    weights, inputs, rows = (np.asarray(a, np.float64) for a in arrays)
    by_weights, by_inputs = np.zeros_like(weights), np.zeros_like(inputs)
    for part in np.split(rows, 16, axis=1):
        hidden = [np.zeros((part.shape[1], len(weights)))]
        for row in part:
            hidden.append(np.tanh(hidden[-1] @ weights + row @ inputs))
        slope = 2 * hidden[-1] / (rows.shape[1] * len(weights))
        for row, before, after in zip(part[::-1], hidden[-2::-1], hidden[:0:-1], strict=True):
            slope = slope * (1 - after**2)
            by_weights += before.T @ slope
            by_inputs += row.T @ slope
            slope = slope @ weights.T
    return max(relative_error(np.asarray(g), w) for g, w in zip(outputs, (by_weights, by_inputs), strict=True))


def _normal(*shapes, dtype: Any = np.float32) -> tuple[np.ndarray, ...]:
    generator = np.random.default_rng(0)
    return tuple(generator.standard_normal(shape).astype(dtype) for shape in shapes)


def _cross_entropy_arguments():
    hidden, weights = _normal((8_192, 512), (65_536, 512))
    return hidden / 20, weights, np.random.default_rng(1).integers(0, 65_536, 8_192).astype(np.int32)


def _sgpr_arguments():
    inducing, x, y = _normal((500, 8), (200_000, 8), (200_000,), dtype=np.float64)
    return inducing, x, y, np.full(8, 2.0), np.float64(1.0), np.float64(0.1)


def _recurrent_arguments():
    weights, inputs, rows = _normal((64, 64), (8, 64), (200, 16_384, 8))
    return weights / 10, inputs / 10, rows


Arguments = Callable[[], tuple[Any, ...]]
PROGRAMS: dict[str, tuple[Callable[..., Any], Arguments, Callable[..., float], int, float]] = {
    "kernel-sum": (
        jax.grad(kernel_sum, argnums=(0, 1, 2)),
        lambda: _normal((100_000, 3), (100_000, 3), (100_000,)),
        _check_kernel_sum,
        256,
        1e-3,
    ),
    "attention": (
        jax.grad(attention_loss, argnums=(0, 1, 2)),
        lambda: _normal(*[(16_384, 8, 64)] * 3),
        _check_attention,
        512,
        1e-3,
    ),
    "cross-entropy": (
        jax.grad(cross_entropy, argnums=(0, 1)),
        _cross_entropy_arguments,
        _check_cross_entropy,
        768,
        1e-3,
    ),
    "sgpr": (jax.value_and_grad(sgpr_bound, argnums=(0, 3, 4, 5)), _sgpr_arguments, _check_sgpr, 512, 1e-4),
    "chamfer": (
        jax.grad(chamfer, argnums=(0, 1)),
        lambda: _normal((30_000, 3), (30_000, 3)),
        _check_chamfer,
        64,
        1e-3,
    ),
    "contrastive": (
        jax.grad(contrastive, argnums=(0, 1)),
        lambda: tuple(a / 10 for a in _normal((16_384, 128), (16_384, 128))),
        _check_contrastive,
        64,
        1e-3,
    ),
    "recurrent": (jax.grad(recurrent, argnums=(0, 1)), _recurrent_arguments, _check_recurrent, 64, 1e-3),
}
"""Name -> (function, arguments, check, cap in MiB, tolerance)."""


def measure(program: str) -> dict[str, Any]:
    """Plans and runs one gradient under its cap; call it in a fresh process."""
    import exla

    function, make, check, cap_mib, tolerance = PROGRAMS[program]
    jax.config.update("jax_enable_x64", program == "sgpr")
    arrays = make()
    arguments = jax.block_until_ready([jax.device_put(a) for a in arrays])
    sizes = [
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
        for tree in (arguments, jax.eval_shape(function, *arguments))
    ]
    f = exla.jit(function, memory_limit=cap_mib * MIB + sum(sizes))
    try:
        plan = f.plan(*arguments)
    except exla.MemoryLimitError as error:
        return {"status": "refused", "cap_mib": cap_mib, "message": str(error)}
    start = time.perf_counter()
    outputs, grown = isolate.growth(lambda: f(*arguments))
    run_s = time.perf_counter() - start
    error = check(arrays, outputs)
    exceeded = grown.growth_bytes > cap_mib * MIB + sizes[1] + SLACK_BYTES
    return {
        "status": "wrong" if not error <= tolerance else "exceeded" if exceeded else "ok",
        "cap_mib": cap_mib,
        "growth_bytes": grown.growth_bytes,
        "argument_bytes": sizes[0],
        "output_bytes": sizes[1],
        "compiled_bytes": plan.compiled_bytes,
        "plain_bytes": plan.plain.total - plan.plain.unaccounted if plan.plain else None,
        "error": error,
        "run_s": run_s,
        "decisions": [str(decision) for decision in plan.decisions],
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gradients")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="comma-separated")
    results = record.open_results("gradients")
    failed = False
    for program in parser.parse_args(argv).programs.split(","):
        try:
            fields = isolate.call("benchmarks.gradients:measure", timeout_s=1800, program=program)
        except isolate.ChildError as error:
            print(error, file=sys.stderr)
            fields = {"status": "failed", "message": str(error).strip().splitlines()[-1]}
        results.append(program=program, **fields)
        failed |= fields["status"] != "ok"
        shown = {k: f"{v / MIB:.0f} MiB" for k, v in fields.items() if k.endswith("_bytes") and v is not None}
        print(f"{program}: {fields['status']} {shown} {fields.get('run_s', 0):.1f} s, error {fields.get('error')}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
