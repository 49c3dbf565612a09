"""How well the analytic prediction ranks what campaigns measured, and with which rates it would rank better.

    python -m benchmarks.calibrate benchmarks/campaigns/xeon benchmarks/campaigns/cpu
    python -m benchmarks.calibrate benchmarks/campaigns/xeon --set kernel_s=1e-5 first_touch_bytes_per_s=3e9
    python -m benchmarks.calibrate benchmarks/campaigns/xeon --descend
    python -m benchmarks.calibrate benchmarks/campaigns/v5e         # estimates of the TPU's compiler

Every candidate that was measured is made again and predicted anew for each set of prices of `Machine` (seconds for a
kernel, for an element, …). For the prices as they are, as --set changes them and, with --descend, as halving and
doubling one after another improves them: slowdown of the first pick and of the best of three against the best of all
that obey, geometric means and the worst, and Kendall's tau. Nothing is measured here.
"""

import argparse
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean

import numpy as np

from exla.cost_model.metrics import kendall_tau, slowdown
from exla.datasets.profiling.export import made_again, obeys, times
from exla.datasets.profiling.run import Folder
from exla.search.cost import predict_with_memory_s
from exla.search.space import Candidate
from exla.targets.base import find_target
from exla.targets.machine import Machine

RATES = (
    *("flops", "elements", "chained", "blocked", "shortened", "shortened_nearby"),
    *("transcendentals", "serials", "compares", "scatters", "selects"),
    *("bytes_per_s", "cached_bytes_per_s", "near_bytes_per_s", "first_touch_bytes_per_s", "spilled_bytes_per_s"),
)
TIMES = ("select_row_s", "kernel_s", "trip_s", "one_core", "one_core_kernel_s", "one_core_trip_s")
SIZES = ("kept_bytes",)
FEWEST = 4
"""Candidates of an instance below which there is nothing to choose."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """An instance: (c,) seconds of the candidates that obey, the candidates, and the machine of their space."""

    seconds: np.ndarray
    candidates: list[Candidate]
    machine: Machine

    def predicted(self, machine: Machine) -> np.ndarray:
        """(c,) seconds, at the prices of a machine."""
        priced = replace(self.machine, **{name: getattr(machine, name) for name in (*RATES, *TIMES, *SIZES)})
        return np.array([predict_with_memory_s(c.program, c.peak, priced) for c in self.candidates])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaigns", nargs="+", type=Path, help="folders of campaigns, for one target")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=NUMBER", help="rates of Machine to try")
    parser.add_argument("--descend", action="store_true", help="look for better rates")
    arguments = parser.parse_args()
    changes = {name: float(value) for name, _, value in (text.partition("=") for text in arguments.set)}
    folders = {path.name: Folder.open(path) for path in arguments.campaigns}
    targets = {folder.campaign.target for folder in folders.values()}
    if len(targets) > 1:
        parser.error(f"campaigns for {', '.join(sorted(targets))}: the rates of each target are its own")
    campaigns = {name: measured(folder) for name, folder in folders.items()}
    everything = [one for found in campaigns.values() for one in found]
    machine = find_target(targets.pop()).machine()
    tried = {"as it is": machine}
    if changes:
        tried["changed"] = machine = replace(machine, **changes)
    if arguments.descend:
        tried["descended"] = descended(machine, everything)
    for name, one in tried.items():
        for campaign, found in campaigns.items():
            first, three, tau = judged(one, found)
            print(
                f"{name:10s} {campaign:10s} {len(found)} programs: first pick {geometric_mean(first):.3f}, worst "
                f"{max(first):.2f}; best of three {geometric_mean(three):.3f}; Kendall's tau {np.nanmean(tau):.3f}"
            )
    for name in (*RATES, *TIMES, *SIZES):
        print(f"{name:24s}", *(f"{getattr(one, name):10.3g}" for one in tried.values()))
    return 0


def measured(folder: Folder) -> list[Measured]:
    """What a campaign measured, with the candidates made again."""
    found = []
    instances = {i.name: i for i in folder.campaign.instances()}
    for name, records, _ in folder.records():
        kept = [(r, ns) for r, ns in times(records, folder.campaign.label)[0] if r.decisions and obeys(r)]
        if len(kept) < FEWEST or name not in instances:
            continue
        space, candidates, rows = made_again(instances[name], folder.campaign.target, kept)
        if len(candidates) >= FEWEST:
            seconds = np.array([ns / 1e9 for _, ns in rows])
            found.append(Measured(seconds=seconds, candidates=candidates, machine=space.machine))
    return found


def judged(machine: Machine, found: list[Measured]) -> tuple[list[float], list[float], list[float]]:
    """Slowdown of the first pick, of the best of three, and Kendall's tau, of each instance."""
    first, three, tau = [], [], []
    for one in found:
        predicted = one.predicted(machine)
        first.append(1 + slowdown(predicted, one.seconds))
        three.append(1 + slowdown(predicted, one.seconds, 3))
        tau.append(float(kendall_tau(predicted, one.seconds)))
    return first, three, tau


def descended(machine: Machine, found: list[Measured]) -> Machine:
    """Halve or double one rate after another, as long as the picks get better."""

    def loss(one: Machine) -> float:
        first, three, _ = judged(one, found)
        return math.log(geometric_mean(first)) + math.log(geometric_mean(three)) / 2

    least, improved = loss(machine), True
    while improved:
        improved = False
        for name in (*RATES, *TIMES, *SIZES):
            for factor in (0.5, 2.0):
                other = replace(machine, **{name: getattr(machine, name) * factor})
                if (found_loss := loss(other)) < least - 1e-6:
                    machine, least, improved = other, found_loss, True
    return machine


if __name__ == "__main__":
    sys.exit(main())
