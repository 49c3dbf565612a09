"""What is projected against what the compilers count: the stored table, and a few programs compiled here and now."""

import jax
import jax.numpy as jnp
import pytest

import exla
from benchmarks.projection import LEAST, MEGABYTES, MOST, TARGETS, side_of, stored
from exla.call import read
from exla.datasets.profiling.zoo.programs import ZOO
from exla.ir.emit import emit
from exla.passes.unless import EXPANSIONS, unless_p
from exla.search.cost import projected, work_of
from exla.targets.base import TARGETS as REGISTERED
from exla.targets.base import compile_for
from tests.sweep import all_but
from tests.targets.installed import compiler_of

ROWS = {key: row for key, row in stored().items() if key[3] == "plain" and "ratio" in row}
needs_table = pytest.mark.skipif(
    not ROWS, reason="no table is stored for this Python and JAX: python -m benchmarks.projection"
)

INSIDE = {
    ("tpu:v5e", 64.0): (0.73, 0.91),
    ("tpu:v5e", 512.0): (0.84, 0.88),
    ("gpu:h200", 64.0): (0.85, 0.86),
    ("gpu:h200", 512.0): (0.93, 0.94),
    ("cpu", 64.0): (0.95, 0.95),
    ("cpu", 512.0): (0.96, 0.96),
}
"""The least share of the programs that are projected within the bounds, and of those that are but for 4 MiB.

What fits on a TPU's chip takes its arguments and its code alone, which is foretold within a factor of 1.4 for half of
the programs.
"""

BELOW = {
    "tpu:v5e": {
        "a comparison is stored before it is broadcast": "radial_distribution",
        "the layout of a product of several batches, for which its softmax is stored twice": "triangle_attention",
        "layouts that convolutions, transforms and gathers ask for, and copies into them": "back_projection conv_net "
        "small_conv spectrogram warp",
        "copies of a square matrix in another order, for the layout of one fusion": "power_iteration tsne_gradient",
        "what an associative scan interleaves is stored on every level": "selective_scan",
        "kept in the device's memory though there was room on the chip": "cox_partial_likelihood volume_rendering",
        "copies of slightly different sizes, none of which takes another's place": "gaussian_splats",
        "not understood": "neural_operator sliced_wasserstein",
    },
    "gpu:h200": {
        "half of the first pass of a reduction, which is cut elsewhere": "cox_partial_likelihood ranknet",
        "a fusion with several results stores what a reduction reads": "lennard_jones_forces",
        "the operand of a transposed or cut product is stored twice": "neural_operator sgpr_gradient",
        "scratch of the library that multiplies complex matrices": "phased_power",
        "not understood": "sliced_wasserstein",
    },
    "cpu": {
        "what is joined along the last axis is stored, and what is sliced for that": "heat_equation",
        "what an associative scan interleaves is stored on every level": "selective_scan",
        "what LAPACK solves lies by columns, and again by rows for what else reads it": "sgpr_gradient",
    },
}
"""Target -> reason -> the programs whose projection is too low by more than 4 MiB at one size or both.

The reasons were read off the optimised HLO of some of each group; of the rest they are taken to be the same.
"""


def named_below(target):
    return {name for names in BELOW[target].values() for name in names.split()}


@needs_table
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("megabytes", MEGABYTES)
def test_most_projections_are_near_the_compilers_figure(target, megabytes):
    rows = [row for key, row in ROWS.items() if key[1:3] == (target, megabytes)]
    assert len(rows) >= 0.85 * len(ZOO)
    strictly, nearly = INSIDE[target, megabytes]
    assert sum(LEAST <= row["ratio"] <= MOST for row in rows) / len(rows) >= strictly
    assert sum(side_of(row) == 0 for row in rows) / len(rows) >= nearly


@needs_table
@pytest.mark.parametrize("target", BELOW)
def test_no_projection_is_too_low_but_those_that_are_named(target):
    assert {key[0] for key, row in ROWS.items() if key[1] == target and side_of(row) < 0} == named_below(target)


