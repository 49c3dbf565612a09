"""Write the records of campaigns as a data set that cost models are trained on.

  exla profile export runs/cpu -o npz/split
  exla profile export runs/cpu-monday runs/cpu-tuesday -o npz/split

Each program at a size becomes one npz file with the arrays of TpuGraphs' layout files and some of exla's own
(docs/campaigns.md), below FOLDER/<label>/<device>/{train,valid,test}: whole families of programs are held out. A card
says what is in it, what was left out and why, and how noisy the times are. Campaigns for several targets are exported
one after the other: times of two devices, or times and estimates, are never in one file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from exla.errors import ExlaError, OptionError
from exla.failure import not_done


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="what `exla profile run` wrote")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FOLDER", help="where the data set is written")
    parser.add_argument("--json", action="store_true", help="print the data card, one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Export; 0, or 1 where there is nothing to."""
    from exla.datasets.profiling.export import export
    from exla.datasets.profiling.run import Folder

    with not_done(OptionError):
        folders = [Folder.open(path) for path in arguments.folders]
    targets = {folder.campaign.target for folder in folders}
    if len(targets) > 1:
        raise ExlaError(f"campaigns for {', '.join(sorted(targets))}: export each target by itself")
    found = export(folders, arguments.out, say=lambda line: print(line, file=sys.stderr))
    card = found.card()
    if arguments.json:
        print(json.dumps(card))
    else:
        for split, count in card["instances"].items():
            print(f"{split}: {count} programs, {card['candidates_with_a_time'][split]:,} candidates with a time")
        left = ", ".join(f"{count:,} {why}" for why, count in card["left_out"].items() if count)
        print(f"left out: {left or 'nothing'}; noise floor {card['noise_floor']['median']}; more in card.json")
    print(f"exla: wrote {found.folder}", file=sys.stderr)
    return 0 if found.records else 1
