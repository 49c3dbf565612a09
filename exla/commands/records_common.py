"""What the commands of `exla records` share: which directory, which table."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.table import Table

from exla.console import to_output
from exla.failure import UsageError
from exla.search.records import RecordStore


def add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="DIR",
        help="where the records are (default: EXLA_RECORDS_DIR, else the user's cache directory)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of text")


def open_store(arguments: argparse.Namespace) -> RecordStore:
    """The records that are meant.

    Raises:
      UsageError: if the named directory is none.
    """
    if arguments.directory is not None and not arguments.directory.is_dir():
        raise UsageError(f"{arguments.directory} is not a directory")
    return RecordStore(arguments.directory)


def print_table(table: Table) -> None:
    to_output().print(table)


def counted(count: int, what: str) -> str:
    """ "1 line", "2 lines"."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