def kernel_product(x, y, v):
    return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)) @ v


def attention(q, k, v):
    return jax.nn.softmax(q @ k.T / 8, axis=-1) @ v


def forces(x):
    """The coefficient of each pair is stored before it meets the three coordinates."""
    difference = x[:, None] - x[None]
    squares = jnp.sum(difference**2, axis=-1) + 0.01
    return jnp.sum((squares**-1.5)[..., None] * difference, axis=1)


def one_sided(x, y):
    """Squared distances that one reduction reads are never stored by a GPU."""
    return jnp.sum(jnp.min(jnp.sum((x[:, None] - y[None]) ** 2, axis=-1), axis=1))


def products(a, b, c):
    """One product of another, which a TPU does not store."""
    return jnp.sum(jnp.maximum(a @ b, 0) @ c)


def both_sums(x, y):
    """XLA:CPU stores both matrices before it sums one."""
    difference = x[:, None] - y[None]
    return jnp.sum(jnp.exp(difference)) / jnp.sum(jnp.tanh(difference))


def log_sum(x, y):
    """What the maximum wants stored is computed again for the exponential."""
    return jax.nn.logsumexp(-jnp.sum((x[:, None] - y[None]) ** 2, axis=-1) / 2 + 1, axis=1)


def outer_products(a, b):
    """Products that sum nothing are computed by what reads them."""
    return jnp.sum(jnp.einsum("ni,nj->nij", a, b)[:, ::2] ** 2, axis=(1, 2))


def sums_so_far(x):
    """What a sum over the first so many is made of lies beside it."""
    sums = jnp.cumsum(x)
    return (sums[16:] - sums[:-16]) / 16


def turned(x):
    """A result has its memory before it is computed."""
    return jnp.transpose(jnp.sort(jnp.tanh(x), axis=0))


def nearby(table, x, y):
    """A GPU computes the indices of a gather as it goes."""
    return jnp.sum(table[jnp.clip(jnp.round(x[:, None] * y[None]), 0, 99).astype(int)], axis=1)


def gram(x):
    """Products multiply what is transposed as it lies."""
    return x.T @ x


def ranks(x):
    """A GPU reduces what is longer than a block of threads in two passes, and stores the first one's results."""
    return jnp.sum((x[:, None] > x[None]).astype(jnp.float32), axis=1)


def lengths(x, y):
    """The root that two sums over the same indices read is computed in the one fusion that both are."""
    root = jnp.sqrt(x[:, None] ** 2 + y[None] ** 2)
    return jnp.sum(root * x[:, None], axis=1), jnp.sum(root * y[None], axis=1)


def extremes(x, y):
    """A TPU reads a matrix for the last time where it is reduced, not where what is reduced is written down."""
    first, second = (jnp.sum((p[:, None] - p[None]) ** 2, axis=-1) for p in (x, y))
    return [
        jnp.min(first + 1, axis=0),
        jnp.max(2 * first, axis=1),
        jnp.min(second + 1, axis=0),
        jnp.max(second, axis=1),
    ]


def weights(x):
    """A GPU's softmax is written to memory of its own."""
    return jax.nn.softmax(x @ x.T, axis=1) @ x


def halved(x):
    """What a loop makes of its state element by element takes its place."""

    def turn(step, bounds):
        low, high = bounds
        middle = (low + high) / 2
        return jnp.where(middle**2 < x, middle, low), jnp.where(middle**2 < x, high, middle)

    return jax.lax.fori_loop(0, 20, turn, (jnp.zeros_like(x), jnp.maximum(x, 1)))


def normalised(x):
    """A TPU computes exponentials again for each of two sums that wait for each other."""
    powers = jnp.exp(x)
    return jnp.sum(powers / jnp.sum(powers, axis=1, keepdims=True), axis=0)


