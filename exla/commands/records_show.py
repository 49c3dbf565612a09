"""Show all candidates that are recorded for one key: what was decided, with which outcome, and how many bytes.

KEY is the start of a name that `exla records ls` lists.
"""

from __future__ import annotations

import argparse
import json

from rich.table import Table
from rich.text import Text

from exla.commands.records_common import add_common, counted, open_store, print_table
from exla.failure import UsageError
from exla.report.records import Row, all_in_words, printable, rows
from exla.report.words import numbered
from exla.search.record import Record
from exla.units import format_bytes

BYTES = ("limit", "projected", "compiled", "measured")
COLUMNS = ("outcome", "by", *BYTES, "compile", "run", "decisions")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="start of the key's name")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the candidates; 0."""
    store = open_store(arguments)
    found: list[Row] = []
    for packaged in (False, True):  # what comes with exla is meant where the user's own is not
        known = rows(store.read(packaged=packaged).records)
        found = found or [row for row in known if row.name.startswith(arguments.key)]
    if len(found) != 1:
        several = f"starts the names of {counted(len(found), 'key')}: {', '.join(row.name for row in found[:5])}"
        raise UsageError(f"{arguments.key!r} {several if found else 'starts no name'}; `exla records ls` lists them")
    if arguments.json:
        for record, words in zip(found[0].records, all_in_words(found[0].records), strict=True):
            plain = json.loads(record.to_line())
            print(json.dumps({"name": found[0].name, **plain, "in_words": words}))
    else:
        _print(found[0])
    return 0


def _print(row: Row) -> None:
    print(f"key {row.name}")
    for name, text in sorted({**row.key, **row.about}.items()):
        known = f" ({printable(row.key[name])})" if name in row.about and name in row.key else ""
        print(f"  {printable(name)}: {printable(text)}{known}")
    table = Table()
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for record, words in zip(row.records, all_in_words(row.records), strict=True):
        table.add_row(*map(Text, _cells(record, words)))
    print_table(table)


def _cells(record: Record, words: list[str]) -> list[str]:
    counts = (getattr(record, f"{name}_bytes") for name in BYTES)
    return [
        record.status,
        "jax.jit" if record.is_default else f"{printable(record.strategy)}, seed {printable(str(record.seed), 20)}",
        *("" if count is None else format_bytes(count) for count in counts),
        *("" if time is None else f"{time:.4g} s" for time in (record.compile_s, record.run_s)),
        numbered(words),
    ]
