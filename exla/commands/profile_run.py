"""Run a profiling campaign: many programs, their candidates compiled and measured, every outcome recorded.

  exla profile run cpu.toml -o runs/cpu
  exla profile run cpu.toml -o runs/cpu --executor ray --address auto

CAMPAIGN says which programs at which sizes, under which limits, for which target; docs/campaigns.md has its keys. The
folder is begun, or gone on with: what is measured is not measured again, whatever ended the earlier run. Each program
is measured in a process of its own; one that crashes or hangs costs the candidate that it was at.

On Ray each node measures one program at a time, nodes of one kind of device share the programs, each kind has a folder
of its own below FOLDER, and what a node that dies had found is kept.

Exit codes: 0 done, 1 not done or something left to do, 2 not understood.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from exla.errors import OptionError
from exla.failure import not_done


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("campaign", type=Path, metavar="CAMPAIGN.toml", help="what is measured")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FOLDER", help="where it is kept")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="programs that are prepared and compiled beside one another, for a GPU or estimates (default: 1)",
    )
    parser.add_argument("--executor", choices=("local", "ray"), default="local", help="where it runs (default: local)")
    parser.add_argument("--address", default="auto", help='of the Ray cluster (default: "auto", the one that is there)')
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no further program begins after so long")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, and the rest to stderr")


def run(arguments: argparse.Namespace) -> int:
    """Measure; 0 when all is measured."""
    from exla.datasets.profiling.campaign import read_campaign
    from exla.datasets.profiling.run import Folder, run_campaign

    def say(line: str) -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    campaign = read_campaign(arguments.campaign)
    next(campaign.instances(), None)  # before a folder is begun: tables of the user's may not be there
    with not_done(OptionError):
        if arguments.executor == "ray":
            from exla.datasets.profiling.on_ray import run_on_ray

            left = run_on_ray(arguments.out, campaign, address=arguments.address, say=say, seconds=arguments.seconds)
        else:
            folder = Folder.open(arguments.out, campaign)
            left = run_campaign(folder, jobs=arguments.jobs, say=say, seconds=arguments.seconds)
    if arguments.json:
        print(json.dumps({"campaign": campaign.name, "left": left}))
    elif left:
        print(f"{left} programs are left: the same command goes on")
    else:
        print(f"all programs of {campaign.name} are measured")
    return 1 if left else 0
