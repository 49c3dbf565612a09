"""The featuriser against TpuGraphs' own files: what they hold, and that it gives it back."""

import json

import numpy as np
import pytest

from exla.cost_model.features import featurize
from exla.cost_model.hlo import parse_module
from exla.cost_model.hlo_pb2 import HloModuleProto
from exla.cost_model.node_features import NODE_FEATURES
from exla.cost_model.opcodes import OPCODES
from tests.cost_model.shared_data import FILES, LAYOUT, TILE, load_graph, shared
from tests.cost_model.written_hlo import COLUMN, Written, kernel_text, rows_text


def written(graph):
    return Written(graph["node_feat"], graph["node_opcode"], graph["edge_index"])


def test_names_and_their_order_are_those_of_tpugraphs():
    published = json.loads(shared("node_feature_names.json").read_text())
    words = [published[str(k)].split(" - ")[0].split(" = ")[0] for k in range(len(published))]
    assert list(NODE_FEATURES) == words and all(NODE_FEATURES.values())


def test_opcode_ids_are_those_of_tpugraphs():
    published = json.loads(shared("opcodes.json").read_text())
    assert {str(number): name for number, name in enumerate(OPCODES, start=1)} == published


@pytest.mark.parametrize("name", TILE)
def test_a_published_kernel_is_reproduced_from_hlo_that_xla_parses(name):
    graph = load_graph(f"tile/{name}.npz")
    made = featurize(parse_module(kernel_text(written(graph)).encode())).graph
    np.testing.assert_array_equal(made.node_opcode, graph["node_opcode"])
    np.testing.assert_array_equal(made.edge_index, graph["edge_index"])
    np.testing.assert_array_equal(made.node_feat, graph["node_feat"])
    assert made.node_splits.tolist() == [0, made.num_nodes]


@pytest.mark.parametrize("name", LAYOUT)
def test_every_row_of_a_published_program_is_reproduced_from_hlo_that_xla_parses(name):
    graph = written(load_graph(f"layout/{name}.npz"))
    kinds = {(graph.opcodes[n], graph.features[n, 1:].tobytes()): n for n in range(len(graph.opcodes))}
    nodes = [n for (opcode, _), n in kinds.items() if opcode != "parameter"]
    made = featurize(parse_module(rows_text(graph, nodes).encode()))
    positions = {name: position for position, name in enumerate(made.instruction_names)}
    rows = made.graph.node_feat[[positions[f"n{n}"] for n in nodes]]
    assert len(nodes) > 100
    np.testing.assert_array_equal(rows[:, 1:], graph.features[nodes, 1:])


@pytest.mark.parametrize("name", LAYOUT)
def test_edges_and_splits_of_a_published_program_are_those_of_its_computations(name):
    graph = load_graph(f"layout/{name}.npz")
    made = featurize(module_of(written(graph))).graph
    np.testing.assert_array_equal(made.node_opcode, graph["node_opcode"])
    np.testing.assert_array_equal(made.edge_index, graph["edge_index"])
    np.testing.assert_array_equal(made.node_feat[:, 0], graph["node_feat"][:, 0])
    np.testing.assert_array_equal(made.node_splits, graph["node_splits"][0])


def module_of(graph):
    """A module with the computations of a graph: a root ends one, but for what comes later and reads its inside."""
    module = HloModuleProto(name="published")
    roots = np.flatnonzero(graph.features[:, 0]).tolist()
    begin, owners = 0, {}
    for number, root in enumerate(roots):
        following = range(root + 1, roots[number + 1] if number + 1 < len(roots) else len(graph.opcodes))
        inside = [n for n in following if any(begin <= p < root for p in graph.operands(n))]
        end = max([root, *inside]) + 1
        computation = module.computations.add(id=number, root_id=root)
        owners[root] = number
        for node in range(begin, end):
            computation.instructions.add(
                id=node,
                opcode=graph.opcodes[node],
                operand_ids=graph.operands(node),
                called_computation_ids=[owners[r] for r in graph.called(node)],
            )
        begin = end
    module.entry_computation_id = len(roots) - 1
    return module


@pytest.mark.parametrize("name", FILES)
def test_what_the_docstring_says_holds_in_every_published_graph(name):
    graph = load_graph(name)
    features, edges = graph["node_feat"], graph["edge_index"]

    def columns(first, count):
        return features[:, COLUMN[first] : COLUMN[first] + count]

    def column(name):
        return features[:, COLUMN[name]]

    rows = [tuple(edge) for edge in edges.tolist()]
    assert rows == sorted(set(rows)) and (edges[:, 0] > edges[:, 1]).all()
    assert not column("element_size_in_bits").any()
    np.testing.assert_array_equal(columns("shape_element_type_is_invalid_type", 19).sum(1), 1)

    sizes = columns("shape_dimensions_0", 6).astype(np.int64)
    np.testing.assert_array_equal(column("shape_dimensions_sum"), sizes.sum(1).astype(np.float32))
    product = np.where(sizes == 0, 1, sizes).prod(1)
    np.testing.assert_array_equal(column("shape_dimensions_product"), product.astype(np.float32))

    windowed = column("window_size_sum") > 0
    for field in ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation"):
        np.testing.assert_array_equal(columns(f"window_{field}_0", 6).sum(1), column(f"window_{field}_sum"))
        assert (column(f"window_{field}_product")[~windowed] == 1).all()
    axes = (columns("window_size_0", 6) > 0).sum(1)
    flags = column("window_window_reversal_true_count") + column("window_window_reversal_false_count")
    np.testing.assert_array_equal(flags, axes)

    for field in ("slice_dims_start", "slice_dims_stride", "slice_dims_limit", "dynamic_slice_sizes"):
        absent = ~np.isin(graph["node_opcode"], [OPCODES.index(o) + 1 for o in ("slice", "dynamic-slice")])
        assert (column(f"{field}_sum")[absent] == 0).all() and (column(f"{field}_product")[absent] == 1).all()

    grouped = np.isin(graph["node_opcode"], [OPCODES.index(o) + 1 for o in ("convolution", "custom-call")])
    np.testing.assert_array_equal(column("feature_group_count"), grouped)
    np.testing.assert_array_equal(column("batch_group_count"), grouped)
    tuples = column("shape_element_type_is_tuple") == 1
    assert not columns("layout_minor_to_major_0", 6)[tuples].any()
    assert not column("parameter_number")[graph["node_opcode"] != OPCODES.index("parameter") + 1].any()
    np.testing.assert_array_equal(column("shape_tuple_shapes_size") > 0, tuples)
