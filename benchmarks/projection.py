"""What exla projects that a program takes, beside what the compiler of each target counts.

    python -m benchmarks.projection [--targets tpu:v5e,gpu:h200,cpu] [--megabytes 64,512] [--programs fft,chamfer]
                                    [--candidates] [--again] [--project] [--show]

Every program of the zoo at the sizes at which its values take about 64 and 512 MB is traced, projected as the planner
does (`exla.ir.memory`), and compiled unchanged, under the options that exla sets for what it rewrites (on the CPU no
YNNPACK fusions, of whose memory there is only a bound): `projected_bytes`, `compiled_bytes`, their ratio, and the
largest values of each. With `--candidates` also what `search="analytic"` asks for first where a tenth of the
temporaries is left. A line is kept for each in `benchmarks/results/`; what is there is not done again without
`--again`. After a change of the model, `--project` projects the plain programs anew and takes what the compiler counted
from the stored line.

Nothing runs: not on the accelerators, which need not be here, and not on the CPU.
"""

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.table import Table

from benchmarks import record
from benchmarks.stored import stored_values
from exla.call import read
from exla.datasets.profiling.campaign import Instance, family_of
from exla.datasets.profiling.prepare import Prepared, prepare
from exla.datasets.profiling.zoo.programs import ZOO
from exla.ir.memory import Peak
from exla.search.attempt import compile_options, peak_under
from exla.search.cost import projected, work_of
from exla.search.strategy import STRATEGIES
from exla.targets.base import CompiledBytes, compile_for, find_target
from exla.units import format_bytes

TARGETS = ("tpu:v5e", "gpu:h200", "cpu")
MEGABYTES = (64.0, 512.0)
KINDS = ("plain", "candidate")
SHARE = 0.1
"""Of the plain program's projected temporaries: what a candidate has room for."""
LEAST, MOST = 0.9, 1.5
"""What is wanted of projected / compiled."""
SMALL_BYTES = 4 << 20
"""A difference up to this is none to `side_of`: mostly code, which a TPU's figure includes and is guessed roughly."""
SHOWN = 4
TIMEOUT_S = 60
"""For one program: TPUs' compiler takes minutes for a large Cholesky factor."""
CHILD = (sys.executable, "-m", "benchmarks.projection", "--child")
_ROOT = Path(__file__).resolve().parent.parent

Key = tuple[str, str, float, str]
"""Program, target, megabytes, kind."""


