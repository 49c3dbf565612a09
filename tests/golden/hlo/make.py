"""Make the golden files anew: `python -m tests.golden.hlo.make [NAME ...]`.

Releases of JAX lower the same program differently, so that the modules are kept, and the graphs are of them. A change
of the graphs alone (`--graphs`) is one of the featuriser: it breaks every trained model, and needs a reason.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from exla.cost_model.features import featurize
from exla.cost_model.hlo import read_module

HERE = Path(__file__).parent


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def kernel_product(x, y, v):
    return jnp.exp(-jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)) @ v


def attention(q, k, v):
    with jax.named_scope("scores"):
        scores = jnp.where(jnp.tri(16, dtype=bool), q @ k.T / 4, -jnp.inf)
    return jax.nn.softmax(scores) @ v


def convolution(x, w):
    def convolve(w):
        return jax.lax.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    return convolve(w), jax.grad(lambda w: jnp.sum(convolve(w) ** 2))(w)


def scan(x, ys):
    return jax.lax.scan(lambda c, y: (jnp.tanh(c @ y), c.sum()), x, ys)


def sort(x):
    return jnp.sort(x, axis=0), jax.lax.top_k(x, 3), jnp.argmax(x)


def cholesky(a, b):
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), b)


def gather(x, i):
    return x.at[i].add(x[i[::-1]]), jax.lax.dynamic_slice(x, (i[0], 0), (3, 2)), jnp.pad(x, ((1, 2), (0, 3)))


def fft(x):
    return jnp.fft.irfft(jnp.fft.rfft(x) * 2j)


def reduce_window(x):
    pooled = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    return jnp.cumsum(pooled, axis=1), jax.grad(lambda x: jax.nn.relu(x).sum())(x)


def cond(x, n):
    loop = jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 1.5), (0, x))
    return jax.lax.cond(n > 3, jnp.sin, lambda x: x.astype(jnp.bfloat16).astype(x.dtype), loop[1])


PROGRAMS = {
    "kernel_product": (kernel_product, array(40, 3), array(30, 3), array(30)),
    "attention": (attention, array(16, 8), array(16, 8), array(16, 8)),
    "convolution": (convolution, array(2, 8, 9, 3), array(3, 3, 3, 4)),
    "scan": (scan, array(4, 4), array(5, 4, 4)),
    "sort": (sort, array(6, 5)),
    "cholesky": (cholesky, array(4, 4), array(4, 2)),
    "gather": (gather, array(7, 5), array(4, dtype=jnp.int32)),
    "fft": (fft, array(3, 16)),
    "reduce_window": (reduce_window, array(2, 9, 8, 3)),
    "cond": (cond, array(4), array(dtype=jnp.int32)),
}
"""Name -> a program, and the shapes of its arguments. Of the first three the optimised module is kept too."""
OPTIMISED = tuple(PROGRAMS)[:3]


def lower(name):
    """Name of file -> bytes of a module."""
    function, *arguments = PROGRAMS[name]
    lowered = jax.jit(function).lower(*arguments)
    modules = {name: lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()}
    if name in OPTIMISED:
        optimised = lowered.compile().runtime_executable().hlo_modules()[0]
        modules[f"{name}_optimised"] = optimised.as_serialized_hlo_module_proto()
    return modules


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--graphs", action="store_true", help="of the modules that are there")
    arguments = parser.parse_args()
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*")  # no paths of this machine
    if not arguments.graphs:
        for name in arguments.names:
            for file, data in lower(name).items():
                (HERE / f"{file}.hlo.pb").write_bytes(data)
    for path in sorted(HERE.glob("*.hlo.pb")):
        if path.name.split(".")[0].removesuffix("_optimised") in arguments.names:
            graph = path.with_name(path.name.replace(".hlo.pb", ".npz"))
            np.savez_compressed(graph, **featurize(read_module(path)).arrays())


if __name__ == "__main__":
    main()
