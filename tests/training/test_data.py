"""What is trained on, what is held out, and the array that configurations are read from."""

import dataclasses
import shutil

import numpy as np
import pytest

from exla.cost_model.footing import nodes_on_one_footing, tile_configs_on_one_footing
from exla.cost_model.inputs import Inputs
from exla.datasets.tpugraphs_adapter import read
from exla.errors import OptionError
from exla.training import cache
from exla.training.data import open_program, open_split
from tests.datasets.made import layout_arrays, save
from tests.training.made import config, layout_file, layout_files, tile_file


def test_configurations_are_those_of_the_file_in_any_order(tmp_path):
    path = layout_file(tmp_path)
    program = open_program(path, Inputs(), cache=str(tmp_path / "cache"))
    sample, file = program.sample([5, 2, 5]), read(path)
    np.testing.assert_array_equal(sample.node_config, file.configs([5, 2, 5]))
    np.testing.assert_array_equal(sample.runtime, file.runtime[[5, 2, 5]])
    np.testing.assert_array_equal(program.graph.node_feat, nodes_on_one_footing(file.graph.node_feat))
    assert not np.array_equal(program.graph.node_feat, file.graph.node_feat)


def test_tile_configurations_are_on_one_footing_and_runtimes_are_ratios(tmp_path):
    path = tile_file(tmp_path)
    arrays = dict(np.load(path))
    arrays["config_feat"][:, :8] = 0
    path = save(path, arrays)
    program = open_program(path, Inputs(), cache=str(tmp_path / "cache"))
    sample, file = program.sample([1, 0]), read(path)
    np.testing.assert_array_equal(sample.graph_config, tile_configs_on_one_footing(file.configs([1, 0])))
    assert (sample.graph_config[:, 7] == 1).all() and sample.node_config.shape == (2, 0, 18)
    np.testing.assert_array_equal(sample.runtime, file.target[[1, 0]])


@pytest.mark.parametrize("keep, rows", [("minimum", [0, 1, 4]), ("drop", [1, 4])])
def test_each_configuration_is_there_once(tmp_path, keep, rows):
    arrays = layout_arrays()
    arrays["node_config_feat"][2:4] = arrays["node_config_feat"][0]
    runtime = np.array([10, 20, 30, 40, 50])
    path = save(tmp_path / "twice.npz", arrays, config_runtime=runtime)
    program = open_program(path, Inputs(), keep=keep, cache=str(tmp_path / "cache"))
    assert program.runtime.tolist() == runtime[rows].tolist()
    np.testing.assert_array_equal(
        program.sample(range(len(rows))).node_config, arrays["node_config_feat"][np.array(rows)]
    )


def test_a_pruned_graph_keeps_the_configurations_of_its_nodes(tmp_path):
    path = layout_file(tmp_path, n=9)
    whole, less = (open_program(path, Inputs(prune_hops=h), cache=str(tmp_path / "cache")) for h in (None, 1))
    assert less.graph.num_nodes < whole.graph.num_nodes and less.graph.num_config_nodes == 2
    np.testing.assert_array_equal(less.sample([3]).node_config, whole.sample([3]).node_config)


def test_a_file_is_unpacked_once_and_again_when_it_has_changed(tmp_path, monkeypatch):
    path, folder, calls = layout_file(tmp_path), tmp_path / "cache", []
    write = cache._write
    monkeypatch.setattr(cache, "_write", lambda *args: (calls.append(args), write(*args)))
    for _ in range(2):
        cache.unpack(path, "minimum", folder)
    assert len(calls) == 1
    layout_file(tmp_path, seed=1)
    changed = cache.unpack(path, "minimum", folder)
    assert len(calls) == 2 and len(list(folder.iterdir())) == 2
    np.testing.assert_array_equal(changed.configs, read(path).configs())
    assert isinstance(changed.configs, np.memmap) and not changed.configs.flags.writeable


def names(parts):
    return [part.name for part in parts]


def test_folds_hold_out_every_program_once_and_never_train_on_it(tmp_path):
    files = layout_files(tmp_path, 5)
    splits = [open_split(config(tmp_path, files, held_out={"folds": 3, "fold": fold})) for fold in range(3)]
    assert sorted(sum((names(s.held_out) for s in splits), [])) == [f"program_{i}" for i in range(5)]
    for split in splits:
        assert not {p.program.sha256 for p in split.held_out} & {p.program.sha256 for p in split.train}
        assert len(split.train) + len(split.held_out) == 5
    assert len({s.data_hash() for s in splits}) == 3


