"""List the tuning records, one row for each key: what was compiled for what, with which outcomes.

`compiled` is the least that a candidate takes by the compiler's word, of those that obeyed the limit where any did.
Target, device and source are known of records that say them; a key itself holds only hashes. `exla records show KEY`
lists the candidates of one key.
"""

from __future__ import annotations

import argparse
import json
import sys

from rich.table import Table
from rich.text import Text

from exla.commands.records_common import add_common, counted, open_store, print_table
from exla.report.records import Row, printable, rows
from exla.search.record import STATUSES
from exla.units import format_bytes

COLUMNS = ("key", "program", "source", "target", "device", "limit", "records", "outcomes", "best run", "compiled")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--status", action="append", choices=STATUSES, help="only records with this outcome; repeatable"
    )
    parser.add_argument("--program", default="", metavar="PREFIX", help="only programs whose hash starts so")
    parser.add_argument("--target", metavar="NAME", help="only records that say that they are for this target")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the rows; 0."""
    store = open_store(arguments)
    report = store.read(packaged=True)
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
        table = Table(title=f"{count} of {counted(len(found), 'key')} in {store.directory}", title_justify="left")
        for column in COLUMNS:
            table.add_column(column, no_wrap=column in ("key", "program"), overflow="fold")
        for row in found:
            table.add_row(*map(Text, _cells(row)))
        print_table(table)
    if report.bad:
        print(
            f"exla records: {counted(len(report.bad), 'line')} no record; `exla records verify` says which",
            file=sys.stderr,
        )
    return 0


def _cells(row: Row) -> list[str]:
    return [
        row.name[:12],
        printable(row.key.get("program", ""))[:8],
        *(printable(row.about.get(name, "")) for name in ("source", "target", "device")),
        "" if row.limit_bytes is None else format_bytes(row.limit_bytes),
        f"{len(row.records):,}",
        ", ".join(f"{count:,} {status}" for status, count in row.statuses.most_common()),
        "" if row.best_run_s is None else f"{row.best_run_s:.4g} s",
        "" if row.compiled_bytes is None else format_bytes(row.compiled_bytes),
    ]
