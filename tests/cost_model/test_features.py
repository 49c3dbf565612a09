"""Graphs of modules: programs of JAX, and HLO that says by itself what the features have to be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from exla.cost_model.features import featurize
from exla.cost_model.graph import NODE_FEATURES as NODE_FEATURE_COUNT
from exla.cost_model.hlo import parse_module
from exla.cost_model.hlo_pb2 import PrimitiveType
from exla.cost_model.node_features import ELEMENT_TYPES, GROUPS, NODE_FEATURES, STAND_INS
from exla.cost_model.opcodes import OPCODES, opcode_id, opcode_name
from tests.golden.hlo.make import OPTIMISED, PROGRAMS, lower

COLUMN = {name: column for column, name in enumerate(NODE_FEATURES)}


def of_text(entry, before=""):
    return featurize(parse_module(f"HloModule m\n{before}\nENTRY main {{\n{entry}\n}}".encode()))


def row(features, name):
    """Feature name -> value, of those that are not what they are of nothing."""
    values = features.graph.node_feat[features.instruction_names.index(name)]
    nothing = {column: float(feature.endswith("_product")) for feature, column in COLUMN.items()}
    return {feature: values[column] for feature, column in COLUMN.items() if values[column] != nothing[column]}


def edges(features):
    names = features.instruction_names
    return {(names[consumer], names[producer]) for consumer, producer in features.graph.edge_index}


def test_there_are_140_features_and_each_group_reads_as_many_as_it_names():
    assert len(NODE_FEATURES) == NODE_FEATURE_COUNT == sum(len(group.meanings) for group in GROUPS)
    assert all(len(meaning) > 3 and "\n" not in meaning for meaning in NODE_FEATURES.values())


def test_every_opcode_has_an_id_of_its_own():
    assert [opcode_id(name) for name in OPCODES] == list(range(1, 121))
    assert opcode_id("erf") == 0 and opcode_name(0) == "unknown" and opcode_name(2) == "add"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_jax_is_a_graph_whose_edges_are_its_operands_and_calls(name):
    for data in lower(name).values():
        module = parse_module(data)
        features = featurize(module)
        graph = features.graph
        instructions = [(c, i) for c in module.computations for i in c.instructions]
        assert graph.num_nodes == len(instructions) == len(features.op_names)
        assert graph.node_feat.shape == (graph.num_nodes, 140) and graph.node_feat.dtype == np.float32
        assert graph.node_opcode.dtype == np.uint8 and graph.edge_index.dtype == np.int64
        assert features.instruction_names == tuple(i.name for _, i in instructions)
        wanted = set()
        for computation, instruction in instructions:
            names = {i.id: i.name for i in computation.instructions}
            wanted |= {(instruction.name, names[operand]) for operand in instruction.operand_ids}
            for called in module.computations:
                if called.id in instruction.called_computation_ids:
                    root = next(i.name for i in called.instructions if i.id == called.root_id)
                    wanted.add((instruction.name, root))
        assert edges(features) == wanted and len(wanted) == graph.num_edges
        assert (graph.edge_index[:, 0] > graph.edge_index[:, 1]).all()
        assert int(graph.node_feat[:, 0].sum()) == len(module.computations)
        assert graph.node_splits[0] == 0 and graph.node_splits[-1] == graph.num_nodes
        assert (np.diff(graph.node_splits) > 0).all() and np.isfinite(graph.node_feat).all()


def test_optimised_modules_have_fusions_and_keep_the_names_of_scopes():
    for name in OPTIMISED:
        features = featurize(parse_module(lower(name)[f"{name}_optimised"]))
        assert opcode_id("fusion") in features.graph.node_opcode
        assert any(n.startswith(f"jit({name})/") for n in features.op_names)


def test_named_scopes_are_in_the_names_of_nodes():
    features = featurize(parse_module(lower("attention")["attention"]))
    scaled = [n for n, name in enumerate(features.op_names) if name == "jit(attention)/scores/div"]
    assert [opcode_name(features.graph.node_opcode[n]) for n in scaled] == ["broadcast", "divide"]


def test_a_slice_a_dynamic_slice_and_a_pad_give_two_axes_and_the_totals_of_all():
    features = of_text("""
      x = f32[8,9,10]{2,1,0} parameter(0)
      i = s32[] parameter(1)
      zero = f32[] constant(0)
      cut = f32[3,2,4]{2,1,0} slice(x), slice={[1:7:2], [2:4], [0:10:3]}
      moved = f32[2,3,4]{2,1,0} dynamic-slice(x, i, i, i), dynamic_slice_sizes={2,3,4}
      wide = f32[13,9,9]{2,1,0} pad(x, zero), padding=2_3x0_0x-1_0
      ROOT all = (f32[3,2,4]{2,1,0}, f32[2,3,4]{2,1,0}, f32[13,9,9]{2,1,0}) tuple(cut, moved, wide)
    """)

    def part(name, prefix):
        values = {k.removeprefix(prefix): v for k, v in row(features, name).items() if k.startswith(prefix)}
        return values

    assert part("cut", "slice_dims_start_") == {"0": 1, "1": 2, "sum": 3, "product": 0}
    assert part("cut", "slice_dims_stride_") == {"0": 2, "1": 1, "sum": 6, "product": 6}
    assert part("cut", "slice_dims_limit_") == {"0": 7, "1": 4, "sum": 21, "product": 280}
    assert part("moved", "dynamic_slice_sizes_") == {"0": 2, "1": 3, "sum": 9, "product": 24}
    assert part("wide", "padding_config_edge_padding_low_") == {"0": 2, "sum": 1, "product": 0}
    assert part("wide", "padding_config_edge_padding_high_") == {"0": 3, "sum": 3, "product": 0}
    assert row(features, "all") == {"is_root": 1, "shape_element_type_is_tuple": 1, "shape_tuple_shapes_size": 3}


def test_more_than_six_axes_count_in_the_totals():
    features = of_text("ROOT x = bf16[2,1,1,1,1,1,5,7]{0,1,2,3,4,5,6,7} parameter(0)")
    values = row(features, "x")
    assert values["shape_dimensions_sum"] == 19 and values["shape_dimensions_product"] == 70
    assert [values.get(f"layout_minor_to_major_{axis}", 0) for axis in range(6)] == [0, 1, 2, 3, 4, 5]


def test_no_number_is_beyond_what_a_float_holds():
    sizes = ",".join(["2000000000"] * 2)
    module = parse_module(f"HloModule m\nENTRY e {{ ROOT x = f32[{sizes}] parameter(0) }}".encode())
    module.computations[0].instructions[0].shape.dimensions.extend([2**62] * 40)
    values = featurize(module).graph.node_feat
    assert np.isfinite(values).all() and values[0, COLUMN["shape_dimensions_product"]] == np.float32(2**63)


LOOP = """
  body { s = (s32[], f32[4]{0}) parameter(0)
    i = s32[] get-tuple-element(s), index=0
    v = f32[4]{0} get-tuple-element(s), index=1
    ROOT next = (s32[], f32[4]{0}) tuple(i, v) }
  going { t = (s32[], f32[4]{0}) parameter(0)
    j = s32[] get-tuple-element(t), index=0
    n = s32[] constant(3)
    ROOT less = pred[] compare(j, n), direction=LT }
  add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT sum = f32[] add(a, b) }
  yes { y = f32[4]{0} parameter(0)  ROOT same = f32[4]{0} negate(y) }
  no { z = f32[4]{0} parameter(0)  ROOT changed = f32[4]{0} cosine(z) }
