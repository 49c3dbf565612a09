"""What a cost model reads of a space: one graph, and numbers that tell its candidates apart."""

import jax
import numpy as np
import pytest

from exla.call import read
from exla.cost_model.split_configs import COLUMNS, ROLES, describe
from exla.datasets.profiling.zoo.programs import ZOO
from exla.ir.memory import project
from exla.options import Options
from exla.search.choice import Call
from exla.search.driver import space_of
from exla.search.pool import pool
from exla.targets.base import find_target

AT = {name: k for k, name in enumerate(COLUMNS)}
KNOWN_WITHOUT = [AT["predicted_us"], AT["temporary_bytes"]]


def space(function, arguments, share=0.2):
    flat = read(jax.make_jaxpr(function)(*arguments), "cpu")
    floor = project(flat)
    fixed = floor.arguments_bytes + floor.outputs_bytes
    call = Call(program=flat, compile_plain=lambda: None, donated=(), compiler_options={})
    options = Options(memory_limit=fixed + max(int((floor.bytes - fixed) * share), 4096))
    return space_of(call, find_target("cpu"), options)


def zoo_space(name, size=None):
    return space(ZOO[name].function, ZOO[name].arguments(size or ZOO[name].tiny * 2))


@pytest.mark.parametrize("name", ["kernel_gradient", "attention", "nearest_neighbours", "sinkhorn_fori", "svgd_step"])
def test_candidates_that_differ_have_numbers_that_differ(name):
    made = zoo_space(name)
    candidates = pool(made, most=24, seconds=30.0)  # never by the clock
    assert len(candidates) >= 4
    configs = describe(made.starts).configs(candidates, made.option_sets)
    assert configs.shape[0] == len(candidates) and configs.shape[2] == 18 and np.isfinite(configs).all()
    told_apart = np.delete(configs, KNOWN_WITHOUT, axis=2)  # what is predicted would tell nearly all apart
    assert len({row.tobytes() for row in told_apart}) == len(candidates)


def test_numbers_say_what_was_decided():
    def smooth(x, y, v):
        return jax.numpy.exp(-abs(x[:, None] - y[None])) @ v

    made = space(smooth, (np.ones(300, np.float32), np.ones(200, np.float32), np.ones(200, np.float32)))
    offers = [s for s in made.offers(made.root) if s.region.size == 300]
    candidate = next(made.under(made.cut(made.root, offers[0], 32)))
    described = describe(made.starts)
    (config,) = described.configs([candidate], made.option_sets)
    exps = [k for k, (_, key) in enumerate(described.nodes) if key == ("equation", _number_of(made, "exp"))]
    row = config[exps[-1]]
    assert row[AT["extent_0"]] == np.log2(32).astype(np.float32) and row[AT["extent_1"]] == np.float32(np.log2(200))
    assert row[AT["extent_2"]] == -1 and row[AT["depth"]] == 1 and row[AT["loop"]] == 0
    assert row[AT["trips_outer"]] == np.float32(np.log2(300 / 32)) and row[AT["trips_inner"]] == -1
    assert ROLES[int(row[AT["role"]])] == "inside"
    dot = next(k for k, (_, key) in enumerate(described.nodes) if key == ("equation", _number_of(made, "dot_general")))
    assert ROLES[int(config[dot][AT["role"]])] == "stacked"
    by_input = {key[1]: config[k] for k, (_, key) in enumerate(described.nodes) if key[0] == "input"}
    assert ROLES[int(by_input[0][AT["role"]])] == "sliced_leaf" and by_input[0][AT["extent_0"]] == 5
    assert ROLES[int(by_input[2][AT["role"]])] == "whole_leaf"
    assert (config[:, AT["options"]] == 0).all()


def _number_of(made, primitive):
    return next(k for k, e in enumerate(made.root.program.eqns) if e.primitive.name == primitive)


def test_a_rewritten_program_stands_beside_the_original_and_only_one_of_them_is_a_candidates():
    made = zoo_space("einsum_chain", 400)
    assert len(made.starts) > 1
    described = describe(made.starts, "neighbours")
    graph = described.graph
    candidates = [next(c for c in made.below(start) if c.splits) for start in made.starts[:2]]
    roles = described.configs(candidates, made.option_sets)[:, :, AT["role"]]
    of = np.array([start for start, _ in described.nodes])
    other = ROLES.index("other_start")
    for number, row in enumerate(roles):
        assert (row[of != number] == other).all() and not (row[of == number] == other).any()
    assert graph.name == "neighbours" and len(set(graph.node_config_ids.tolist())) == graph.num_config_nodes
    assert graph.node_splits[0] == 0 and graph.node_splits[-1] == graph.num_nodes
    assert (np.diff(graph.node_splits) > 0).all() and graph.edge_index.max() < graph.num_nodes


def test_a_candidate_replayed_from_its_decisions_has_the_same_numbers():
    made = zoo_space("svgd_step")
    candidates = pool(made, most=8, seconds=0.0)
    again = [made.build(c.all_decisions) for c in candidates]
    described = describe(made.starts)
    np.testing.assert_array_equal(
        described.configs(candidates, made.option_sets), described.configs(again, made.option_sets)
    )