def noisy(x):
    """A TPU draws random numbers again for each sum."""
    noise = jax.random.normal(jax.random.key(0), x.shape)
    return jnp.sum(noise * x, axis=0) + jnp.sum(noise + x, axis=1)


def rows(table, x):
    """A TPU gathers whole rows, however short, of a table that fits on the chip."""
    return jnp.sum(jnp.sin(table[jnp.clip(x, 0, 999).astype(int)]), axis=0)


def columns(table, x):
    """And the columns of one that does not."""
    return jnp.sum(jnp.sin(table[jnp.clip(x, 0, 999).astype(int)]), axis=0)


def short_rows(start, steps):
    """What a TPU's loop reads and stacks row by row has its rows whole, and is copied."""
    return jax.lax.scan(lambda state, step: (jnp.tanh(state + step), state * step), start, steps)


def whole_rows(start, steps):
    """What is stacked as the result lies is the result."""
    return jax.lax.scan(lambda state, step: (jnp.tanh(state + step), state * step), start, steps)[1]


def all_sums(x):
    """A TPU sums cumulatively in rows of 128."""
    return jnp.cumsum(x)


def spectra(x):
    """A TPU computes both parts of the whole spectrum of real numbers."""
    return jnp.sum(jnp.abs(jnp.fft.rfft(x)), axis=0)


def symmetric(x):
    """A TPU turns a copy of what one fusion reads in both directions."""
    products = x @ (2 * x[::-1]).T
    return jnp.sum(products + products.T, axis=1)


def channel_weights(a, b, c):
    """A TPU stores what a softmax of values with three axes is computed from."""
    return jnp.sum(jax.nn.softmax(a[:, None] - b[None], axis=1) * c[None], axis=1)


def neighbours(x):
    """A TPU stores what it joins, and joins it again for every reader."""
    before, after = jnp.concatenate([x[:1], x[:-1]]), jnp.concatenate([x[1:], x[-1:]])
    return jnp.sum((before + after - 2 * x) ** 2, axis=1)


def first_of_softmax(x, y):
    """A TPU stores what it slices where another fusion reads all of it."""
    return jax.nn.log_softmax(x @ y)[:, 0]


def pairs(a, b):
    """A TPU lays what it takes every other row of with its rows whole, and stores it."""
    waves = jnp.exp(a[:, :, None] * b[:, None])
    return jnp.sum(waves[::2] * waves[1::2], axis=2)


def messages(x, w, u):
    """A TPU computes a product once for sums over two of its axes."""
    edges = jnp.tanh((x[:, None] * x[None]) @ w)
    return jnp.sum(edges, axis=1), edges @ u


def phases(a, x):
    """A TPU computes the operands of complex products where it multiplies them."""
    waves = jnp.exp(1j * x) / (1 + x)
    return jnp.abs(jnp.sum(waves * (jnp.conj(waves) @ a), axis=1))


def ties(x, y):
    """Where the smallest are is stored when it is counted."""

    def nearest(x):
        squares = jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)
        return jnp.sum(jnp.min(squares, axis=0)) + jnp.sum(jnp.min(squares, axis=1))

    return jax.grad(nearest)(x)


def exact(x, y, v):
    """A TPU stores a product in higher precision for another product only, in bfloat16 where that is computed in it."""
    return jnp.abs(jnp.matmul(x, y.T, precision="high")) @ v


def average(x, v):
    """A GPU stores weights that sums of more than three numbers are in twice: for the product that it cuts, padded."""
    powers = kernel(x)
    return powers @ v / jnp.sum(powers, axis=1)


def kernel(x):
    return jnp.exp(-jnp.sum((x[:, None] - x[None]) ** 2, axis=-1))


def phasors(x, v):
    """A GPU sums products of complex numbers and a vector as it computes them."""
    return jnp.exp(1j * (x @ x.T)) @ v.astype(complex)


