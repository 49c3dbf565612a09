"""Look at what is installed, which devices and compilers work, and what is misconfigured.

Devices and compilers are tried, each in a process of its own, which takes some seconds. Nothing is changed; a file
is made where records are kept, and removed.

Exit codes: 0 all is well, 1 something has to be mended. An extra that is not installed is no fault.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict

from rich.markup import escape
from rich.table import Table

from exla.console import to_output
from exla.doctor.examine import examine
from exla.doctor.finding import NOTE, OK, PROBLEM

STYLES = {OK: "green", NOTE: "yellow", PROBLEM: "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 1 if one is a problem."""
    found = list(examine())
    problems = [f for f in found if f.status == PROBLEM]
    if arguments.json:
        print(json.dumps({"ok": not problems, "findings": [asdict(f) for f in found]}))
        return 1 if problems else 0
    table = Table.grid("", "", "", padding=(0, 2, 0, 0))
    for finding in found:
        step = f"\n-> {finding.next_step}" if finding.next_step else ""
        status = finding.status.upper() if finding.status == PROBLEM else finding.status
        table.add_row(f"[{STYLES[finding.status]}]{status}[/]", escape(finding.name), escape(finding.found + step))
    console = to_output(highlight=False)
    console.print(table)
    counts = Counter(f.status for f in found)
    console.print(", ".join(f"{counts[status]} {status}" for status in STYLES))
    return 1 if problems else 0
