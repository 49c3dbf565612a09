"""Networks and steps whose layers are written out, under a share of what `jax.jit` takes for its temporaries.

    python -m benchmarks.networks [--names transformer residual_grad] [--shares 0.5 0.25] [--size 1]

What a Python loop over layers makes is one long program in which everything is there as often as there are layers, and
no `lax.scan` says that they are alike. Each network is planned in a fresh process under its arguments, its results and
a share of the plain program's temporaries, runs in turns with `jax.jit`, and both are held against the program in
float64. `--size` is of what grows: tokens, nodes, images. `benchmarks.gpu_session` does the same on a card, at size 4.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import exla
from benchmarks import isolate, record
from benchmarks.checks import error_of
from benchmarks.timing import medians
from tests.zoo.test_zoo import in_float64

SHARES = (0.5, 0.25)
SECONDS = 4.0
"""For the turns of one network."""
TIMEOUT_S = 240


@dataclass(frozen=True, kw_only=True)
class Network:
    """One network.

    Attributes:
      function: what is run, of a list of weights and of its data.
      weights: shapes of the weights of each layer, float32.
      data: the arrays it is given, float32 but for what is made of booleans, for a size of 1, 2, ...
    """

    function: Callable[..., Any]
    weights: list[tuple[tuple[int, ...], ...]]
    data: Callable[[np.random.Generator, int], tuple[Any, ...]]

    def arguments(self, size: int) -> tuple[Any, ...]:
        generator = np.random.default_rng(0)
        drawn = [tuple(_normal(generator, *shape) for shape in layer) for layer in self.weights]
        return drawn, *self.data(generator, size)


def _normal(generator: np.random.Generator, *shape: int) -> np.ndarray:
    return (0.1 * generator.standard_normal(shape)).astype(np.float32)


def _layer_norm(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def _heads(x: jax.Array) -> jax.Array:
    """(..., tokens, 128) -> (..., 4, tokens, 32)"""
    return jnp.moveaxis(x.reshape(*x.shape[:-1], 4, 32), -2, -3)


def transformer(weights: Any, x: jax.Array) -> jax.Array:
    """(..., tokens, 128) -> the same"""
    for project, mix, widen, narrow in weights:
        q, k, v = map(_heads, jnp.split(_layer_norm(x) @ project, 3, -1))
        attended = jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / 32**0.5, -1) @ v
        x = x + jnp.moveaxis(attended, -3, -2).reshape(x.shape) @ mix
        x = x + jax.nn.gelu(_layer_norm(x) @ widen) @ narrow
    return x


def graph_attention(weights: Any, x: jax.Array, edges: jax.Array) -> jax.Array:
    """(nodes, 64), (nodes, nodes) -> (nodes, 64)"""
    for weight, to, of in weights:
        z = x @ weight
        scores = jax.nn.leaky_relu((z @ to)[:, None] + (z @ of)[None, :])
        x = x + jax.nn.elu(jax.nn.softmax(jnp.where(edges, scores, -1e9), -1) @ z)
    return x


def _convolved(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def residual(weights: Any, x: jax.Array) -> jax.Array:
    """Images (n, h, w, 16), with the statistics of the whole batch in every layer -> (n, 16)"""
    for (kernel,) in weights:
        y = _convolved(jax.nn.relu(x), kernel)
        mean, variance = y.mean((0, 1, 2)), y.var((0, 1, 2))
        x = x + (y - mean) * lax.rsqrt(variance + 1e-5)
    return x.mean((1, 2))


def plain_residual(weights: Any, x: jax.Array) -> jax.Array:
    """Images (n, h, w, 16) -> (n, 16)"""
    for (kernel,) in weights:
        x = x + _convolved(jax.nn.relu(x), kernel)
    return x.mean((1, 2))


def dense(weights: Any, x: jax.Array) -> jax.Array:
    """(n, 64) -> (n, 64 + 32 layers), each layer of all that was before it"""
    for (weight,) in weights:
        x = jnp.concatenate([x, jax.nn.gelu(x @ weight)], -1)
    return x


def gated(weights: Any, steps: jax.Array) -> jax.Array:
    """A gated unit, (steps, n, 64) -> (n, 64)"""
    (update, reset, candidate) = weights[0]
    state = jnp.zeros(steps.shape[1:], steps.dtype)
    for x in steps:
        both = jnp.concatenate([x, state], -1)
        keep, forget = jax.nn.sigmoid(both @ update), jax.nn.sigmoid(both @ reset)
        state = keep * state + (1 - keep) * jnp.tanh(jnp.concatenate([x, forget * state], -1) @ candidate)
    return state


def leapfrog(_: Any, x: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Six steps of bodies that attract each other, (n, 3), (n, 3) -> the same"""
    for _step in range(6):
        apart = x[:, None] - x[None]
        distance = jnp.sqrt((apart**2).sum(-1) + 1e-2)
        v = v - 0.01 * (apart / distance[..., None] ** 3).sum(1)
        x = x + 0.01 * v
    return x, v


