"""Smaller graphs: which nodes are left, and that they are still the nodes that they were."""

import sys

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given as given_in_time
from hypothesis import settings

from exla.cost_model.graph import Graph
from exla.cost_model.transforms import METHODS, compress_paths, deduplicate_edges, prune, segments, subgraph
from exla.errors import GraphError, OptionError
from tests.cost_model.shared_data import LAYOUT, load_graph, shared


def given(**strategies):
    """Hypothesis without its time limit: no test is of speed."""
    return lambda test: settings(deadline=None)(given_in_time(**strategies)(test))


def make(count, edges, configurable=(), splits=()):
    """A graph whose nodes are told apart by their first feature and their opcode."""
    features = np.zeros((count, 140), np.float32)
    features[:, 0] = np.arange(count) + 100
    return Graph(
        name="made",
        node_feat=features,
        node_opcode=np.arange(count, dtype=np.uint8),
        edge_index=np.array(edges, np.int64).reshape(-1, 2),
        node_config_ids=np.array(configurable, np.int64),
        node_splits=np.array(splits, np.int64),
    )


def tags(graph):
    return graph.node_feat[:, 0].astype(int) - 100


def tagged(graph):
    """(nodes, edges, configurable nodes in order) by the numbers that the nodes had when they were made."""
    number = tags(graph)
    assert (number == graph.node_opcode).all()
    return (
        set(number.tolist()),
        {tuple(e) for e in number[graph.edge_index].tolist()},
        number[graph.node_config_ids].tolist(),
    )


@st.composite
def graphs(draw, acyclic=False, least=0):
    count = draw(st.integers(least, 12))
    if not count:
        return make(0, [])
    pairs = st.tuples(*[st.integers(0, count - 1)] * 2)
    edges = draw(st.lists(pairs, max_size=24))
    if acyclic:
        order = draw(st.permutations(range(count)))
        edges = [(order[max(a, b)], order[min(a, b)]) for a, b in edges if a != b]
    configurable = draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count))
    splits = sorted({0, count, *draw(st.lists(st.integers(0, count), max_size=3))})
    return make(count, edges, configurable, splits)


def shuffled(graph, order):
    """The same graph with its nodes in another order."""
    place = np.argsort(order)
    return Graph(
        name=graph.name,
        node_feat=graph.node_feat[order],
        node_opcode=graph.node_opcode[order],
        edge_index=place[graph.edge_index].reshape(-1, 2),
        node_config_ids=place[graph.node_config_ids],
    )


def within(graph, hops):
    """What `prune` keeps, one hop at a time."""
    near = set(graph.node_config_ids.tolist()) or set(range(graph.num_nodes))
    for _ in range(hops):
        near |= {a for a, b in graph.edge_index.tolist() if b in near} | {
            b for a, b in graph.edge_index.tolist() if a in near
        }
    return near


def reachable(nodes, edges):
    """Pairs of different nodes of which the first is reached from the second."""
    nodes = sorted(nodes)
    place = {node: k for k, node in enumerate(nodes)}
    paths = np.zeros((len(nodes), len(nodes)), bool)
    for consumer, producer in edges:
        paths[place[consumer], place[producer]] = True
    for middle in range(len(nodes)):
        paths |= paths[:, middle : middle + 1] & paths[middle]
    return {(nodes[a], nodes[b]) for a, b in zip(*np.nonzero(paths), strict=True) if a != b}


