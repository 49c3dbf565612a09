"""The tables that `benchmarks.caps` prints."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.isolate import MIB

MOST_RATIO = 1.1


def show_caps(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """One line per program and cap, then the messages of what raised or failed."""
    table = Table(title="Each program under each cap, in a fresh process")
    for column in ("program", "cap MiB", "result"):
        table.add_column(column)
    for column in ("growth MiB", "allowed MiB", "compiled MiB", "projected MiB", "error", "plan s", "run s"):
        table.add_column(column, justify="right")
    table.add_column("decisions", overflow="fold")
    for row in rows:
        table.add_row(
            row["program"],
            str(row["cap_mib"]),
            row["status"],
            *(_mebibytes(row.get(f"{name}_bytes")) for name in ("growth", "allowed", "compiled", "projected")),
            _number(row.get("error"), ".1e"),
            _number(row.get("plan_s"), ".2f"),
            _number(row.get("run_s"), ".3f"),
            "\n".join(row.get("decisions", ())),
        )
    console.print(table)
    for row in rows:
        if "message" in row:
            console.print(f"{row['program']} at {row['cap_mib']} MiB: {row['message']}", markup=False)


def show_times(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """exla at its best cap, the hand-written versions with their best chunk, and the plain program, in seconds."""
    table = Table(title=f"exla at its best cap against lax.map by hand, best of five chunks (aim: {MOST_RATIO}x)")
    table.add_column("program")
    for column in (
        "cap MiB",
        "exla s",
        "hand s",
        "chunk",
        "exla / hand",
        "hand, fusions off s",
        "chunk",
        "exla / that",
        "plain s",
        "plain growth MiB",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        if "ratio" not in row:
            table.add_row(row["program"], *["failed"], *[""] * 9)
            continue
        median, chunk, plain = row["median_s"], row["best_chunk"], row["plain"]
        table.add_row(
            row["program"],
            str(row["cap_mib"]),
            _number(median["exla"], ".3f"),
            _number(median["hand"], ".3f"),
            str(chunk["hand"]),
            f"{row['ratio']:.2f}" + ("" if row["ratio"] <= MOST_RATIO else " !"),
            _number(median["hand_option"], ".3f"),
            str(chunk["hand_option"]),
            f"{row['ratio_option']:.2f}",
            _number(plain.get("run_s"), ".3f"),
            _mebibytes(plain.get("growth_bytes")) or "does not fit",
        )
    console.print(table)


def _mebibytes(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / MIB:.1f}"


def _number(value: float | None, spec: str) -> str:
    return "" if value is None else format(value, spec)
