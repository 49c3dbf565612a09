"""Programs far too big for a card, compiled for it under a hard cap by its own compiler, on a machine without the card.

    python -m benchmarks.targets [--targets tpu:v5e,gpu:h200] [--programs attention,chamfer] [--again]

The eight programs of `benchmarks.plain` at sizes whose intermediates take 15 GiB and more, their gradients, and ten
programs of the zoo. For each, in a process of its own: what the plain program takes by the compiler's word (or why it
refuses it), and the program under a cap of 1/64 of that: compiled and counted, or refused with reasons. A line is kept
for each in `benchmarks/results/`; what is there already is not done again without `--again`.

Nothing runs on any card. Figures are buffer assignments: arguments + outputs + temporaries + code - aliased.
"""

import argparse
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.progress import track
from rich.table import Table

from benchmarks import plain, record
from exla.units import format_bytes

SHARE = 64
TARGETS = ("tpu:v5e", "tpu:v6e", "gpu:a100-40", "gpu:h200")
TIMEOUT_S = 420
_ROOT = Path(__file__).resolve().parent.parent

LARGE: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "kernel-d3": (plain.kernel_product, ((100_000, 3), (100_000, 3), (100_000,))),
    "kernel-d16": (plain.kernel_product, ((100_000, 16), (100_000, 16), (100_000,))),
    "knn": (plain.nearest_neighbours, ((100_000, 16), (100_000, 16))),
    "nbody": (plain.nbody_forces, ((100_000, 3), (100_000,))),
    "sinkhorn": (plain.sinkhorn_half_step, ((131_072, 30), (65_536, 30), (65_536,), (65_536,))),
    "attention": (plain.attention, ((32_768, 8, 64),) * 3),
    "sgpr": (plain.sgpr, ((1_000, 8), (5_000_000, 8), (5_000_000,))),
    "cosine": (plain.cosine_top5, ((10_000, 64), (1_000_000, 64))),
}
"""Name -> (function, shapes of its float32 arguments)."""
FROM_ZOO = (
    *("matern_product", "chamfer", "lennard_jones_forces", "kmeans_step", "causal", "linear_cross_entropy"),
    *("gaussian_splats", "maximum_mean_discrepancy", "visibilities", "outer_product_mean"),
)


def _sum_of(function: Callable[..., Any], *arguments: Any) -> Any:
    outputs = jax.tree.leaves(function(*arguments))
    return sum(jnp.sum(o) for o in outputs if jnp.issubdtype(o.dtype, jnp.floating))


