"""How many candidates the spaces of ten programs have; the table of docs/space.md.

    python -m benchmarks.space_sizes

Programs of the zoo at the size `fitting`, with room for a quarter of the temporaries that exla projects; chunk sizes a
factor of two apart, up to two splits one after another. Up to 500 candidates are counted, more are estimated from 48
random walks. Nothing is compiled.
"""

import time

import exla
from benchmarks import record
from exla.datasets.profiling.zoo.programs import ZOO

NAMES = (
    *("rbf_product", "chamfer", "nearest_neighbours", "kmeans_step", "attention"),
    *("causal", "info_nce", "conv_net", "sinkhorn_fori", "kernel_gradient"),
)
SHARE = 1 / 4


def main() -> None:
    results = record.open_results("space_sizes")
    for name in NAMES:
        program = ZOO[name]
        arguments = program.arguments(program.fitting)
        peak = exla.jit(program.function, records="off").space(*arguments).root.peak
        fixed = peak.arguments_bytes + peak.outputs_bytes
        limit = fixed + int((peak.bytes - fixed) * SHARE)
        space = exla.jit(program.function, memory_limit=limit, records="off").space(*arguments)
        begin = time.perf_counter()
        starts, regions = len(space.starts), len(list(space.offers(space.rewritten)))
        space.depth = 1
        one = space.size(500, 48)
        space.depth = 2
        two = space.size(500, 48)
        row = {"program": name, "starts": starts, "regions": regions, "one_split": str(one), "two_splits": str(two)}
        results.append(**row, seconds=time.perf_counter() - begin)
        print(f"| {name} | {starts} | {regions} | {one} | {two} |", flush=True)


if __name__ == "__main__":
    main()
