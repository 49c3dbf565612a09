"""Remove tuning records: those that any of the options names.

--program narrows the other options to some programs; alone, it removes all records of these. Records that others add
in the meantime stay. A removed record costs a search at most.
"""

from __future__ import annotations

import argparse
import json

from exla.commands.records_common import add_common, counted, open_store
from exla.failure import UsageError
from exla.search.prune import Cut
from exla.search.record import STATUSES
from exla.search.records import make_key
from exla.version import rules_hash


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--older-exla", action="store_true", help="those made by another exla than this one, which replays none of them"
    )
    add("--status", action="append", default=[], choices=STATUSES, help="those with this outcome; repeatable")
    add("--keep-best", type=int, metavar="N", help='all but the N best of each key, of those that are "ok"')
    add("--bad", action="store_true", help="lines that are no records")
    add("--program", default="", metavar="PREFIX", help="only of programs whose hash starts so")
    add("--dry-run", action="store_true", help="count, and remove nothing")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prune; 0."""
    named = arguments.older_exla or arguments.status or arguments.keep_best is not None or arguments.bad
    if not named and not arguments.program:
        raise UsageError("say what to remove: --older-exla, --status, --keep-best, --bad or --program")
    if arguments.keep_best is not None and arguments.keep_best < 0:
        raise UsageError(f"--keep-best must be 0 or more, not {arguments.keep_best}")
    store = open_store(arguments)
    cut = Cut(
        program=arguments.program,
        all_of_program=not named,
        rules=make_key(exla=rules_hash())["exla"] if arguments.older_exla else "",
        statuses=frozenset(arguments.status),
        keep_best=arguments.keep_best,
        bad=arguments.bad,
    )
    counts = store.prune(cut, dry_run=arguments.dry_run)
    removed, kept = (sum(column) for column in zip(*counts.values(), strict=True)) if counts else (0, 0)
    if arguments.json:
        print(json.dumps({"removed": removed, "kept": kept, "dry_run": arguments.dry_run}))
    else:
        would = "would be removed" if arguments.dry_run else "removed"
        print(f"{counted(removed, 'line')} {would} from {store.directory}, {kept:,} kept")
    return 0