"""
CONTROL = """
  start = (s32[], f32[4]{0}) parameter(0)
  loop = (s32[], f32[4]{0}) while(start), condition=going, body=body
  out = f32[4]{0} get-tuple-element(loop), index=1
  summed = f32[4]{0} all-reduce(out), replica_groups={}, to_apply=add
  branch = s32[] get-tuple-element(loop), index=0
  chosen = f32[4]{0} conditional(branch, summed, summed), branch_computations={yes, no}
  order = token[] after-all()
  fed = ((f32[4]{0}), token[]) infeed(order)
  foreign = f32[4]{0} custom-call(chosen), custom_call_target="anything"
  sent = token[] outfeed(foreign, order), outfeed_shape=f32[4]{0}
  ROOT done = f32[4]{0} add(foreign, chosen)
"""


def test_callers_consume_the_roots_of_bodies_conditions_branches_and_reducers():
    features = of_text(CONTROL, LOOP)
    found = edges(features)
    assert {("loop", "next"), ("loop", "less"), ("loop", "start")} <= found
    assert {("chosen", "same"), ("chosen", "changed"), ("summed", "sum")} <= found
    assert not any(
        producer in ("s", "t", "a", "y", "z") for consumer, producer in found if consumer in ("loop", "chosen")
    )


def test_a_cut_is_behind_each_computation_of_control_flow_that_ends_with_its_root():
    features = of_text(CONTROL, LOOP)
    names, splits = features.instruction_names, features.graph.node_splits
    assert {names[end - 1] for end in splits[1:]} - {names[-1]} == {"next", "less", "same", "changed"}
    begins = [names.index(name) for name in ("next", "less", "same", "changed")]
    assert all(begin + 1 in splits for begin in begins) and names.index("sum") + 1 not in splits


def test_tokens_tuples_and_custom_calls():
    features = of_text(CONTROL, LOOP)
    assert row(features, "order") == {"shape_element_type_is_token": 1}
    assert row(features, "fed") == {"shape_element_type_is_tuple": 1, "shape_tuple_shapes_size": 2}
    assert row(features, "foreign")["feature_group_count"] == row(features, "foreign")["batch_group_count"] == 1
    assert "feature_group_count" not in row(features, "chosen")


def test_an_operand_that_is_used_twice_is_one_edge():
    features = of_text("x = f32[] parameter(0)\nROOT twice = f32[] add(x, x)")
    assert features.graph.edge_index.tolist() == [[1, 0]]


def test_order_that_is_only_asked_for_is_no_edge():
    features = of_text("""
      x = f32[] parameter(0)
      first = f32[] cosine(x)
      ROOT second = f32[] negate(x), control-predecessors={first}
    """)
    assert ("second", "first") not in edges(features)


def test_an_opcode_that_is_newer_than_the_table_is_zero_and_named():
    features = of_text("x = f32[3]{0} parameter(0)\ny = f32[3]{0} erf(x)\nROOT z = f32[3]{0} erf(y)")
    assert features.unknown_opcodes == {"erf": 2} and features.graph.node_opcode.tolist() == [63, 0, 0]


def test_every_element_type_has_a_feature_or_a_stand_in():
    names = {name.lower() for name, _ in PrimitiveType.items()} - {"primitive_type_invalid"}
    assert names == (set(ELEMENT_TYPES) | set(STAND_INS)) - {"invalid_type"}
    assert set(STAND_INS.values()) <= set(ELEMENT_TYPES)


@pytest.mark.parametrize("given, shown", [("f8e4m3fn", "f16"), ("s4", "s8"), ("u2", "u8"), ("bf16", "bf16")])
def test_a_type_without_a_feature_has_that_of_the_narrowest_of_its_kind_and_is_named(given, shown):
    features = of_text(f"ROOT x = {given}[3]{{0}} parameter(0)")
    assert row(features, "x")[f"shape_element_type_is_{shown}"] == 1
    assert features.replaced_types == ({given: 1} if given != shown else {})


def test_a_type_that_is_newer_than_ours_is_invalid_and_named():
    module = parse_module(b"HloModule m\nENTRY e { ROOT x = f32[3] parameter(0) }")
    module.computations[0].instructions[0].shape.element_type = 77
    features = featurize(module)
    assert row(features, "x")["shape_element_type_is_invalid_type"] == 1
    assert features.replaced_types == {"element type 77": 1}


def test_a_buffer_holds_a_shape_and_is_no_tuple():
    module = parse_module(b"HloModule m\nENTRY e { ROOT x = f32[3] parameter(0) }")
    shape = module.computations[0].instructions[0].shape
    shape.Clear()
    shape.element_type = PrimitiveType.BUFFER
    shape.tuple_shapes.add(element_type=PrimitiveType.F32, dimensions=[3])
    features = featurize(module)
    assert row(features, "x") == {"is_root": 1, "shape_element_type_is_opaque_type": 1}
    assert features.replaced_types == {"buffer": 1}


def test_dynamic_shapes_are_named_with_their_bounds_or_nothing_as_sizes():
    features = of_text("""
      x = f32[<=5,3]{1,0} parameter(0)
      y = f32[?,3]{1,0} parameter(1)
      ROOT both = (f32[<=5,3]{1,0}, f32[?,3]{1,0}) tuple(x, y)
    """)
    assert features.dynamic_nodes == (0, 1, 2)
    assert row(features, "x")["shape_dimensions_0"] == 5 and row(features, "x")["shape_dimensions_product"] == 15
    assert "shape_dimensions_0" not in row(features, "y") and row(features, "y")["shape_dimensions_sum"] == 3
    assert of_text("ROOT x = f32[5,3]{1,0} parameter(0)").dynamic_nodes == ()


def test_instructions_with_one_id_in_two_computations_are_kept_apart():
    module = parse_module(f"HloModule m\n{LOOP}\nENTRY main {{{CONTROL}}}".encode())
    before = featurize(module)
    for computation in module.computations:
        renamed = {i.id: k + 1 for k, i in enumerate(computation.instructions)}
        computation.root_id = renamed[computation.root_id]
        for instruction in computation.instructions:
            instruction.id = renamed[instruction.id]
            instruction.operand_ids[:] = [renamed[operand] for operand in instruction.operand_ids]
    np.testing.assert_array_equal(featurize(module).graph.edge_index, before.graph.edge_index)


def test_more_of_what_jax_lowers_to_is_read():
    def f(key, x, a):
        bits, y = jax.random.bits(key, (3,)), jax.lax.associative_scan(jnp.add, x)
        _, solved = jax.lax.linalg.triangular_solve(a, a, left_side=True), jnp.linalg.qr(a)[0]
        return bits, y, jnp.median(x), solved, x.astype(jnp.float8_e4m3fn), jax.scipy.special.erf(x), a.astype(jnp.int4)

    key = jax.random.key(0, impl="rbg")
    lowered = jax.jit(f).lower(key, jnp.ones(5), jnp.eye(3))
    features = featurize(parse_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()))
    opcodes = {opcode_name(number) for number in features.graph.node_opcode}
    assert {"rng-bit-generator", "custom-call", "sort"} <= opcodes
    assert "erf" in features.unknown_opcodes and {"f8e4m3fn", "s4"} <= set(features.replaced_types)


def test_what_is_written_has_tpugraphs_names_and_no_objects():
    arrays = featurize(parse_module(lower("sort")["sort"])).arrays()
    assert set(arrays) == {"node_feat", "node_opcode", "edge_index", "node_splits", "instruction_names", "op_names"}
    assert arrays["node_splits"].shape[0] == 1 and not any(a.dtype.hasobject for a in arrays.values())
