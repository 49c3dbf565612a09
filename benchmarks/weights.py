"""Train the weights that come with exla, and say how good they are on families that they have not seen.

    python -m benchmarks.weights tpu-v5e+tpu-v6e npz/split/tpu_estimate/* --runs runs/tpu [--keep] [--ship]

Folders are devices of `exla profile export`, files of all their splits. Families of programs are dealt to five folds;
the config `split` is trained on four of them, with each seed, and the ensemble ranks the programs of the fifth, which
`benchmarks.learned` judges. Programs of --others, of devices that nothing was trained on, are ranked by the models that
have not seen their families either. How far the heads are trusted (`optimiser.trust`) is tried on the same models. Runs
whose folders are there already are not trained again.

With --ship, the config is then trained on everything and written to `cost_model/weights/NAME.<seed>.npz`, with what was
found on the folds in the card. A name is that of the targets, joined by "+".
"""

import argparse
import dataclasses
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from benchmarks import record
from benchmarks.learned import NAMES, judged, profiled
from exla.cost_model.candidates import Ensemble
from exla.cost_model.checkpoint import Trained, load, save
from exla.cost_model.models.split_sage import trusted
from exla.cost_model.ranker import Ranker
from exla.datasets.tpugraphs_adapter import read
from exla.training.config import read_config
from exla.training.data import npz_files
from exla.training.train import train

FOLDS = 5
TRUSTS = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
SPLITS = ("train", "valid", "test")
WEIGHTS = Path(__file__).resolve().parent.parent / "cost_model" / "weights"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="targets whose weights these are, joined by +, as cpu or tpu-v5e+tpu-v6e")
    parser.add_argument("folders", nargs="+", help="a device's folder of exla profile export, or several")
    parser.add_argument("--others", nargs="*", default=[], metavar="FOLDER", help="devices to test on alone")
    parser.add_argument("--runs", required=True, type=Path, help="where runs are kept")
    parser.add_argument("--seeds", type=int, default=3, help="models of the ensemble")
    parser.add_argument("--trust", type=float, help="of heads (default: the config's)")
    parser.add_argument("--keep", action="store_true", help="append the rows to benchmarks/results")
    parser.add_argument("--ship", action="store_true", help="train on everything too, and write cost_model/weights")
    arguments = parser.parse_args()
    seeds = range(arguments.seeds)
    trust = read_config("split").optimiser.trust if arguments.trust is None else arguments.trust
    files, others = (programs(folders) for folders in (arguments.folders, arguments.others))
    fold = folds([meta["family"] for meta in files.values()])
    print(f"{len(files)} programs of {len(fold)} families", flush=True)
    rows: list[dict[str, Any]] = []
    for left_out in range(FOLDS):
        mine = [path for path, meta in files.items() if fold[meta["family"]] != left_out]
        models = [trained(arguments.runs / f"{left_out}-{seed}", mine, seed) for seed in seeds]
        asked = [path for path, meta in (files | others).items() if fold.get(meta["family"], 0) == left_out]
        rows += [row | {"trained_on_it": path in files} for path in asked for row in of_program(path, models)]
        print(f"fold {left_out}: {len(asked)} programs ranked", flush=True)
    about = {"weights": arguments.name, "folds": FOLDS, "seeds": arguments.seeds}
    results = record.open_results("weights") if arguments.keep else None
    for tried in TRUSTS:
        for device, means in table(rows, tried).items():
            print(f"trust {tried}, {device}: " + ", ".join(f"{key} {value}" for key, value in means.items()))
            if results is not None:
                results.append(**about, profiled_on=device, trust=tried, means=means)
    if results is not None:
        for row in (row for row in rows if row["trained_on_it"] and row["trust"] == trust):
            results.append(**about, **row)
    if arguments.ship:
        models = [trained(arguments.runs / f"all-{seed}", list(files), seed) for seed in seeds]
        ship(arguments.name, models, trust, rows, list(files.values()))
    return 0


def programs(folders: Sequence[str]) -> dict[Path, dict[str, Any]]:
    """File -> what it says of itself, of all splits of some devices."""
    paths = (path for folder in folders for path in npz_files([f"{folder}/{part}" for part in SPLITS]))
    return {path: dict(read(path, test=False).split.meta) for path in paths}


def folds(families: Sequence[str]) -> dict[str, int]:
    """Family -> its fold: about as many programs in each, the same whatever the order of the files."""
    sizes = Counter(families)
    names = sorted(sizes)
    random.Random(0).shuffle(names)
    found: dict[str, int] = {}
    loads = [0] * FOLDS
    for name in sorted(names, key=lambda n: -sizes[n]):
        found[name] = int(np.argmin(loads))
        loads[found[name]] += sizes[name]
    return found


