"""From which predicted gain on something else is surely faster than a program that obeys as it is (`cpu.SURE_GAIN`).

    python -m benchmarks.sure_gain benchmarks/campaigns/epyc benchmarks/campaigns/xeon

Of every instance of a campaign whose plain program was timed, the candidate that `exla.search.faster` would use: the
fastest by prediction of those that were measured. The plain program is compiled again, as what it spends on storing is
believed by what its compiler counts. For each least gain: how many instances something else would be used in, what it
took of the plain program's time, and where it was slower. Nothing is measured here.
"""

import argparse
import sys
from pathlib import Path
from statistics import geometric_mean

import jax

from exla.datasets.profiling.export import made_again, times
from exla.datasets.profiling.prepare import Settled, prepare
from exla.datasets.profiling.run import Folder
from exla.passes.decisions import Reorder
from exla.search.faster import LEAST_S, MOST_EQUATIONS, MOST_SPLITS, believed, most_bytes, surely_s

GAINS = (1.25, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaigns", nargs="+", type=Path, help="folders of campaigns, for a CPU")
    found = [one for path in parser.parse_args().campaigns for one in gains(Folder.open(path))]
    for least in GAINS:
        used = [(name, gain, share) for name, gain, share in found if gain >= least]
        if used:
            shares = [share for _, _, share in used]
            slower = ", ".join(f"{name} {share:.2f}" for name, gain, share in used if share > 1)
            print(
                f"{least:4.2f} {len(used):4d} of {len(found)} instances: {geometric_mean(shares):.3f} of the time, at "
                f"most {max(shares):.2f}; slower: {slower or 'none'}"
            )
    return 0


def gains(folder: Folder) -> list[tuple[str, float, float]]:
    """Of each instance its name, the predicted gain (0 = of nothing), and the share of the plain program's time."""
    instances, found = {i.name: i for i in folder.campaign.instances()}, []
    for name, records, _ in folder.records():
        kept = times(records, folder.campaign.label)[0]
        if name not in instances or all(r.decisions for r, _ in kept):
            continue
        space, candidates, rows = made_again(instances[name], folder.campaign.target, kept)
        taken = {c.all_decisions: ns for c, (_, ns) in zip(candidates, rows, strict=True)}
        root = space.root
        if root.all_decisions not in taken:
            continue
        found.append((name, 0.0, 1.0))
        if root.seconds < LEAST_S or len(root.program.eqns) > MOST_EQUATIONS:
            continue
        prepared = prepare(instances[name], folder.campaign.target, Settled.by(r for r, _ in kept))
        plain = jax.jit(prepared.function).lower(*prepared.arguments).compile().memory_analysis()
        plain_s, most = surely_s(plain.temp_size_in_bytes, space), most_bytes(root)
        offered = (c for c in candidates if c.decisions and not any(isinstance(d, Reorder) for d in c.decisions))
        left = (c for c in offered if not c.splits or (len(c.splits) <= MOST_SPLITS and c.peak.bytes <= most))
        other = believed(left, plain_s, space.machine)
        if other is not None and plain_s >= LEAST_S:
            share = taken[other.all_decisions] / taken[root.all_decisions]
            found[-1] = (name, plain_s / other.seconds, share)
    return found


if __name__ == "__main__":
    sys.exit(main())