def jacobian(w, x):
    """A GPU writes what it splits padded at once."""
    return jax.jacfwd(lambda x: w @ x)(x)


def potential(x, m):
    """A GPU stores what two sums read where computing it for both takes longer than to write and read it."""
    distances = jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, axis=-1) + 1)
    return jnp.sum(m * jnp.exp(-distances), axis=1), jnp.sum(distances < 2, axis=1)


def extents(x):
    """And computes it again where that takes less."""
    distances = jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, axis=-1) + 1)
    return jnp.sum(distances, axis=1), jnp.max(distances, axis=1)


def residuals(x, w):
    """XLA:CPU computes no sum again in what waits for something stored that another of its readers leads to."""
    for _ in range(6):
        x += jax.nn.relu(x) @ w
    return jnp.sum(x, axis=1)


def sums_apart(x, y, w):
    """Here no reader of a sum waits for another, and none is stored."""
    sums = [x + y, x - y, x * y, x / (1 + y**2), jnp.maximum(x, y)]
    return sum(sums) @ w, sum(map(jnp.abs, sums)) @ w


N = 7001
PROGRAMS = {
    "kernel_product": (kernel_product, ((N, 3), (N, 3), (N,))),
    "attention": (attention, ((N, 64), (N, 64), (N, 64))),
    "forces": (forces, ((N, 3),)),
    "one_sided": (one_sided, ((N, 3), (N, 3))),
    "products": (products, ((60_000, 64), (64, 1024), (1024, 8))),
    "both_sums": (both_sums, ((N,), (N,))),
    "log_sum": (log_sum, ((N, 3), (N, 3))),
    "outer_products": (outer_products, ((N, 64), (N, 128))),
    "sums_so_far": (sums_so_far, ((20_000_009,),)),
    "turned": (turned, ((N, N),)),
    "nearby": (nearby, ((100,), (N,), (N,))),
    "gram": (gram, ((2**21, 16),)),
    "extremes": (extremes, ((N, 3), (N, 3))),
    "ranks": (ranks, ((40_000,),)),
    "lengths": (lengths, ((N,), (N,))),
    "weights": (weights, ((2048, 64),)),
    "halved": (halved, ((30_000_000,),)),
    "normalised": (normalised, ((N, N),)),
    "noisy": (noisy, ((N, N),)),
    "rows": (rows, ((1000, 16), (1_000_000,))),
    "columns": (columns, ((4_000_000, 8), (3_000_000,))),
    "short_rows": (short_rows, ((16,), (1_000_000, 16))),
    "whole_rows": (whole_rows, ((128,), (500_000, 128))),
    "all_sums": (all_sums, ((60_000_000,),)),
    "spectra": (spectra, ((65_536, 512),)),
    "symmetric": (symmetric, ((N, 64),)),
    "channel_weights": (channel_weights, ((2600, 16), (2600, 16), (2600, 16))),
    "neighbours": (neighbours, ((N, N),)),
    "first_of_softmax": (first_of_softmax, ((N, 32), (32, N))),
    "pairs": (pairs, ((20_000, 64), (20_000, 32))),
    "messages": (messages, ((1500, 16), (16, 32), (32,))),
    "phases": (phases, ((32, 32), (650_000, 32))),
    "ties": (ties, ((12_000, 3), (12_000, 3))),
    "average": (average, ((3733, 5), (3733,))),
    "phasors": (phasors, ((N, 3), (N,))),
    "jacobian": (jacobian, ((32, N), (N,))),
    "exact": (exact, ((9000, 16), (9000, 16), (9000, 4))),
    "potential": (potential, ((N, 3), (N,))),
    "extents": (extents, ((N, 3),)),
    "residuals": (residuals, ((20_000, 256), (256, 256))),
    "sums_apart": (sums_apart, ((N, 1000), (N, 1000), (1000,))),
}
"""Name -> (function, shapes of its float32 arguments), large enough for what is projected not to fit on a chip."""
LIVE = {
    "tpu:v5e": (
        *("kernel_product", "attention", "forces", "one_sided", "products", "lengths", "extremes", "halved"),
        *("normalised", "noisy", "rows", "columns", "short_rows", "whole_rows", "all_sums", "spectra"),
        *("symmetric", "channel_weights"),
        *("neighbours", "first_of_softmax", "pairs"),
        *("messages", "phases"),
        "ties",
        "exact",
    ),
    "gpu:h200": (
        *("kernel_product", "attention", "forces", "one_sided", "products"),
        *("nearby", "gram", "ranks", "weights", "halved", "noisy"),
        *("average", "phasors", "jacobian", "potential", "extents"),
    ),
    "gpu:a100-40": ("potential", "extents"),
    "gpu:h100": ("potential", "extents"),
    "cpu": (
        *("kernel_product", "attention", "forces", "one_sided", "products"),
        *("both_sums", "log_sum", "outer_products", "sums_so_far", "turned"),
        *("residuals", "sums_apart"),
    ),
}


