"""What a long reduction in blocks takes on this CPU, beside the same reduction as XLA:CPU computes it.

    python -m benchmarks.reductions [--counts 4 8 16] [--shapes 64x1000:1 64x1000x3:1] [--rounds 9]
    python -m benchmarks.reductions --zoo [NAME...]

A chunk loop computes numbers of a shape from a vector for each trip and one for all, element by element, and reduces
them along the axis behind the colon, as `exla.ir.blocks.write` writes it: in so many blocks, or (0) as it is. All take
turns. YNNPACK fusions are off, as they are where exla splits. The numbers of `exla.ir.blocks` are from here.

`--zoo` compiles what exla chooses for the programs of the zoo at a quarter of their projected temporaries twice, with
long reductions in blocks and as they are.
"""

import argparse
import functools
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rich.table import Table

import exla
from benchmarks import record
from benchmarks.timing import alternate
from exla.datasets.profiling.zoo.programs import ZOO
from exla.ir.blocks import Block, blocks_in, write
from exla.ir.emit import emit
from exla.ir.program import Program
from exla.passes.decisions import CompileOption
from exla.passes.unless import EXPANSIONS

OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}
SHAPES = ("64x1000:1", "64x1024:1", "8x4000:1", "1000x64:0", "64x200:1", "500x64x16:1", "64x1000x3:1")
COUNTS = (4, 8, 16)
ELEMENTS = 10_000_000
"""That one run computes."""


def power(degree: int) -> Callable[[Any], Any]:
    """A polynomial, by Horner's rule: so many multiplications and additions."""

    def value(x: Any) -> Any:
        return functools.reduce(lambda y, k: y * x + np.float32(0.1 * k + 0.3), range(degree), x)

    return value


COMPUTED = {
    "difference": lambda x: x,
    "square": lambda x: x * x,
    "quotient": lambda x: 1 / (1 + x * x),
    "exponential": jnp.exp,
    "8 steps": power(4),
    "16 steps": power(8),
    "32 steps": power(16),
}
REDUCED = {"sum": jnp.sum, "max": jnp.max}


def written(reduce: Callable[..., Any], shape: tuple[int, ...], axis: int, count: int) -> Callable[[Any], Any]:
    """A reduction of numbers of a shape, in so many blocks."""
    if not count:
        return lambda x: reduce(x, axis=axis)
    jaxpr = jax.make_jaxpr(lambda x: reduce(x, axis=axis))(jax.ShapeDtypeStruct(shape, np.float32)).jaxpr
    eqn = jaxpr.eqns[0] if jaxpr.eqns[0].primitive.name != "jit" else jaxpr.eqns[0].params["jaxpr"].jaxpr.eqns[0]
    return lambda x: write(eqn, x, Block(axis, count))[0]


def compiled(shape: tuple[int, ...], axis: int, compute: Callable[[Any], Any], reduce: Callable[[Any], Any]) -> Any:
    """A loop that reduces numbers of a shape on each trip; a function of nothing."""
    trips = max(ELEMENTS // math.prod(shape), 1)
    each = [n if k != axis else 1 for k, n in enumerate(shape)]
    every = [n if k == axis or k > 1 else 1 for k, n in enumerate(shape)]
    numbers = np.random.default_rng(0)
    xs = numbers.normal(size=(trips, *each)).astype(np.float32)
    y = numbers.normal(size=every).astype(np.float32)
    run = jax.jit(lambda xs, y: lax.map(lambda x: reduce(compute(x - y)), xs))
    found = run.lower(xs, y).compile(compiler_options=OPTIONS)
    return functools.partial(found, jnp.asarray(xs), jnp.asarray(y))


def both(name: str) -> dict[str, Any]:
    """What is chosen for a program at a quarter of its temporaries, compiled with blocks and without."""
    program = ZOO[name]
    arguments = program.arguments(program.fitting)
    space = exla.jit(program.function, records="off").space(*arguments)
    peak = space.root.peak
    fixed = peak.arguments_bytes + peak.outputs_bytes
    limited = exla.jit(program.function, memory_limit=fixed + (peak.bytes - fixed) // 4, records="off")
    plan = limited.plan(*arguments)
    made = space.build(plan.decisions).program if plan.decisions else None
    if made is None or not blocks_in(made) and not any(map(blocks_in, _bodies(made))):
        return {}
    values = [*made.consts, *map(jnp.asarray, jax.tree.leaves(arguments))]
    options = {d.name: d.value for d in plan.decisions if isinstance(d, CompileOption)}
    compiled = {
        how: jax.jit(emit(made, EXPANSIONS, in_blocks=how == "blocks")).lower(*values).compile(compiler_options=options)
        for how in ("plain", "blocks")
    }
    return {how: functools.partial(run, *values) for how, run in compiled.items()}


def _bodies(program: Program) -> Iterator[Program]:
    """The bodies of a program's chunk loops, at any depth."""
    for eqn in program.eqns:
        if eqn.primitive.name == "exla_split":
            body = eqn.params["loop"].body
            yield body
            yield from _bodies(body)


def compare_zoo(names: Sequence[str], rounds: int, results: record.Results) -> Table:
    """Time what is chosen for programs of the zoo with blocks and without, where there are long reductions."""
    table = Table("program", "as it is", "in blocks", "ratio", title="milliseconds")
    ratios = []
    for name in names:
        try:
            rivals = both(name)
        except exla.MemoryLimitError:
            continue
        if not rivals:
            continue
        for run in rivals.values():
            jax.block_until_ready(run())
        seconds = {how: statistics.median(s) for how, s in alternate(rivals, rounds).items()}
        ratios.append(seconds["blocks"] / seconds["plain"])
        results.append(program=name, run_s=seconds)
        table.add_row(name, *(f"{seconds[how] * 1e3:.2f}" for how in ("plain", "blocks")), f"{ratios[-1]:.2f}")
    table.add_row("geometric mean", "", "", f"{statistics.geometric_mean(ratios):.3f}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="SHAPE:AXIS")
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS, metavar="N")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--zoo", nargs="*", metavar="NAME", help="programs of the zoo instead; all where none is named")
    arguments = parser.parse_args()
    results, console = record.open_results("reductions"), record.console()
    if arguments.zoo is not None:
        console.print(compare_zoo(arguments.zoo or sorted(ZOO), arguments.rounds, results))
        return 0
    counts = [0, *arguments.counts]
    table = Table("reduced", *("as it is" if not n else f"{n} blocks" for n in counts), title="milliseconds")
    for text in arguments.shapes:
        shape, axis = tuple(map(int, text.partition(":")[0].split("x"))), int(text.partition(":")[2])
        for name, compute in COMPUTED.items():
            for how, reduce in REDUCED.items():
                fitting = [n for n in counts if not n or shape[axis] % n == 0]
                rivals = {str(n): compiled(shape, axis, compute, written(reduce, shape, axis, n)) for n in fitting}
                for run in rivals.values():
                    jax.block_until_ready(run())
                seconds = alternate(rivals, arguments.rounds)
                median = {n: statistics.median(seconds[str(n)]) for n in fitting}
                results.append(shape=text, computed=name, reduced=how, run_s={str(n): s for n, s in median.items()})
                cells = (f"{median[n] * 1e3:.2f}" if n in median else "" for n in counts)
                table.add_row(f"{how} of {name}, {text}", *cells)
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
