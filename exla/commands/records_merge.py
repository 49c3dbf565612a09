"""Add the tuning records of other files or directories that are not there already.

Records from another machine are used where every part of their key is the same: program, arguments, device, versions,
limit and options. Bad lines are reported and left out. Merging the same files again adds nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from exla.commands.records_common import add_common, counted
from exla.report.records import printable
from exla.search.record import Record
from exla.search.records import RecordStore
from exla.search.shards import Line, read_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="files of records, or directories of such")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Merge; 0."""
    store = RecordStore(arguments.directory)
    records: list[Record] = []
    bad: list[Line] = []
    for named in arguments.files:
        for path in sorted(named.glob("*.jsonl")) if named.is_dir() else [named]:
            for line in read_lines(path):
                if line.record is None:
                    bad.append(line)
                else:
                    records.append(line.record)
    added = store.add(records)
    for line in bad:
        print(f"{line.path}:{line.number}: {printable(line.reason)}", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"read": len(records), "added": added, "bad_lines": len(bad)}))
    else:
        there, wrong = len(records) - added, counted(len(bad), "bad line")
        print(f"{counted(added, 'record')} added to {store.directory}, {there:,} there already, {wrong} left out")
    return 0
