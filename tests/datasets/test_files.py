"""TpuGraphs files: what is read is what was written, only what is asked for is read, and every fault is named."""

import math
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exla.cost_model.graph import Graph
from exla.datasets.tpugraphs_adapter import (
    Layout,
    Tile,
    TpuGraphsError,
    check,
    npz,
    read,
    write,
    write_layout,
    write_tile,
)
from tests.datasets.made import arrays_of, assert_same, layout_arrays, layout_file, real_files, save, tile_arrays


@pytest.mark.parametrize("arrays", [layout_arrays(), tile_arrays(), layout_arrays(c=1, nc=1)], ids=range(3))
@pytest.mark.parametrize("store", [np.savez, np.savez_compressed])
def test_what_numpy_saved_is_read(arrays, store, tmp_path):
    store(tmp_path / "x.npz", **arrays)
    assert_same(arrays_of(read(tmp_path / "x.npz")), arrays)
    assert check(tmp_path / "x.npz") == []


def test_a_layout_has_a_graph_runtimes_and_a_target_in_nanoseconds(tmp_path):
    arrays = layout_arrays()
    file = read(save(tmp_path / "resnet.npz", arrays, is_default=np.arange(5) == 2))
    assert isinstance(file, Layout) and file.path == tmp_path / "resnet.npz"
    assert (file.graph.name, file.graph.num_nodes, file.graph.num_config_nodes) == ("resnet", 4, 2)
    assert file.num_configs == 5 and file.has_target
    assert file.runtime.dtype == np.int64 and file.target.dtype == np.float64
    assert file.target.tolist() == arrays["config_runtime"].tolist()
    assert file.is_default is not None and np.flatnonzero(file.is_default).tolist() == [2]
    assert layout_file(tmp_path).is_default is None


def test_the_target_of_a_tile_is_the_ratio_in_float64(tmp_path):
    runtime, normalizers = np.array([3, 1, 10**15 + 1]), np.array([2, 3, 10**15])
    file = read(
        save(tmp_path / "x.npz", tile_arrays(c=3), config_runtime=runtime, config_runtime_normalizers=normalizers)
    )
    assert isinstance(file, Tile)
    assert file.target.tolist() == [1.5, 1 / 3, (10**15 + 1) / 10**15]
    assert file.target[2] > 1, "float32 would not tell it from 1"


def test_a_runtime_that_float64_rounds_is_an_error_and_stays_readable_as_an_integer(tmp_path):
    file = layout_file(tmp_path, config_runtime=np.array([1, 2, 3, 4, 2**53 + 1]))
    assert file.runtime[-1] == 2**53 + 1
    with pytest.raises(TpuGraphsError, match=r"9007199254740993 ns. Rank by .runtime"):
        _ = file.target


@pytest.mark.parametrize("arrays", [layout_arrays(), tile_arrays()], ids=["layout", "tile"])
def test_files_of_the_test_split_open_without_a_target(arrays, tmp_path):
    zeros = {k: np.zeros(5, np.int64) for k in arrays if k.startswith("config_runtime")}
    path = save(tmp_path / "test" / "x.npz", arrays, **zeros)
    file = read(path)
    assert not file.has_target and file.configs([1]).shape[0] == 1 and check(path) == []
    with pytest.raises(TpuGraphsError, match="config_runtime: .* the runtimes of test files are withheld"):
        _ = file.target
    write(tmp_path / "test" / "copy.npz", file)
    assert_same(arrays_of(read(tmp_path / "test" / "copy.npz")), {**arrays, **zeros})
    elsewhere = save(tmp_path / "x.npz", arrays, **zeros)
    assert not read(elsewhere, test=True).has_target
    with pytest.raises(TpuGraphsError, match="test=True"):
        read(elsewhere)
    with pytest.raises(TpuGraphsError, match="positive nanoseconds"):
        read(path, test=False)


def test_a_test_file_with_some_runtimes_is_neither_one_nor_the_other(tmp_path):
    with pytest.raises(TpuGraphsError, match="or 0 everywhere; found 0 in row 1"):
        read(save(tmp_path / "test" / "x.npz", layout_arrays(), config_runtime=np.array([1, 0, 1, 1, 1])))