def measure(name: str, target_name: str, megabytes: float, kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of one program for one target."""
    instance = Instance(family=family_of(name), program=name, megabytes=megabytes, share=SHARE)
    prepared = prepare(instance, target_name)
    known = prepared.attempt.target.fingerprint()
    common = {"program": name, "target": target_name, "megabytes": megabytes, "size": prepared.size}
    common |= {"compiler": known["jaxlib"]}
    for kind in kinds:
        row = _plain(prepared) if kind == "plain" else _candidate(prepared)
        yield {**common, "kind": kind, **row}


def side_of(row: dict[str, Any]) -> int:
    """0 where a projection is as near to the compiler's figure as is wanted, -1 where it is below, 1 above."""
    projected, compiled = row["projected_bytes"], row["compiled_bytes"]
    if projected < LEAST * compiled and projected < compiled - SMALL_BYTES:
        return -1
    return int(projected > MOST * compiled and projected > compiled + SMALL_BYTES)


def project_again(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a plain program, projected anew."""
    target, program = find_target(row["target"]), ZOO[row["program"]]
    arguments = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), program.arguments(row["size"]))
    traced, machine = read(jax.make_jaxpr(program.function)(*arguments), target.platform), target.machine()
    options = target.option_sets(work_of(traced, machine), target.usable_bytes())[-1]
    peak = peak_under(options, projected(traced, machine), target)
    return {**row, "projected_bytes": peak.bytes, "ratio": peak.bytes / row["compiled_bytes"], **_holds(peak)}


def _holds(peak: Peak) -> dict[str, Any]:
    held = peak.held[:SHOWN]
    return {"projected_holds": [f"{h.program.describe(h.var)}: {format_bytes(h.bytes)}" for h in held]}


def _plain(prepared: Prepared) -> dict[str, Any]:
    attempt = prepared.attempt
    peak = attempt.floor
    flat, tree = jax.tree.flatten(prepared.arguments)
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in flat]
    target = attempt.target  # no limit is told: some compilers make another program for one
    options = target.option_sets(work_of(attempt.call.program, target.machine()), target.usable_bytes())[-1]
    try:
        compiled = compile_for(
            target,
            lambda *values: prepared.function(*jax.tree.unflatten(tree, values)),
            structs,
            compiler_options=options,
        )
    except jax.errors.JaxRuntimeError as error:
        return {"status": "compile_error", "message": str(error).partition("\n")[0]}
    holds = stored_values(compiled.as_text())[:SHOWN]
    peak = peak_under(options, peak, target)
    return {**_compared(peak, target.compiled_bytes(compiled)), "compiled_holds": holds}


def _candidate(prepared: Prepared) -> dict[str, Any]:
    attempt = prepared.attempt
    candidate = STRATEGIES.get("analytic").start(prepared.space).ask()
    if candidate is None:
        return {"status": "nothing to ask for"}
    attempt.candidate(candidate)
    tried = attempt.tried[-1]
    if tried.compiled_bytes is None:
        return {"status": "compile_error", "message": tried.error}
    peak = peak_under(compile_options(tried.decisions), candidate.peak, attempt.target)
    row = _compared(peak, tried.compiled_bytes)
    return {**row, "limit_bytes": attempt.limit_bytes, "decisions": [str(d) for d in candidate.decisions]}


def _compared(peak: Peak, counted: CompiledBytes) -> dict[str, Any]:
    return {
        "status": "ok",
        "projected_bytes": peak.bytes,
        "compiled_bytes": counted.total,
        "ratio": peak.bytes / counted.total,
        "arguments_bytes": counted.arguments,
        "outputs_bytes": counted.outputs,
        "temporaries_bytes": counted.temporaries,
        "unaccounted_bytes": counted.unaccounted,
        "code_bytes": counted.code,
        **_holds(peak),
    }


def in_processes(wanted: Sequence[Key], timeout_s: float) -> Iterator[dict[str, Any]]:
    """`measure` in a child for each target; where a compiler takes that with it or too long, another goes on."""
    for target in dict.fromkeys(key[1] for key in wanted):
        left = [key for key in wanted if key[1] == target]
        while left:
            with subprocess.Popen([*CHILD, json.dumps(left)], cwd=_ROOT, stdout=subprocess.PIPE, text=True) as child:
                assert child.stdout is not None
                timer = _timer(child, timeout_s)
                for line in child.stdout:
                    timer.cancel()
                    timer = _timer(child, timeout_s)
                    if line.startswith("{"):
                        row = json.loads(line)
                        left.remove(key_of(row))
                        yield row
                timer.cancel()
            if left:
                program, _, megabytes, kind = left.pop(0)
                status = "timeout" if child.returncode == -signal.SIGKILL else "crash"
                yield {"program": program, "target": target, "megabytes": megabytes, "kind": kind, "status": status}


def _timer(child: subprocess.Popen[str], timeout_s: float) -> threading.Timer:
    """Ends a child that says nothing for so long."""
    timer = threading.Timer(timeout_s, child.kill)
    timer.start()
    return timer


def key_of(row: dict[str, Any]) -> Key:
    """What a row is of."""
    return row["program"], row["target"], row["megabytes"], row["kind"]


def stored() -> dict[Key, dict[str, Any]]:
    """The last row of these versions for each program, target, size and kind, whatever the day."""
    pattern = record.open_results("projection").path.name.split("-")
    files = sorted(record.RESULTS.glob("-".join(["projection-*", *pattern[4:]])))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return {key_of(row): row for row in rows}


def show(rows: Sequence[dict[str, Any]], *, everything: bool) -> None:
    """What lies outside, or all, by target; then the shares inside."""
    table = Table(title="projected / compiled", title_justify="left")
    for column in ("target", "kind", "MB", "program", "projected", "compiled", "ratio", "projected from", "stored"):
        table.add_column(column)
    for row in sorted(rows, key=lambda r: (r["target"], r["kind"], r["megabytes"], r.get("ratio", 0))):
        if "ratio" in row and (everything or side_of(row)):
            table.add_row(
                *(row["target"], row["kind"], f"{row['megabytes']:.0f}", row["program"]),
                *(format_bytes(row["projected_bytes"]), format_bytes(row["compiled_bytes"]), f"{row['ratio']:.2f}"),
                "\n".join(row["projected_holds"][:3]),
                "\n".join(row.get("compiled_holds", ())[:3]),
            )
    record.console().print(table)
    groups = defaultdict[tuple[str, str, float], list[dict[str, Any]]](list)
    for row in rows:
        if "ratio" in row:
            groups[row["target"], row["kind"], row["megabytes"]].append(row)
    for (target, kind, megabytes), group in groups.items():
        ratios, sides = sorted(row["ratio"] for row in group), [side_of(row) for row in group]
        low, high = sum(r < LEAST for r in ratios), sum(r > MOST for r in ratios)
        print(
            f"{target} {kind} {megabytes:.0f} MB: {len(group) - low - high} of {len(group)} within [{LEAST}, {MOST}], "
            f"{low} below, {high} above; but for {format_bytes(SMALL_BYTES)}: {sides.count(0)} within, "
            f"{sides.count(-1)} below, {sides.count(1)} above; "
            f"median {ratios[len(ratios) // 2]:.2f}, from {ratios[0]:.2g} to {ratios[-1]:.4g}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated")
    parser.add_argument("--programs", default="", help="comma-separated (default: all)")
    parser.add_argument("--megabytes", default=",".join(f"{m:.0f}" for m in MEGABYTES), help="comma-separated")
    parser.add_argument("--candidates", action="store_true", help="what is chosen under a limit too")
    parser.add_argument("--again", action="store_true", help="measure what there are rows of too")
    parser.add_argument("--project", action="store_true", help="project anew what is stored, compile nothing")
    parser.add_argument("--timeout-s", type=float, default=TIMEOUT_S, help="for one program")
    parser.add_argument("--show", action="store_true", help="print all that is stored, measure nothing")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        _answer([tuple(key) for key in json.loads(options.child)])
        return 0
    wanted: list[Key] = [
        (name, target, float(megabytes), kind)
        for target in options.targets.split(",")
        for megabytes in options.megabytes.split(",")
        for name in (options.programs.split(",") if options.programs else ZOO)
        for kind in (KINDS if options.candidates else KINDS[:1])
    ]
    known = stored()
    missing = [key for key in wanted if options.again or key not in known] if not options.show else []
    made = in_processes(missing, options.timeout_s)
    if options.project:
        made = (project_again(known[key]) for key in wanted if key[3] == "plain" and "ratio" in known.get(key, {}))
    results = record.open_results("projection")
    for row in made:
        results.append(**{k: v for k, v in row.items() if k not in results.environment})
        known[key_of(row)] = row
        said = f"{row['ratio']:.2f}" if "ratio" in row else row["status"]
        print(f"{row['target']} {row['program']} {row['megabytes']:.0f} MB {row['kind']}: {said}", flush=True)
    rows = [known[key] for key in wanted if key in known]
    show(rows, everything=options.show)
    return int(any(row["status"] in ("crash", "compile_error") for row in rows))


def _answer(keys: Sequence[Key]) -> None:
    """The rows of these, in their order; in the child."""
    for name, target, megabytes in dict.fromkeys(key[:3] for key in keys):
        start = time.perf_counter()
        for row in measure(name, target, megabytes, [key[3] for key in keys if key[:3] == (name, target, megabytes)]):
            print(json.dumps({**row, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
