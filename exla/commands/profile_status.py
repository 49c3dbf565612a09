"""Say how far a profiling campaign is: instances, records by status, candidates timed, seconds spent.

exla profile status runs/cpu
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from exla.errors import OptionError
from exla.failure import not_done
from exla.report.records import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="what `exla profile run` wrote")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each folder")


def run(arguments: argparse.Namespace) -> int:
    """Print how far each is; 0."""
    from exla.datasets.profiling.run import Folder

    with not_done(OptionError):
        folders = [Folder.open(path) for path in arguments.folders]
    for folder in folders:
        _show(folder, as_json=arguments.json)
    return 0


def _show(folder: Any, *, as_json: bool) -> None:
    from exla.datasets.profiling.export import times

    finished = folder.finished()
    statuses, bad, timed = Counter[str](), 0, 0
    for _, records, wrong in folder.records():
        statuses.update(r.status for r in records)
        timed += len({r.candidate for r, _ in times(records, folder.campaign.label)[0]})  # some have two
        bad += wrong
    failed = sorted(name for name, one in finished.items() if one.status != "ok")
    row = {
        "campaign": folder.campaign.name,
        "target": folder.campaign.target,
        "label": folder.campaign.label,
        "instances": sum(1 for _ in folder.campaign.instances()),
        "finished": len(finished),
        "failed": failed,
        "records": dict(statuses),
        "with_a_time": timed,
        "bad_lines": bad,
        "seconds": round(sum(one.seconds for one in finished.values())),
    }
    if as_json:
        print(json.dumps(row))
        return
    print(f"{printable(folder.campaign.name)} for {folder.campaign.target} ({folder.campaign.label})")
    print(f"  {len(finished):,} of {row['instances']:,} instances finished, {len(failed)} of them failed")
    counted = ", ".join(f"{count:,} {status}" for status, count in statuses.most_common())
    print(f"  {sum(statuses.values()):,} records: {counted or 'none'}; {timed:,} candidates with a time")
    if bad:
        print(f"  {bad} lines are no records")
    for name in failed:
        print(f"  {name}: {printable(finished[name].said)}")