@pytest.mark.parametrize("how", ["files", "leave-one-out"])
def test_a_file_that_is_there_twice_is_refused_for_it_could_be_trained_on_and_held_out(tmp_path, how):
    files = layout_files(tmp_path, 2)
    twin = tmp_path / "twin.npz"
    shutil.copy(files[0], twin)
    if how == "files":
        changed = config(tmp_path, files, held_out={"by": how, "files": [str(twin)]})
    else:
        changed = config(tmp_path, [*files, str(twin)], held_out={"by": how})
    with pytest.raises(OptionError, match="the same file"):
        open_split(changed)


def test_a_file_of_which_nothing_is_left_is_refused_before_anything_is_trained(tmp_path):
    arrays = layout_arrays()
    arrays["node_config_feat"][:] = arrays["node_config_feat"][0]
    same = save(tmp_path / "same.npz", arrays)
    with pytest.raises(OptionError, match="same: no configuration is left"):
        open_split(
            config(tmp_path, [*layout_files(tmp_path, 2), str(same)], held_out={"folds": 3}, data={"keep": "drop"})
        )


def test_leave_one_out_holds_out_one(tmp_path):
    files = layout_files(tmp_path, 3)
    splits = [open_split(config(tmp_path, files, held_out={"by": "leave-one-out", "fold": fold})) for fold in range(3)]
    assert [len(s.held_out) for s in splits] == [1, 1, 1] and len({s.held_out[0].name for s in splits}) == 3
    with pytest.raises(OptionError, match="fold 3 of 3 folds of 3 programs"):
        open_split(config(tmp_path, files, held_out={"by": "leave-one-out", "fold": 3}))


@pytest.mark.parametrize("train_rows, held_out_rows, sizes", [(0, 0, (20, 4)), (5, 10, (5, 10)), (0, 10, (14, 10))])
def test_rows_that_are_held_out_are_not_trained_on(tmp_path, train_rows, held_out_rows, sizes):
    rows = {"train_rows": train_rows, "held_out_rows": held_out_rows}
    split = open_split(config(tmp_path, layout_files(tmp_path, 1), held_out={"by": "rows"}, data=rows))
    (train,), (held_out,) = split.train, split.held_out
    assert (len(train.rows), len(held_out.rows)) == sizes and not set(train.rows) & set(held_out.rows)


def test_rows_are_chosen_by_the_seed_of_the_data_alone(tmp_path):
    files = layout_files(tmp_path)

    def rows(**sections):
        split = open_split(config(tmp_path, files, **sections))
        return [part.rows.tolist() for part in split.train]

    few = {"train_rows": 7}
    assert rows(data=few) == rows(data=few, run={"seed": 1}) != rows(data={**few, "seed": 1})
    assert all(len(r) == 7 for r in rows(data=few))


def test_programs_of_other_files_are_held_out(tmp_path):
    files = layout_files(tmp_path, 3)
    split = open_split(config(tmp_path, files[:2], held_out={"by": "files", "files": files[2:]}))
    assert names(split.train) == ["program_0", "program_1"] and names(split.held_out) == ["program_2"]


REFUSED = {
    "nothing": (lambda f: [], {}, "there is no data"),
    "no file": (lambda f: [f / "none.npz"], {}, "expected an .npz file"),
    "too few": (lambda f: layout_files(f, 1), {}, "0 of 4 folds of 1 programs"),
    "mixed": (lambda f: [*layout_files(f), tile_file(f)], {}, "layout and of the tile collections are mixed"),
    "no files": (lambda f: layout_files(f), {"held_out": {"by": "files"}}, "name them in held_out.files"),
    "half": (lambda f: [], {"data": {"collection": "tile:xla"}}, "belong together"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_data_that_cannot_be_trained_on_are_refused(tmp_path, case):
    files, sections, message = REFUSED[case]
    with pytest.raises(OptionError, match=message):
        open_split(config(tmp_path, files(tmp_path), **sections))


def test_the_hash_of_the_data_knows_files_and_rows_but_not_where_they_are(tmp_path):
    def hash_of(folder, **data):
        return open_split(config(tmp_path, layout_files(tmp_path / folder), data=data)).data_hash()

    assert hash_of("a") == hash_of("b") != hash_of("a", train_rows=5)
    assert {f.name for f in dataclasses.fields(Inputs)} == {
        "prune_hops",
        "compress_paths",
        "configs",
        "segment_size",
        "segment_method",
    }


def test_a_model_is_not_trained_on_configurations_that_it_does_not_read(tmp_path):
    tile = {"name": "tile_mlp", "options": {}}
    with pytest.raises(OptionError, match="program_0 holds configurations of nodes, which tile_mlp does not read"):
        open_split(config(tmp_path, layout_files(tmp_path), model=tile))
    with pytest.raises(OptionError, match="of the whole kernel, which split_sage does not read; .*tile_mlp"):
        open_split(config(tmp_path, [tile_file(tmp_path)], held_out={"by": "nothing"}))
