"""Check every line of the tuning records, and print those that are none, with file, line number and reason.

Bad lines cost nothing but their place: lookups pass over them. `exla records prune --bad` removes them; a line that is
cut off ends the file, and the next record that is added there ends it.
"""

from __future__ import annotations

import argparse
import json

from exla.commands.records_common import add_common, counted, open_store
from exla.report.records import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Verify; 0 if all lines are good."""
    store = open_store(arguments)
    count, bad = store.verify()
    if arguments.json:
        lines = [{"file": str(b.path), "line": b.number, "reason": b.reason} for b in bad]
        print(json.dumps({"directory": str(store.directory), "lines": count, "bad": lines}))
    else:
        for b in bad:
            print(f"{b.path}:{b.number}: {printable(b.reason)}")
        print(f"{counted(count, 'line')} in {store.directory}, {len(bad):,} bad")
    return 1 if bad else 0
