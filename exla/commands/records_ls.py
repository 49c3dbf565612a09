"""List the tuning records, one row for each key: what was compiled for what, with which outcomes.

Keys of one program differ in the arguments, the options of exla.jit that are not the default, the target, the device or
the limit. The records of one key differ in outcome, in the search that made them and in the compile options of their
candidates: each is listed with how many have it, compile options by a number that is explained below the table.

`compiled` is what the one with the best run takes by the compiler's word; where none was timed, the least of those that
obeyed the limit, where any did.

A key itself holds only hashes: what is said in words is known of records that say it. `exla records show KEY` lists the
candidates of one key. Records that come with exla are listed with --packaged only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from exla.commands.records_common import add_common, counted, open_store, print_table
from exla.report.records import Row, printable, rows
from exla.search.record import STATUSES
from exla.units import format_bytes

ABOUT = ("source", "arguments", "options", "target", "device")
COLUMNS = ("key", "program", *ABOUT, "limit", "outcomes", "by", "compile options", "best run", "compiled")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--status", action="append", choices=STATUSES, help="only records with this outcome; repeatable"
    )
    parser.add_argument("--program", default="", metavar="PREFIX", help="only programs whose hash starts so")
    parser.add_argument("--target", metavar="NAME", help="only records that say that they are for this target")
    parser.add_argument("--packaged", action="store_true", help="the records that come with exla too")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the rows; 0."""
    store = open_store(arguments)
    report = store.read(packaged=arguments.packaged)
    found = rows(
        r
        for r in report.records
        if (not arguments.status or r.status in arguments.status)
        and r.key.get("program", "").startswith(arguments.program)
        and arguments.target in (None, r.about.get("target"))
    )
    if arguments.json:
        for row in found:
            print(json.dumps(row.to_json()))
    else:
        count = counted(sum(len(row.records) for row in found), "record")
        where = f"{store.directory} and with exla" if arguments.packaged else store.directory
        table = Table(title=f"{count} of {counted(len(found), 'key')} in {where}", title_justify="left")
        for column in COLUMNS:
            table.add_column(column, no_wrap=column in ("key", "program"), overflow="fold")
        numbers = {option: f"o{k}" for k, option in enumerate(_compile_options(found), 1)}
        for row in found:
            table.add_row(*map(Text, _cells(row, numbers)))
        print_table(table)
        for option, number in numbers.items():
            print(f"{number}: {printable(option)}")
    if report.bad:
        print(
            f"exla records: {counted(len(report.bad), 'line')} no record; `exla records verify` says which",
            file=sys.stderr,
        )
    return 0


def _counts(found: Counter[str]) -> str:
    return "\n".join(f"{count:,} {printable(what, 40)}" for what, count in found.most_common())


def _compile_options(found: Sequence[Row]) -> list[str]:
    """All compile options of some rows, those of most records first."""
    return [option for option, _ in sum((row.compile_options for row in found), Counter()).most_common()]


def _cells(row: Row, numbers: Mapping[str, str]) -> list[str]:
    return [
        row.name[:12],
        printable(row.key.get("program", ""))[:8],
        *(printable(row.about.get(name, "")) for name in ABOUT),
        "" if row.limit_bytes is None else format_bytes(row.limit_bytes),
        *map(_counts, (row.statuses, row.searches)),
        _counts(Counter({numbers[option]: count for option, count in row.compile_options.items()})),
        "" if row.best_run_s is None else f"{row.best_run_s:.4g} s",
        "" if row.compiled_bytes is None else format_bytes(row.compiled_bytes),
    ]