def trained(folder: Path, files: Sequence[Path], seed: int) -> Trained:
    """What the config makes of some files, its head trusted all the way; from the folder if it is there."""
    if not (folder / "weights.npz").exists():
        given = {
            "data.files": list(map(str, files)),
            "held_out.by": "nothing",
            "optimiser.trust": 1.0,
            **{"run.folder": str(folder), "run.seed": seed, "run.evaluate_every": 0, "run.checkpoint_every": 0},
        }
        train(read_config("split", [f"{key}={json.dumps(value)}" for key, value in given.items()]))
    return load(folder / "weights.npz")


def of_program(path: Path, models: Sequence[Trained]) -> list[dict[str, Any]]:
    """One program ranked by the ensemble, a row for each trust; none where there is nothing to choose."""
    program, rows = profiled(path), []
    for trust in TRUSTS if program is not None else ():
        rankers = (Ranker(name="", trained=at_trust(model, trust)) for model in models)
        row = judged(program, Ensemble(name="", rankers=tuple(rankers)))
        numbers = {key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()}
        rows.append({"profiled_on": path.parent.parent.name, "trust": trust, **numbers})
    return rows


def at_trust(model: Trained, trust: float) -> Trained:
    """What `optimiser.trust` exports of a run that was exported whole."""
    return dataclasses.replace(model, variables=trusted(model.variables, trust))


def table(rows: Sequence[dict[str, Any]], trust: float) -> dict[str, dict[str, Any]]:
    """Device -> means over its programs: geometric ones of slowdowns, and the worst; Kendall's tau."""
    found: dict[str, dict[str, Any]] = {}
    for device in sorted({row["profiled_on"] for row in rows}):
        mine = [row for row in rows if (row["profiled_on"], row["trust"]) == (device, trust)]
        means: dict[str, Any] = {"programs": len(mine), "trained_on_it": mine[0]["trained_on_it"]}
        for who in NAMES:
            means[who] = geometric_mean(row[who] for row in mine)
            means[f"{who}_worst"] = max(row[who] for row in mine)
            means[f"{who}_3"] = geometric_mean(row[f"{who}_3"] for row in mine)
        ratios = np.log([row["learned"] / row["analytic"] for row in mine])
        for what in ("advised_3", "apart_3"):
            means[what] = geometric_mean(row[what] for row in mine)
        means["learned_over_analytic"] = float(np.exp(ratios.mean()))
        means["its_standard_error"] = float(ratios.std(ddof=1) / math.sqrt(len(mine)))
        for who in ("learned", "analytic"):
            means[f"{who}_tau"] = float(np.nanmean([row[f"tau_{who}"] for row in mine]))
        found[device] = {key: round(v, 4) if isinstance(v, float) else v for key, v in means.items()}
    return found


def ship(
    name: str,
    models: Sequence[Trained],
    trust: float,
    rows: Sequence[dict[str, Any]],
    metas: Sequence[dict[str, Any]],
) -> None:
    """Write the models that were trained on everything, with a card that names no path of this machine."""
    means = table(rows, trust)
    WEIGHTS.mkdir(exist_ok=True)
    for seed, model in enumerate(models):
        sections = {section: model.card["config"][section] for section in ("model", "optimiser")}
        card = {
            "weights": name,
            "seed": seed,
            "config": {**sections, "optimiser": {**sections["optimiser"], "trust": trust}},
            "data": {"hash": model.card["data"]["hash"], "programs": len(metas)},
            "label": sorted({meta["label"] for meta in metas}),
            "families": sorted({meta["family"] for meta in metas}),
            "held_out": {
                "folds_by_family": FOLDS,
                "seeds": len(models),
                "by_device": {device: m for device, m in means.items() if m["trained_on_it"]},
                "on_other_devices": {device: m for device, m in means.items() if not m["trained_on_it"]},
            },
            "known_failures": failures(rows, trust),
            "versions": model.card["versions"],
        }
        save(WEIGHTS / f"{name}.{seed}.npz", dataclasses.replace(at_trust(model, trust), card=card))


def failures(rows: Sequence[dict[str, Any]], trust: float, most: int = 5) -> list[str]:
    """The programs whose first pick is furthest from the best, of the devices that were trained on."""
    mine = [row for row in rows if row["trained_on_it"] and row["trust"] == trust]
    worst = sorted(mine, key=lambda row: -row["learned"])[:most]
    return [f"{row['program']} on {row['profiled_on']}: {row['learned']:.2f} times the best" for row in worst]


if __name__ == "__main__":
    sys.exit(main())
