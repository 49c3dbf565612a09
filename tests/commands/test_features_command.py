"""`exla features`: from a file to a graph, and what is said of files that hold none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from exla.cost_model.hlo_pb2 import HloModuleProto, HloProto

TEXT = "HloModule small\nENTRY main { x = f8e4m3fn[<=3]{0} parameter(0)  ROOT y = f8e4m3fn[<=3]{0} erf(x) }"


@pytest.fixture
def module(folder):
    """A file as `--xla_dump_to` writes it."""
    lowered = jax.jit(lambda x: jnp.sin(x) @ x).lower(jnp.ones((3, 3)))
    inner = HloModuleProto.FromString(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    inner.name = "product"
    (folder / "module.hlo.pb").write_bytes(HloProto(hlo_module=inner).SerializeToString())
    return "module.hlo.pb"


def test_the_graph_is_written_under_the_name_that_is_given(module, exla_command, folder):
    code, out, err = exla_command("features", module, "-o", "graph")
    assert code == 0 and out == "product: 3 nodes, 3 edges, 1 segment\n" and err == "exla: wrote graph\n"
    with np.load(folder / "graph", allow_pickle=False) as arrays:
        assert arrays["node_feat"].shape == (3, 140) and arrays["node_feat"].dtype == np.float32
        assert arrays["node_opcode"].tolist() == [63, 91, 34] and arrays["node_opcode"].dtype == np.uint8
        assert arrays["edge_index"].tolist() == [[1, 0], [2, 0], [2, 1]]
        assert arrays["node_splits"].tolist() == [[0, 3]]
        assert len(arrays["instruction_names"]) == 3 and "sin" in arrays["op_names"][1]


def test_a_graph_that_is_there_is_written_anew(module, exla_command, folder):
    (folder / "graph.npz").write_text("something else")
    assert exla_command("features", module, "--out", "graph.npz")[0] == 0
    assert np.load(folder / "graph.npz", allow_pickle=False)["node_feat"].shape == (3, 140)


def test_text_is_read_and_what_tpugraphs_does_not_know_is_listed(folder, exla_command, exla_json):
    (folder / "small.hlo").write_text(TEXT)
    code, out, _ = exla_command("features", "small.hlo")
    assert code == 0 and "opcodes without a number, 0 here: erf (1 node)" in out
    assert "shown as another: f8e4m3fn (2 nodes)" in out and "2 nodes of a dynamic size" in out
    code, rows = exla_json("features", "small.hlo")
    assert code == 0 and rows == [
        {
            **{"name": "small", "nodes": 2, "edges": 1, "segments": 1, "dynamic_nodes": 2},
            **{"unknown_opcodes": {"erf": 1}, "replaced_types": {"f8e4m3fn": 2}},
        }
    ]


@pytest.mark.parametrize("data, reason", [(b"", "it is empty"), (b"\xffgarbage", "neither a proto nor HLO text")])
def test_garbage_is_one_message_and_leaves_no_file(data, reason, folder, exla_command):
    (folder / "bad.pb").write_bytes(data)
    code, out, err = exla_command("features", "bad.pb", "-o", "graph.npz")
    assert code == 1 and out == "" and "bad.pb is no HLO module" in err and reason in err
    assert "Traceback" not in err and not (folder / "graph.npz").exists()


def test_a_file_or_folder_that_is_not_there_is_one_message(module, exla_command):
    for words in (["nowhere.pb"], [module, "-o", "no/such/folder.npz"], ["."]):
        code, _, err = exla_command("features", *words)
        assert code == 1 and err.startswith("exla") and "Traceback" not in err


def test_names_in_a_file_move_no_cursor(folder, exla_command):
    module = HloModuleProto(name="\x1b[2Jm", entry_computation_id=1)
    computation = module.computations.add(id=1, root_id=1)
    computation.instructions.add(id=1, opcode="\x1b[31mred")
    (folder / "odd.pb").write_bytes(module.SerializeToString())
    code, out, _ = exla_command("features", "odd.pb")
    assert code == 0 and "\x1b" not in out