@settings(max_examples=40, deadline=None)
@given(
    c=st.integers(1, 40),
    nc=st.integers(1, 3),
    rows=st.lists(st.integers(0, 10**6), max_size=60),
    block_rows=st.none() | st.integers(1, 45),
    as_array=st.booleans(),
    again=st.booleans(),
)
def test_any_rows_in_any_order_are_read_as_numpy_takes_them(c, nc, rows, block_rows, as_array, again, tmp_path_factory):
    arrays = layout_arrays(c=c, nc=nc)
    file = read(save(tmp_path_factory.mktemp("rows") / "x.npz", arrays))
    wanted = [r % c for r in rows]
    given_rows = np.array(wanted, np.int32) if as_array else wanted
    whole = arrays["node_config_feat"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(npz, "BLOCK_BYTES", 1 if block_rows is None else block_rows * nc * 18 * 4)
        for _ in range(1 + again):
            np.testing.assert_array_equal(file.configs(given_rows), whole[wanted], strict=True)
        np.testing.assert_array_equal(file.configs(), whole, strict=True)
        blocks = list(file.blocks(block_rows))
    assert all(len(b) == (block_rows or 1) for b in blocks[:-1])
    np.testing.assert_array_equal(np.concatenate(blocks), whole, strict=True)


@pytest.mark.parametrize(
    "rows", [[5], [-1], [0.5], [[0]], np.array([True] * 5), 3], ids=["beyond", "before", "half", "2-d", "mask", "one"]
)
def test_rows_that_are_not_there_are_an_error_that_says_which_are(rows, tmp_path):
    with pytest.raises(TpuGraphsError, match="a list of rows from 0 to 4"):
        layout_file(tmp_path).configs(rows)


def test_opening_a_file_unpacks_no_configuration_and_reading_rows_never_holds_all(tmp_path, monkeypatch):
    path = save(tmp_path / "x.npz", layout_arrays(c=1000, nc=2))
    whole = 1000 * 2 * 18 * 4
    most, total = [0], [0]
    original = zipfile.ZipExtFile.read

    def counted(self, n=-1):
        data = original(self, n)
        if self.name == "node_config_feat.npy":
            most[0], total[0] = max(most[0], len(data)), total[0] + len(data)
        return data

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
    monkeypatch.setattr(npz, "BLOCK_BYTES", whole // 100)
    file = read(path)
    assert total[0] < 256, "only the header"
    file.configs([3])
    assert most[0] <= whole // 100 and total[0] >= whole, "in blocks, and to the end, where the checksum is"
    total[0] = 0
    file.configs([3])
    assert total[0] < whole // 10, "once that is known, no further than needed"


def test_a_file_that_changes_after_it_was_opened_is_not_read_as_another(tmp_path):
    file = layout_file(tmp_path)
    save(file.path, layout_arrays(c=6))
    with pytest.raises(TpuGraphsError, match="has changed since it was opened"):
        file.configs([0])


WRONG = {
    "missing": (dict(edge_index=None), "edge_index: expected the array; found only config_runtime, "),
    "unexpected": (dict(label=np.zeros(3)), "label: expected only node_feat, .*; found the array 'label'"),
    "float64": (dict(node_feat=np.zeros((4, 140))), r"node_feat: expected dtype float32 \(<f4\); found float64"),
    "big-endian": (dict(node_config_ids=np.array([2, 3], ">i8")), r"\(<i8\); found .*\(>i8\)"),
    "int32": (dict(config_runtime=np.ones(5, np.int32)), "config_runtime: expected dtype int64"),
    "columns": (dict(node_feat=np.zeros((4, 139), np.float32)), r"shape \(n, 140\), n at least 1; found \(4, 139\)"),
    "axes": (dict(node_opcode=np.ones((4, 1), np.uint8)), r"shape \(n,\), n = 4 by node_feat, .*found \(4, 1\)"),
    "nodes": (dict(node_opcode=np.ones(5, np.uint8)), r"n = 4 by node_feat, n at least 1; found \(5,\)"),
    "configurations": (dict(config_runtime=np.ones(6, np.int64)), r"c = 6 by config_runtime, .*found \(5, 2, 18\)"),
    "configurable nodes": (dict(node_config_ids=np.array([1])), r"nc = 1 by node_config_ids, .*found \(5, 2, 18\)"),
    "default": (dict(is_default=np.zeros(4, bool)), r"is_default: .*c = 5 by config_runtime, .*found \(4,\)"),
    "edge beyond": (
        dict(edge_index=np.array([[1, 0], [4, 0]])),
        r"edge_index: .*nodes 0 to 3; found \[4, 0\] in row 1",
    ),
    "edge before": (dict(edge_index=np.array([[1, -1]])), r"edge_index: .*found \[1, -1\] in row 0"),
    "id beyond": (dict(node_config_ids=np.array([0, 4])), "node_config_ids: .*found 4 in row 1"),
    "id before": (dict(node_config_ids=np.array([-1, 2])), "node_config_ids: .*found -1 in row 0"),
    "id twice": (dict(node_config_ids=np.array([2, 2])), "node_config_ids: expected each node once; found node 2 2 t"),
    "opcode": (dict(node_opcode=np.array([1, 121, 2, 3], np.uint8)), "opcodes 0 to 120; found 121 at node 1"),
    "runtime": (dict(config_runtime=np.array([1, 2, 0, -3, 4])), "config_runtime: .*positive.*; found 0 in row 2"),
    "splits fall": (dict(node_splits=np.array([[0, 3, 2, 4]])), r"node_splits: .*0 to 4; found \[0, 3, 2, 4\]"),
    "splits repeat": (dict(node_splits=np.array([[0, 2, 2, 4]])), "node_splits: "),
    "splits end": (dict(node_splits=np.array([[0, 3]])), r"node_splits: .*\[0, 3\], ending with 3"),
    "splits begin": (dict(node_splits=np.array([[1, 4]])), "node_splits: "),
    "splits empty": (dict(node_splits=np.zeros((1, 0), np.int64)), r"node_splits: .*k at least 2; found \(1, 0\)"),
    "NaN": (dict(node_feat=np.full((4, 140), np.nan, np.float32)), "node_feat: .*NaN or infinity in row 0"),
    "objects": (dict(node_feat=np.array([[None]])), "node_feat: .*pickled objects .*nothing is unpickled"),
    "by column": (dict(node_config_feat=np.zeros((18, 2, 5), np.float32).T), "node_config_feat: .*column by column"),
    "no configuration": (
        dict(config_runtime=np.zeros(0, np.int64), node_config_feat=np.zeros((0, 2, 18), np.float32)),
        "config_runtime: .*c at least 1",
    ),
}


@pytest.mark.parametrize("changes, message", WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_file_is_named(changes, message, tmp_path):
    path = save(tmp_path / "x.npz", layout_arrays(), **changes)
    with pytest.raises(TpuGraphsError, match=message) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path} cannot be used as it is:")
    assert check(path) == list(raised.value.problems)
    assert all(p.expected and p.found and p.next_step.endswith(".") for p in raised.value.problems)


def test_all_problems_of_a_file_are_raised_together_and_survive_another_process(tmp_path):
    changes = {k: WRONG[k][0] for k in ("float64", "edge beyond", "id twice", "opcode", "runtime", "splits end")}
    path = save(tmp_path / "x.npz", layout_arrays(), **{k: v for c in changes.values() for k, v in c.items()})
    with pytest.raises(TpuGraphsError) as raised:
        read(path)
    assert {p.array for p in raised.value.problems} == {
        *("node_feat", "edge_index", "node_config_ids", "node_opcode", "config_runtime", "node_splits")
    }
    make, arguments = raised.value.__reduce__()
    assert str(make(*arguments)) == str(raised.value)


def test_nan_in_a_configuration_is_found_when_it_is_streamed(tmp_path):
    arrays = layout_arrays()
    arrays["node_config_feat"][3, 1, 7] = np.inf
    path = save(tmp_path / "x.npz", arrays)
    file = read(path)
    for ask in (file.configs, lambda: file.configs([0]), lambda: list(file.blocks(2))):
        with pytest.raises(TpuGraphsError, match="node_config_feat: .*NaN or infinity in row 3"):
            ask()
    assert [p.array for p in check(path)] == ["node_config_feat"]


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip" * 50, None], ids=["empty", "start", "text", "absent"])
def test_what_is_no_zip_is_an_error(content, tmp_path):
    path = tmp_path / "x.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TpuGraphsError, match=r"file: expected a zip of arrays \(npz\)"):
        read(path)
    assert [p.array for p in check(path)] == ["file"]


def test_a_zip_of_something_else_is_an_error(tmp_path):
    with pytest.raises(TpuGraphsError, match="arrays of a layout file .*or of a tile file.*; found a, b"):
        read(save(tmp_path / "x.npz", {"a": np.zeros(1), "b": np.zeros(1)}))


class Bomb:
    """Unpickling this leaves a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_pickle_is_refused_by_its_header_and_never_loaded(tmp_path):
    array = np.empty(1, object)
    array[0] = Bomb(str(tmp_path / "it ran"))
    path = save(tmp_path / "x.npz", layout_arrays(), config_runtime=array)
    with pytest.raises(TpuGraphsError, match="config_runtime: .*pickled objects"):
        read(path)
    assert not (tmp_path / "it ran").exists()


def with_member(path, name, data, **how):
    """Add a member to a zip."""
    with zipfile.ZipFile(path, "a", **how) as archive:
        archive.writestr(name, data)
    return path


def npy(header, data=b"", version=b"\x01\x00"):
    text = header.encode() if isinstance(header, str) else header
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + data


HOSTILE = {
    "no magic": b"hello",
    "no header": b"\x93NUMPY\x01\x00",
    "header cut off": npy("{'descr'")[:12],
    "no literal": npy("{'descr': __import__('os')}"),
    "nested": npy("[" * 9000),
    "null": npy(b"\x00" * 40),
    "not text": npy(b"\xff" * 40),
    "missing keys": npy("{'descr': '<f4'}"),
    "unknown dtype": npy("{'descr': 'zzz', 'fortran_order': False, 'shape': (1,)}"),
    "negative": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", b"1234"),
    "huge": npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**18}, {10**18})}}"),
    "too much data": npy("{'descr': '|b1', 'fortran_order': False, 'shape': (5,)}", b"\0" * 6),
    "later version": npy("{'descr': '|b1', 'fortran_order': False, 'shape': (5,)}", b"\0" * 5, b"\x09\x00"),
    "structured": npy("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,)}", b"\0" * 8),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.filterwarnings("ignore")
def test_hostile_headers_are_problems_of_their_array(data, tmp_path):
    path = with_member(save(tmp_path / "x.npz", layout_arrays()), "is_default.npy", data)
    with pytest.raises(TpuGraphsError) as raised:
        read(path)
    assert [p.array for p in raised.value.problems] == ["is_default"], str(raised.value)
    assert check(path) == list(raised.value.problems)


@pytest.mark.parametrize(
    "name, how, found",
    [
        ("notes.txt", {}, "a member that is no .npy"),
        ("node_feat.npy", {}, "two arrays of one name"),
        ("is_default.npy", {"compression": zipfile.ZIP_LZMA}, "compression method 14"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_that_numpy_did_not_write_are_named(name, how, found, tmp_path):
    path = with_member(save(tmp_path / "x.npz", layout_arrays()), name, b"x" * 99, **how)
    with pytest.raises(TpuGraphsError, match=found):
        read(path)


def test_a_size_that_deflate_cannot_reach_is_not_allocated(tmp_path):
    path = with_member(save(tmp_path / "x.npz", layout_arrays()), "is_default.npy", b"x" * 99)
    data = bytearray(path.read_bytes())
    at = data.rindex(b"is_default.npy") - 46
    data[at + 24 : at + 28] = (2**31).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(TpuGraphsError, match="99 bytes that claim to unpack to 2147483648"):
        read(path)


def test_small_arrays_stored_by_column_are_read_right(tmp_path):
    arrays = layout_arrays()
    path = save(tmp_path / "x.npz", arrays, edge_index=np.asfortranarray(arrays["edge_index"]))
    assert_same(arrays_of(read(path)), arrays)


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("is_default", [None, np.arange(5) == 0], ids=["", "default"])
def test_a_written_layout_is_what_numpy_reads(in_blocks, is_default, tmp_path):
    arrays = layout_arrays() | ({} if is_default is None else {"is_default": is_default})
    configs = arrays["node_config_feat"]
    write_layout(
        tmp_path / "x.npz",
        graph=read(save(tmp_path / "original.npz", arrays)).graph,
        configs=iter([configs[:2], configs[2:2], configs[2:]]) if in_blocks else configs,
        runtime=arrays["config_runtime"],
        is_default=is_default,
    )
    with np.load(tmp_path / "x.npz", allow_pickle=False) as found:
        assert_same(dict(found), arrays)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["original.npz", "x.npz"]


def test_a_written_tile_is_what_numpy_reads(tmp_path):
    arrays = tile_arrays()
    write_tile(
        tmp_path / "x.npz",
        graph=read(save(tmp_path / "original.npz", arrays)).graph,
        configs=arrays["config_feat"],
        runtime=arrays["config_runtime"],
        normalizers=arrays["config_runtime_normalizers"],
    )
    with np.load(tmp_path / "x.npz", allow_pickle=False) as found:
        assert_same(dict(found), arrays)


@pytest.mark.parametrize("path", real_files())
def test_a_real_file_is_sound_and_comes_back_the_same(path, tmp_path):
    assert check(path) == []
    with np.load(path, allow_pickle=False) as arrays:
        expected = dict(arrays)
    file = read(path)
    rows = np.random.default_rng(0).integers(0, file.num_configs, 9)
    name = "node_config_feat" if isinstance(file, Layout) else "config_feat"
    np.testing.assert_array_equal(file.configs(rows), expected[name][rows], strict=True)
    if math.prod(expected[name].shape) < 10**6:
        write(tmp_path / "copy.npz", file)
        with np.load(tmp_path / "copy.npz", allow_pickle=False) as copy:
            assert_same(dict(copy), expected)
    else:
        assert_same({k: v for k, v in arrays_of(file).items()}, expected)


BLOCKS = layout_arrays()["node_config_feat"]
UNWRITABLE = {
    "float64": (dict(configs=BLOCKS.astype(np.float64)), "node_config_feat: expected dtype float32"),
    "shape": (dict(configs=BLOCKS[:, :1]), r"nc = 2 by node_config_ids, .*found \(5, 1, 18\)"),
    "NaN": (dict(configs=np.full_like(BLOCKS, np.nan)), "NaN or infinity in row 0"),
    "runtimes": (dict(runtime=np.arange(5)), "positive nanoseconds"),
    "list": (dict(runtime=[1.5] * 5), "config_runtime: expected dtype int64"),
    "few rows": (dict(configs=[BLOCKS[:2], BLOCKS[:2]]), "4 rows in all"),
    "many rows": (dict(configs=[BLOCKS, BLOCKS]), "10 rows in all"),
    "block shape": (dict(configs=[BLOCKS[:, :, :3]]), r"float32 \(5, 2, 3\) at row 0"),
    "block dtype": (dict(configs=[BLOCKS[:2], BLOCKS[2:].astype(int)]), r"int64 \(3, 2, 18\) at row 2"),
    "block NaN": (dict(configs=[BLOCKS[:2], np.full_like(BLOCKS[2:], np.inf)]), "NaN or infinity in row 2"),
}


@pytest.mark.parametrize("changes, message", UNWRITABLE.values(), ids=UNWRITABLE)
def test_what_could_not_be_read_is_not_written_and_the_old_file_stays(changes, message, tmp_path):
    file = layout_file(tmp_path)
    before = file.path.read_bytes()
    with pytest.raises(TpuGraphsError, match=message):
        write_layout(file.path, **{"graph": file.graph, "configs": BLOCKS, "runtime": file.runtime, **changes})
    assert file.path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_a_graph_of_the_wrong_kind_is_not_written(tmp_path):
    graph = Graph(name="x", node_feat=np.zeros((2, 3)), node_opcode=np.ones(2), edge_index=np.zeros((0, 2)))
    with pytest.raises(TpuGraphsError) as raised:
        write_layout(tmp_path / "x.npz", graph=graph, configs=[], runtime=np.zeros(0, np.int64))
    assert {p.array for p in raised.value.problems} == {
        *("node_feat", "node_opcode", "edge_index", "node_config_ids", "config_runtime", "node_config_feat"),
        "node_splits",
    }
