"""Make the graph of an HLO module, as TpuGraphs has them, and say how big it is.

  exla features module.hlo.pb -o module.npz

MODULE is a serialised HloModuleProto or HloProto (what --xla_dump_to with --xla_dump_hlo_as_proto writes), or HLO text,
before or after optimisation. Opcodes that TpuGraphs has no number for are 0, and element types that it does not know
have that of a narrow one of their kind; both are listed. FILE.npz has node_feat, node_opcode, edge_index and
node_splits, and two lists of names; docs/cost_model.md says what they are. Nothing is compiled or run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from exla.commands.records_common import counted
from exla.cost_model.features import Features, featurize
from exla.cost_model.hlo import read_module
from exla.report.records import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("module", type=Path, metavar="MODULE", help="a file that holds an HLO module")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE.npz", help="where the graph is written")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print what the graph is; 0."""
    features = featurize(read_module(arguments.module))
    if arguments.out is not None:
        arrays: dict[str, Any] = features.arrays()
        with open(arguments.out, "wb") as file:  # of a name, NumPy makes another
            np.savez_compressed(file, **arrays)
    if arguments.json:
        print(json.dumps(_row(features)))
    else:
        _print(features)
    if arguments.out is not None:
        print(f"exla: wrote {arguments.out}", file=sys.stderr)
    return 0


def _row(features: Features) -> dict[str, object]:
    graph = features.graph
    return {
        "name": graph.name,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "segments": len(graph.node_splits) - 1,
        "unknown_opcodes": dict(features.unknown_opcodes),
        "replaced_types": dict(features.replaced_types),
        "dynamic_nodes": len(features.dynamic_nodes),
    }


def _print(features: Features) -> None:
    graph = features.graph
    counts = (
        counted(graph.num_nodes, "node"),
        counted(graph.num_edges, "edge"),
        counted(len(graph.node_splits) - 1, "segment"),
    )
    print(f"{printable(graph.name)}: {', '.join(counts)}")
    if features.unknown_opcodes:
        print(f"opcodes without a number, 0 here: {_listed(features.unknown_opcodes)}")
    if features.replaced_types:
        print(f"element types without a feature, shown as another: {_listed(features.replaced_types)}")
    if features.dynamic_nodes:
        print(f"{counted(len(features.dynamic_nodes), 'node')} of a dynamic size")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{printable(name)} ({counted(count, 'node')})" for name, count in sorted(counts.items()))