def programs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Name -> (function, its arguments as ShapeDtypeStructs)."""
    from exla.datasets.profiling.zoo.programs import ZOO

    found: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
    for name, (function, shapes) in LARGE.items():
        structs = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
        gradient = jax.grad(functools.partial(_sum_of, function), argnums=tuple(range(len(shapes))))
        found[name] = (function, structs)
        found[f"grad of {name}"] = (gradient, structs)
    for name in FROM_ZOO:
        arrays = ZOO[name].arguments(ZOO[name].over)
        structs = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arrays)
        found[name] = (ZOO[name].function, structs)
    return found


def measure(name: str, target_name: str) -> dict[str, Any]:
    """One program for one target; call it in a fresh process."""
    return compiled(name, target_name)[0]


def compiled(name: str, target_name: str) -> tuple[dict[str, Any], Any, Any]:
    """One program for one target: what is said of it, and it as exla and as `jax.jit` compiled it, None where not."""
    import exla
    from exla.targets.base import compile_for, find_target

    target = find_target(target_name)
    function, structs = programs()[name]
    flat, tree = jax.tree.flatten(structs)
    fixed = sum(x.size * x.dtype.itemsize for x in [*flat, *jax.tree.leaves(jax.eval_shape(function, *structs))])
    row: dict[str, Any] = {"target_device": target.fingerprint()["device"], "compiler": target.fingerprint()["jaxlib"]}
    plainly = None
    try:
        plainly = compile_for(target, lambda *a: function(*jax.tree.unflatten(tree, a)), flat, compiler_options={})
        needed = target.compiled_bytes(plainly).total
        row |= {"plain": "compiles", "plain_bytes": needed}
    except jax.errors.JaxRuntimeError as error:
        needed = target.needed_bytes(error)
        if needed is None:
            raise
        row |= {"plain": "out of memory", "plain_bytes": needed, "plain_error": str(error).partition("\n")[0]}
    needed += fixed if row["plain"] == "out of memory" else 0  # the message speaks of temporaries alone
    row |= {"usable_bytes": target.usable_bytes(), "fixed_bytes": fixed, "cap_bytes": needed // SHARE}
    start = time.perf_counter()
    try:
        split = exla.compile(function, structs, target=target_name, memory_limit=needed // SHARE, records="off")
    except exla.MemoryLimitError as refusal:
        row |= {"status": "refused", "smallest_bytes": refusal.smallest_peak_bytes, "message": str(refusal)}
        return {**row, "plan_s": time.perf_counter() - start}, None, plainly
    plan = split.plan
    row |= {
        "status": "ok" if plan.compiled_bytes <= needed // SHARE else "over",
        "plan_s": time.perf_counter() - start,
        "projected_bytes": plan.projected_bytes,
        "compiled_bytes": plan.compiled_bytes,
        "decisions": [str(d) for d in plan.decisions],
        "compiles": len(plan.tried),
    }
    return row, split, plainly


def in_a_process(name: str, target: str, timeout_s: float) -> dict[str, Any]:
    """`measure` in a child; a crash and a timeout are statuses."""
    command = [sys.executable, "-m", "benchmarks.targets", "--child", json.dumps([name, target])]
    try:
        child = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "message": f"no answer within {timeout_s:.0f} s"}
    rows = [line for line in child.stdout.splitlines() if line.startswith("{")]
    if child.returncode or not rows:
        return {"status": "crash", "message": f"exit status {child.returncode}: {child.stderr[-1500:]}"}
    return json.loads(rows[-1])


def stored() -> dict[tuple[str, str], dict[str, Any]]:
    """(program, target) -> the last row of these versions, whatever the day."""
    pattern = record.open_results("targets").path.name.split("-")
    files = sorted(record.RESULTS.glob("-".join(["targets-*", *pattern[4:]])))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return {(row["program"], row["target"]): row for row in rows}


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The table."""
    table = Table(title=f"Under a cap of 1/{SHARE} of what the plain program takes", title_justify="left")
    for column in ("target", "program", "plain", "cap", "result", "projected", "compiled", "proj/comp", "plan s"):
        table.add_column(column)
    for row in rows:
        projected, compiled = row.get("projected_bytes"), row.get("compiled_bytes")
        mark = "*" if row.get("plain") == "out of memory" else ""
        table.add_row(
            row["target"],
            row["program"],
            *(format_bytes(row[k]) + m if k in row else "" for k, m in (("plain_bytes", mark), ("cap_bytes", ""))),
            row["status"] if row["status"] != "refused" else f"refused, {format_bytes(row['smallest_bytes'])}",
            *(format_bytes(b) if b else "" for b in (projected, compiled)),
            f"{projected / compiled:.2f}" if projected and compiled else "",
            f"{row.get('plan_s', 0):.1f}",
        )
    record.console().print(table)
    print("* plain JAX does not compile: more than the device has")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated")
    parser.add_argument("--programs", default="", help="comma-separated (default: all)")
    parser.add_argument("--again", action="store_true", help="measure what there are rows of too")
    parser.add_argument("--timeout-s", type=float, default=TIMEOUT_S, help="for one program and target")
    parser.add_argument("--show", action="store_true", help="print what is stored, measure nothing")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        print(json.dumps(measure(*json.loads(options.child))))
        return 0
    names = options.programs.split(",") if options.programs else list(programs())
    wanted = [(name, target) for target in options.targets.split(",") for name in names]
    known = stored()
    results = record.open_results("targets")
    missing = [key for key in wanted if options.again or key not in known] if not options.show else []
    for name, target in track(missing, "compiling", console=record.console(), disable=not sys.stdout.isatty()):
        start = time.perf_counter()
        row = {"program": name, "target": target, **in_a_process(name, target, options.timeout_s)}
        row["process_s"] = time.perf_counter() - start
        results.append(**row)
        known[name, target] = row
        print(f"{target} {name}: {row['status']} in {row['process_s']:.0f} s", flush=True)
    rows = [known[key] for key in wanted if key in known]
    show(rows)
    return int(any(row["status"] in ("over", "crash") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