def sinkhorn(_: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Ten rounds between points and themselves, (n, 3) -> (n,), (n,)"""
    costs = ((x[:, None] - x[None]) ** 2).sum(-1) / 0.1
    f = g = jnp.zeros(len(x), x.dtype)
    for _round in range(10):
        f = -jax.nn.logsumexp(g[None] - costs, axis=1)
        g = -jax.nn.logsumexp(f[:, None] - costs, axis=0)
    return f, g


def gradient_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The loss, a sum of squares, and its gradient with respect to the weights."""
    return jax.value_and_grad(lambda weights, *data: jnp.sum(function(weights, *data) ** 2))


_BLOCK = ((128, 384), (128, 128), (128, 512), (512, 128))
_ATTENTION = ((64, 64), (64,), (64,))
_IMAGES = ((3, 3, 16, 16),)


def _graph(nodes: int) -> Callable[[np.random.Generator, int], tuple[Any, ...]]:
    return lambda g, size: (_normal(g, nodes * size, 64), g.random((nodes * size, nodes * size)) < 0.01)


NETWORKS: dict[str, Network] = {
    "transformer": Network(
        function=transformer, weights=[_BLOCK] * 12, data=lambda g, size: (_normal(g, 2048 * size, 128),)
    ),
    "transformer_grad": Network(
        function=gradient_of(transformer), weights=[_BLOCK] * 4, data=lambda g, size: (_normal(g, 4 * size, 512, 128),)
    ),
    "graph_attention": Network(function=graph_attention, weights=[_ATTENTION] * 6, data=_graph(3000)),
    "graph_attention_grad": Network(function=gradient_of(graph_attention), weights=[_ATTENTION] * 6, data=_graph(2000)),
    "residual": Network(
        function=residual, weights=[_IMAGES] * 10, data=lambda g, size: (_normal(g, 32 * size, 64, 64, 16),)
    ),
    "residual_grad": Network(
        function=gradient_of(residual), weights=[_IMAGES] * 6, data=lambda g, size: (_normal(g, 32 * size, 64, 64, 16),)
    ),
    "plain_residual": Network(
        function=plain_residual, weights=[_IMAGES] * 8, data=lambda g, size: (_normal(g, 4 * size, 128, 128, 16),)
    ),
    "plain_residual_grad": Network(
        function=gradient_of(plain_residual),
        weights=[_IMAGES] * 8,
        data=lambda g, size: (_normal(g, 32 * size, 64, 64, 16),),
    ),
    "dense_grad": Network(
        function=gradient_of(dense),
        weights=[((64 + 32 * layer, 32),) for layer in range(8)],
        data=lambda g, size: (_normal(g, 20_000 * size, 64),),
    ),
    "gated_grad": Network(
        function=gradient_of(gated),
        weights=[((128, 64), (128, 64), (128, 64))],
        data=lambda g, size: (_normal(g, 10, 4_000 * size, 64),),
    ),
    "leapfrog": Network(
        function=leapfrog, weights=[], data=lambda g, size: (_normal(g, 3000 * size, 3), _normal(g, 3000 * size, 3))
    ),
    "sinkhorn": Network(function=sinkhorn, weights=[], data=lambda g, size: (_normal(g, 1500 * size, 3),)),
}


def planned(network: str, share: float, size: int = 1) -> tuple[dict[str, Any], Any, Any]:
    """Plan one network on the default device.

    Args:
      network: one of `NETWORKS`.
      share: of the temporaries of `jax.jit`, that are allowed beside arguments and results.
      size: of what grows.

    Returns:
      what is to be said of it, the network under the limit (None where that is refused), and under `jax.jit`.
    """
    function, arguments = NETWORKS[network].function, NETWORKS[network].arguments(size)
    plain = jax.jit(function)
    asked = plain.lower(*arguments).compile().memory_analysis()
    around, temporaries = asked.argument_size_in_bytes + asked.output_size_in_bytes, asked.temp_size_in_bytes
    limit = around + int(share * temporaries)
    row: dict[str, Any] = {"size": size, "share": share, "limit_bytes": limit, "temp_bytes": temporaries}
    split = exla.jit(function, memory_limit=limit, records="off")
    begin = time.perf_counter()
    try:
        plan = split.plan(*arguments)
    except exla.MemoryLimitError as refusal:
        row |= {"status": "refused", "planning_s": time.perf_counter() - begin, "message": str(refusal)}
        return row, None, plain
    row |= {"planning_s": time.perf_counter() - begin, "projected_bytes": plan.projected_bytes}
    return row | {"compiled_bytes": plan.compiled_bytes, "decisions": list(plan.words)}, split, plain


def errors(network: str, size: int, results: Mapping[str, Any]) -> dict[str, float]:
    """The largest error of each of the results, against the network in float64."""
    wanted = in_float64(NETWORKS[network].function, NETWORKS[network].arguments(size))
    return {name: error_of(jax.tree.map(np.asarray, got), wanted) for name, got in results.items()}


def measure(network: str, share: float, size: int) -> dict[str, Any]:
    """Plan and time one network on the default device; call it in a fresh process."""
    row, split, plain = planned(network, share, size)
    if split is None:
        return row
    there = jax.device_put(NETWORKS[network].arguments(size))
    runs = {"exla": lambda: split(*there), "jax": lambda: plain(*there)}
    row["error"] = errors(network, size, {name: run() for name, run in runs.items()})
    median, rounds = medians(runs, SECONDS)
    return {**row, "status": "ok", "median_s": median, "ratio": median["exla"] / median["jax"], "rounds": rounds}


def _said(row: dict[str, Any]) -> str:
    if "ratio" not in row:
        return f"{row['status']}: {row['message'].splitlines()[0]}"
    of = " and ".join(f"{error:.1e}" for error in row["error"].values())
    return f"{row['ratio']:.2f} of the time, planned in {row['planning_s']:.1f} s, errors {of}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES, help="of what jax.jit takes")
    parser.add_argument("--size", type=int, default=1)
    options = parser.parse_args()
    results = record.open_results("networks")
    for name in options.names:
        for share in options.shares:
            asked = {"network": name, "share": share, "size": options.size}
            try:
                row = isolate.call("benchmarks.networks:measure", timeout_s=TIMEOUT_S, **asked)
            except isolate.ChildError as error:
                row = {**asked, "status": "failed", "message": str(error)}
            results.append(**{"network": name, **row})
            print(f"{name:22s} at {share:5.3f}: {_said(row)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
