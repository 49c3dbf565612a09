"""Reading HLO modules: what is one, and what is said of what is none."""

import pickle

import jax
import jax.numpy as jnp
import pytest

from exla.cost_model.hlo import entry_computation, parse_module, read_module
from exla.cost_model.hlo_pb2 import HloComputationProto, HloModuleProto, HloProto
from exla.errors import ExlaError, HloError

TEXT = """
HloModule small
double { x = f32[3]{0} parameter(0)  ROOT sum = f32[3]{0} add(x, x) }
ENTRY main { y = f32[3]{0} parameter(0)  ROOT out = f32[3]{0} call(y), to_apply=double }
"""


def small():
    return parse_module(TEXT.encode())


def proto_bytes():
    return jax.jit(lambda x: jnp.sin(x) @ x).lower(jnp.ones((3, 3))).compiler_ir("hlo").as_serialized_hlo_module_proto()


def test_a_module_of_jax_is_read_as_it_is():
    data = proto_bytes()
    module = parse_module(data)
    assert [i.opcode for i in entry_computation(module).instructions] == ["parameter", "sine", "dot"]
    assert module == HloModuleProto.FromString(data)


def test_a_module_within_an_hlo_proto_is_read():
    inner = HloModuleProto.FromString(proto_bytes())
    assert parse_module(HloProto(hlo_module=inner).SerializeToString()) == inner


def test_text_is_read_by_xlas_own_parser(tmp_path):
    (tmp_path / "small.hlo").write_text(TEXT)
    module = read_module(tmp_path / "small.hlo")
    assert [c.name for c in module.computations] == ["double", "main"]
    assert entry_computation(module).name == "main"
    assert parse_module(("// a comment" + TEXT).encode()).computations == module.computations


def test_the_entry_of_an_old_module_is_found_by_its_name():
    module = small()
    module.entry_computation_id, module.entry_computation_name = 0, "main"
    assert entry_computation(parse_module(module.SerializeToString())).name == "main"


def without_computations(module):
    del module.computations[:]


def without_entry(module):
    module.entry_computation_id = 99


def without_root(module):
    module.computations[0].root_id = 99


def without_instructions(module):
    del module.computations[0].instructions[:]


def without_operand(module):
    module.computations[0].instructions[1].operand_ids[0] = 99


def with_an_operand_elsewhere(module):
    module.computations[1].instructions[1].operand_ids[0] = module.computations[0].instructions[0].id


def without_opcode(module):
    module.computations[0].instructions[0].opcode = ""


def without_called(module):
    module.computations[1].instructions[1].called_computation_ids[0] = 99


def with_an_id_twice(module):
    module.computations[0].instructions[0].id = module.computations[0].instructions[1].id


def with_a_computation_twice(module):
    module.computations.append(module.computations[0])


BROKEN = {
    without_computations: "holds no computation",
    without_entry: "entry computation .* is not in it",
    without_root: "'double' has no root",
    without_instructions: "'double' has no root",
    without_operand: "an operand of instruction 'sum' of computation 'double' is not in it",
    with_an_operand_elsewhere: "an operand of instruction 'out'",
    without_opcode: "'x' of computation 'double' has no opcode",
    without_called: "'out' of computation 'main' calls a computation that is not in the module",
    with_an_id_twice: "two instructions of computation 'double' have one id",
    with_a_computation_twice: "two of its computations have one id",
}


@pytest.mark.parametrize("break_it", BROKEN, ids=lambda f: f.__name__)
def test_a_module_that_is_not_whole_is_an_error_that_says_what_is_missing(break_it):
    module = small()
    break_it(module)
    with pytest.raises(HloError, match=BROKEN[break_it]) as error:
        parse_module(module.SerializeToString(), source="broken.hlo.pb")
    assert str(error.value).startswith("broken.hlo.pb is no HLO module: ")
    assert "as_serialized_hlo_module_proto" in str(error.value)


GARBAGE = {
    "empty": (b"", "it is empty"),
    "bytes": (b"\xff\xfe\x00garbage", "neither a proto nor HLO text"),
    "text": (b"hello, world", "neither a proto nor HLO text"),
    "json": (b'{"hlo": 1}', "neither a proto nor HLO text"),
    "zip": (b"PK\x03\x04\x14\x00\x00\x00", "neither a proto nor HLO text"),
    "zeros": (bytes(100), "neither a proto nor HLO text"),
    "another message": (HloComputationProto(name="c", id=4).SerializeToString(), "holds no computation"),
    "broken text": (b"HloModule m\nENTRY e { ROOT x = f32[2] nonsense() }", "XLA cannot parse its text"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_an_error(name):
    data, reason = GARBAGE[name]
    with pytest.raises(HloError, match=reason):
        parse_module(data)


def test_no_beginning_of_a_module_is_taken_for_one():
    data = proto_bytes()
    whole = parse_module(data)
    for length in range(0, len(data), 7):
        try:
            assert parse_module(data[:length]) != whole or length > len(data) - 200
        except HloError:
            continue


def test_the_error_is_a_value_error_of_exlas_and_crosses_processes():
    error = pickle.loads(pickle.dumps(HloError("a.pb", "it is empty")))
    assert isinstance(error, (ExlaError, ValueError)) and str(error) == str(HloError("a.pb", "it is empty"))