REDUCTIONS = {
    "prune to the configurable nodes": lambda graph: prune(graph, 0),
    "prune to two hops": lambda graph: prune(graph, 2),
    "compress paths": compress_paths,
    "the whole": lambda graph: subgraph(graph, range(graph.num_nodes)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@given(graph=graphs())
def test_the_record_says_which_nodes_and_configurations_are_left(name, graph):
    reduced = REDUCTIONS[name](graph)
    assert tags(reduced.graph).tolist() == reduced.nodes.tolist() == sorted(set(reduced.nodes.tolist()))
    left = graph.node_config_ids[reduced.configs].tolist()
    assert tagged(reduced.graph)[2] == left == [n for n in graph.node_config_ids.tolist() if n in reduced.nodes]
    assert reduced.configs.tolist() == sorted(reduced.configs.tolist())
    assert set(graph.node_config_ids.tolist()) <= set(reduced.nodes.tolist())
    assert reduced.graph.edge_index.dtype == reduced.graph.node_config_ids.dtype == np.int64
    assert reduced.graph.edge_index.shape[1] == 2 and reduced.graph.name == graph.name


@pytest.mark.parametrize("name", REDUCTIONS)
@given(graph=graphs(), data=st.data())
def test_a_shuffled_graph_is_reduced_to_the_same_nodes_and_edges(name, graph, data):
    order = np.array(data.draw(st.permutations(range(graph.num_nodes))), np.int64)
    assert tagged(REDUCTIONS[name](shuffled(graph, order)).graph) == tagged(REDUCTIONS[name](graph).graph)


@pytest.mark.parametrize("name", REDUCTIONS)
@given(graph=graphs())
def test_computations_begin_and_end_where_they_did(name, graph):
    reduced = REDUCTIONS[name](graph)
    pieces = np.split(reduced.nodes, reduced.graph.node_splits[1:-1])
    wanted = [
        [n for n in reduced.nodes if a <= n < b] for a, b in zip(graph.node_splits, graph.node_splits[1:], strict=False)
    ]
    assert [p.tolist() for p in pieces if len(p)] == [w for w in wanted if w]


@given(graph=graphs(), hops=st.integers(0, 4))
def test_what_is_pruned_is_farther_than_the_hops_and_edges_between_the_others_stay(graph, hops):
    nodes, edges, _ = tagged(prune(graph, hops).graph)
    assert nodes == within(graph, hops)
    assert edges == {(a, b) for a, b in graph.edge_index.tolist() if a in nodes and b in nodes}


def test_pruning_follows_edges_both_ways():
    graph = make(6, [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)], [2])
    assert prune(graph, 1).nodes.tolist() == [1, 2, 3] and prune(graph, 2).nodes.tolist() == [0, 1, 2, 3, 4]


def test_what_shares_a_consumer_is_two_hops_away():
    graph = make(3, [(1, 0), (1, 2)], [0])
    assert prune(graph, 1).nodes.tolist() == [0, 1] and prune(graph, 2).nodes.tolist() == [0, 1, 2]


def test_a_graph_without_configurable_nodes_is_not_pruned():
    assert prune(make(3, [(1, 0)]), 0).nodes.tolist() == [0, 1, 2]


@given(graph=graphs())
def test_compressing_keeps_who_is_reached_from_whom(graph):
    nodes, edges, _ = tagged(compress_paths(graph).graph)
    before = reachable(range(graph.num_nodes), graph.edge_index.tolist())
    assert reachable(nodes, edges) == {(a, b) for a, b in before if a in nodes and b in nodes}


@given(graph=graphs(acyclic=True))
def test_exactly_the_nodes_that_only_pass_a_value_on_are_dropped(graph):
    edges = {tuple(e) for e in graph.edge_index.tolist()}
    passing = {
        node
        for node in range(graph.num_nodes)
        if sum(a == node for a, _ in edges) == 1 == sum(b == node for _, b in edges)
        and node not in graph.node_config_ids
    }
    assert set(compress_paths(graph).nodes.tolist()) == set(range(graph.num_nodes)) - passing


CHAINS = {
    "a chain": (make(4, [(1, 0), (2, 1), (3, 2)]), {0, 3}, {(3, 0)}),
    "a long chain": (make(20, [(n + 1, n) for n in range(19)]), {0, 19}, {(19, 0)}),
    "a configurable node in it": (make(4, [(1, 0), (2, 1), (3, 2)], [2]), {0, 2, 3}, {(2, 0), (3, 2)}),
    "a chain beside an edge": (make(3, [(1, 0), (2, 1), (2, 0)]), {0, 2}, {(2, 0)}),
    "a diamond": (make(4, [(1, 0), (2, 0), (3, 1), (3, 2)]), {0, 3}, {(3, 0)}),
    "two producers": (make(4, [(2, 0), (2, 1), (3, 2)]), {0, 1, 2, 3}, {(2, 0), (2, 1), (3, 2)}),
    "an edge twice": (make(3, [(1, 0), (1, 0), (2, 1)]), {0, 2}, {(2, 0)}),
    "an edge to itself": (make(3, [(1, 0), (1, 1), (2, 1)]), {0, 2}, {(2, 0)}),
    "a ring": (make(3, [(1, 0), (2, 1), (0, 2)]), {0, 1, 2}, {(1, 0), (2, 1), (0, 2)}),
    "a ring through a configurable node": (make(3, [(1, 0), (2, 1), (0, 2)], [1]), {1}, set()),
    "one node": (make(1, []), {0}, set()),
    "no node": (make(0, []), set(), set()),
    "two chains apart": (make(6, [(1, 0), (2, 1), (4, 3), (5, 4)]), {0, 2, 3, 5}, {(2, 0), (5, 3)}),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_contracted(name):
    graph, nodes, edges = CHAINS[name]
    assert tagged(compress_paths(graph).graph)[:2] == (nodes, edges)


@given(graph=graphs())
def test_edges_are_deduplicated_and_sorted(graph):
    edges = deduplicate_edges(graph).edge_index.tolist()
    assert edges == sorted([a, b] for a, b in {tuple(e) for e in graph.edge_index.tolist()} if a != b)


def test_a_subgraph_has_the_nodes_that_are_named_each_once():
    part = subgraph(make(4, [(1, 0), (2, 1), (3, 2)], [3, 1, 0]), [3, 2, 3, 1])
    assert part.nodes.tolist() == [1, 2, 3] and part.configs.tolist() == [0, 1]
    assert part.graph.node_config_ids.tolist() == [2, 0] and part.graph.edge_index.tolist() == [[1, 0], [2, 1]]
    with pytest.raises(GraphError, match="has 4 nodes and none that is number 4"):
        subgraph(make(4, []), [4])
    with pytest.raises(GraphError, match="number -1"):
        subgraph(make(4, []), [-1])


def needs(method):
    if method == "metis":
        pytest.importorskip("pymetis")


@pytest.mark.parametrize("method", METHODS)
@given(graph=graphs(acyclic=True), size=st.integers(1, 14))
def test_every_node_is_in_one_segment_and_none_is_too_large(method, graph, size):
    needs(method)
    found = segments(graph, size, method)
    assert sorted(n for nodes in found for n in nodes.tolist()) == list(range(graph.num_nodes))
    assert all(0 < len(nodes) <= size for nodes in found)
    assert all(nodes.dtype == np.int64 for nodes in found)


@given(graph=graphs(acyclic=True), size=st.integers(1, 14))
def test_no_topological_segment_reads_a_later_one(graph, size):
    found = segments(graph, size)
    place = {node: position for position, node in enumerate(np.concatenate(found).tolist() if found else [])}
    assert all(place[producer] < place[consumer] for consumer, producer in graph.edge_index.tolist())
    assert len(found) == -(-graph.num_nodes // size) and len({len(nodes) for nodes in found}) <= 2


def test_a_graph_whose_nodes_are_in_order_is_cut_into_runs_of_nodes():
    graph = make(7, [(1, 0), (4, 2), (6, 5)])
    assert [nodes.tolist() for nodes in segments(graph, 3)] == [[0, 1, 2], [3, 4], [5, 6]]


def test_metis_cuts_where_there_are_few_edges():
    pytest.importorskip("pymetis")
    cliques = [(a, b) for a in range(20) for b in range(a) if a % 2 == b % 2]
    found = segments(make(20, [*cliques, (1, 0)]), 10, "metis")
    assert [nodes.tolist() for nodes in found] == [list(range(0, 20, 2)), list(range(1, 20, 2))]


def test_a_part_that_metis_does_not_cut_is_halved(monkeypatch):
    pymetis = pytest.importorskip("pymetis")
    monkeypatch.setattr(pymetis, "part_graph", lambda count, adjacency: (0, [0] * len(adjacency)))
    assert [nodes.tolist() for nodes in segments(make(5, [(1, 0)]), 2, "metis")] == [[0, 1], [2], [3, 4]]


@pytest.mark.parametrize("method", METHODS)
def test_segments_are_the_same_each_time(method):
    needs(method)
    rng = np.random.default_rng(0)
    graph = make(200, [(a, int(rng.integers(a))) for a in range(1, 200) for _ in range(2)])
    first, second = (segments(graph, 30, method) for _ in range(2))
    assert [a.tolist() for a in first] == [b.tolist() for b in second]


def test_a_cycle_has_no_topological_order_but_can_be_cut_by_metis():
    graph = make(5, [(1, 0), (2, 1), (3, 2), (1, 3), (4, 3)])
    with pytest.raises(GraphError, match=r"'made' has a cycle.* 4 nodes .* \[1, 2, 3, 4\]"):
        segments(graph, 2)
    pytest.importorskip("pymetis")
    assert sorted(n for nodes in segments(graph, 2, "metis") for n in nodes.tolist()) == [0, 1, 2, 3, 4]


def test_what_is_not_understood_lists_what_is():
    with pytest.raises(OptionError, match="no method 'random' to cut a graph by; there are: topological, metis"):
        segments(make(1, []), 1, "random")
    with pytest.raises(OptionError, match="from 1; it was 0"):
        segments(make(1, []), 0)
    with pytest.raises(OptionError, match="from 0; it was -1"):
        prune(make(1, []), -1)


def test_without_pymetis_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match=r'pip install "exla\[train\]"'):
        segments(make(2, []), 1, "metis")


@pytest.mark.parametrize("name", LAYOUT)
def test_a_published_program_is_made_smaller_and_cut(name):
    with np.load(shared(f"layout/{name}.npz"), allow_pickle=False) as arrays:
        ids = arrays["node_config_ids"]
    arrays = load_graph(f"layout/{name}.npz")
    arrays["node_splits"] = arrays["node_splits"][0]
    graph = Graph(name=name, node_config_ids=ids, **arrays)
    near, short = prune(graph, 1), compress_paths(graph)
    for reduced in (near, short):
        assert 0 < reduced.graph.num_nodes < graph.num_nodes and reduced.graph.num_config_nodes == len(ids)
        left = reduced.graph.node_config_ids
        np.testing.assert_array_equal(reduced.graph.node_opcode[left], graph.node_opcode[ids])
        np.testing.assert_array_equal(reduced.graph.node_feat, graph.node_feat[reduced.nodes])
    for method in METHODS:
        needs(method)
        found = segments(graph, 100, method)
        assert max(map(len, found)) <= 100 and sum(map(len, found)) == graph.num_nodes