SLOW = [("tpu:v5e", name) for name in ("noisy", "spectra", "all_sums")]
"""They take the TPU's compiler a quarter of a minute or more each."""


@pytest.mark.parametrize(
    "case", all_but(SLOW, [(target, name) for target, names in LIVE.items() for name in names]), ids="-".join
)
def test_what_is_projected_is_what_the_compiler_counts(case):
    target, name = case
    found = REGISTERED.get(target)
    if target != "cpu":
        compiler_of(target)
    function, shapes = PROGRAMS[name]
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    program = read(jax.make_jaxpr(function)(*structs), found.platform)
    options = found.option_sets(work_of(program, found.machine()), found.usable_bytes())[-1]
    counted = found.compiled_bytes(compile_for(found, function, structs, compiler_options=options)).total
    peak = projected(program, found.machine())
    assert LEAST <= peak.bytes / counted <= MOST, f"{peak.bytes / counted:.2f} is not within [{LEAST}, {MOST}]"


def test_a_fallback_that_is_asked_for_where_it_stands_stores_what_it_chooses_between():
    compiler_of("tpu:v5e")
    found = REGISTERED.get("tpu:v5e")
    x = jax.ShapeDtypeStruct((N, 3), jnp.float32)

    def otherwise(safe, cheap, x):
        return jnp.where(safe, cheap, jnp.sum((x[:, None] - x[None]) ** 2, axis=-1))

    def function(x):
        operands = jnp.all(x > 0, axis=1, keepdims=True), x @ x.T, x
        (chosen,) = unless_p.bind(*operands, otherwise=jax.make_jaxpr(otherwise)(*operands))
        return jnp.sum(chosen, axis=1)

    program = read(jax.make_jaxpr(function)(x), found.platform)
    compiled = compile_for(found, emit(program, EXPANSIONS), [x], compiler_options={})
    ratio = projected(program, found.machine()).bytes / found.compiled_bytes(compiled).total
    assert LEAST <= ratio <= MOST, f"{ratio:.2f}"


@pytest.mark.parametrize("target", ["tpu:v5e", "gpu:h200"])
def test_a_loop_that_falls_back_stores_what_its_original_equations_reduce_to(target):
    compiler_of(target)
    found = REGISTERED.get(target)
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((100_000, 16), (100_000, 16), (100_000,))]
    space = exla.jit(kernel_product, target=target, memory_limit="600MiB", records="off").space(*structs)
    seed = next(iter(space.offers(space.rewritten)))
    program = space.cut(space.rewritten, seed, 512).program
    compiled = compile_for(found, emit(program, EXPANSIONS), structs, compiler_options={})
    counted = found.compiled_bytes(compiled).total
    ratio = projected(program, found.machine()).bytes / counted
    assert LEAST <= ratio <= MOST, f"{ratio:.2f}"
    assert counted > 4 * 512 * 100_000  # what the cheap way never stores
