"""Duplicate configurations, the noise that they show, and features on one footing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exla.cost_model.footing import nodes_on_one_footing, tile_configs_on_one_footing
from exla.datasets.tpugraphs_adapter import (
    TpuGraphsError,
    deduplicate,
    duplicate_groups,
    npz,
    read,
)
from exla.errors import OptionError
from tests.datasets.made import REAL, layout_arrays, layout_file, save, tile_arrays, tile_file

A, B, C = (np.full((2, 18), k, np.float32) for k in range(3))


def with_configs(folder, configs, runtime):
    arrays = layout_arrays(c=len(runtime))
    return read(save(folder / "x.npz", arrays, node_config_feat=np.stack(configs), config_runtime=np.array(runtime)))


def test_of_duplicates_the_fastest_stays_or_none(tmp_path):
    file = with_configs(tmp_path, [A, B, A, C, A, B], [30, 50, 20, 40, 20, 55])
    once = deduplicate(file)
    assert once.rows.tolist() == [1, 2, 3] and once.runtimes.tolist() == [50, 20, 40]
    assert once.groups.tolist() == [0, 1, 0, 3, 0, 1] and once.num_dropped == 3
    none = deduplicate(file, keep="drop")
    assert none.rows.tolist() == [3] and none.runtimes.tolist() == [40] and none.num_dropped == 5


def test_the_report_says_how_many_and_how_far_apart(tmp_path):
    once = deduplicate(with_configs(tmp_path, [A, B, A, C, A, B], [30, 50, 20, 40, 20, 55]))
    noise = once.noise
    assert (noise.num_configs, noise.num_groups, noise.num_repeated) == (6, 2, 5)
    assert noise.largest_spread == 0.5 and noise.median_spread == pytest.approx(0.3)
    assert noise.kendall_tau is not None and 0 < noise.kendall_tau < 1
    assert str(once).startswith("3 of 6 rows left out: 2 configurations are in 5 of them; their runtimes differ by 0.3")


def test_without_duplicates_there_is_nothing_to_say_of_noise(tmp_path):
    once = deduplicate(with_configs(tmp_path, [A, B, C], [3, 2, 1]))
    assert once.rows.tolist() == [0, 1, 2] and once.noise.kendall_tau is None and once.noise.median_spread is None
    assert str(once) == "3 configurations, none of them twice"


def test_labels_that_float32_would_tie_are_told_apart(tmp_path):
    file = with_configs(tmp_path, [A, A], [2**40 + 1, 2**40])
    assert deduplicate(file).rows.tolist() == [1]


def test_tiles_are_compared_by_their_ratio(tmp_path):
    configs = np.zeros((3, 24), np.float32)
    runtime, normalizers = np.array([100, 90, 80]), np.array([100, 10, 20])
    changes = dict(config_feat=configs, config_runtime=runtime, config_runtime_normalizers=normalizers)
    once = deduplicate(read(save(tmp_path / "x.npz", tile_arrays(c=3), **changes)))
    assert once.rows.tolist() == [0] and once.runtimes.tolist() == [100]
    assert once.noise.largest_spread == 8.0 and once.noise.kendall_tau == 0.0


def test_minus_zero_is_zero(tmp_path):
    assert duplicate_groups(with_configs(tmp_path, [A, -A], [1, 2])).tolist() == [0, 0]


@settings(max_examples=20, deadline=None)
@given(which=st.lists(st.integers(0, 4), min_size=1, max_size=30), block_rows=st.integers(1, 7))
def test_groups_are_those_of_numpy_however_the_file_is_cut_into_blocks(which, block_rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("groups")
    file = with_configs(folder, [A + k for k in which], list(range(1, len(which) + 1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(npz, "BLOCK_BYTES", block_rows * A.nbytes)
        assert duplicate_groups(file).tolist() == [which.index(k) for k in which]
        assert deduplicate(file).rows.tolist() == sorted({which.index(k) for k in which})
        assert deduplicate(file, "drop").rows.tolist() == [i for i, k in enumerate(which) if which.count(k) == 1]


def test_what_cannot_be_compared_is_an_error(tmp_path):
    zeros = np.zeros(5, np.int64)
    with pytest.raises(TpuGraphsError, match="withheld"):
        deduplicate(layout_file(tmp_path / "test", config_runtime=zeros))
    with pytest.raises(TpuGraphsError, match="withheld"):
        deduplicate(tile_file(tmp_path / "test", config_runtime=zeros))
    with pytest.raises(OptionError, match='keep=\'mean\' is unknown; there are "minimum" and "drop"'):
        deduplicate(layout_file(tmp_path), keep="mean")


FOOTING = [
    ("scalar", [], [0, 0, 0, 0, 0, 0], [-1, -1, -1, -1, -1, -1]),
    ("vector, whose layout [0] looks like none", [7], [0, 0, 0, 0, 0, 0], [0, -1, -1, -1, -1, -1]),
    ("matrix", [7, 3], [1, 0, 0, 0, 0, 0], [1, 0, -1, -1, -1, -1]),
    ("four axes", [2, 3, 4, 5], [3, 0, 1, 2, 0, 0], [3, 0, 1, 2, -1, -1]),
    ("an empty axis at the end", [7, 0], [1, 0, 0, 0, 0, 0], [1, 0, -1, -1, -1, -1]),
    ("six axes", [2] * 6, [5, 4, 3, 2, 1, 0], [5, 4, 3, 2, 1, 0]),
]


@pytest.mark.parametrize("extents, layout, expected", [c[1:] for c in FOOTING], ids=[c[0] for c in FOOTING])
def test_layouts_of_nodes_are_filled_up_as_those_of_configurations(extents, layout, expected):
    nodes = np.ones((2, 140), np.float32)
    nodes[0, 21:27] = extents + [0] * (6 - len(extents))
    nodes[0, 134:140] = layout
    before = nodes.copy()
    found = nodes_on_one_footing(nodes)
    assert found[0, 134:140].tolist() == expected and found.dtype == np.float32
    np.testing.assert_array_equal(nodes_on_one_footing(found), found)
    np.testing.assert_array_equal(nodes, before)
    np.testing.assert_array_equal(found[:, :134], before[:, :134])


def test_the_product_of_an_empty_list_is_one_in_tile_configurations():
    empty, bounds = [0] * 8, [4, 2, 0, 0, 0, 0, 6, 8]
    configs = np.array([empty + bounds + empty, bounds + empty + bounds], np.float32)
    found = tile_configs_on_one_footing(configs)
    one = [0, 0, 0, 0, 0, 0, 0, 1]
    assert found.tolist() == [one + bounds + one, bounds + one + bounds]
    assert configs[0, 7] == 0
    np.testing.assert_array_equal(tile_configs_on_one_footing(found), found)


@pytest.mark.skipif(not REAL, reason="no real TpuGraphs files")
def test_real_nodes_have_layouts_that_are_permutations():
    for path in REAL:
        feat = read(path).graph.node_feat
        found = nodes_on_one_footing(feat)
        np.testing.assert_array_equal(nodes_on_one_footing(found), found)
        for extents, layout in zip(feat[:, 21:27], found[:, 134:140], strict=True):
            axes = int((extents != 0).sum())
            assert sorted(layout[:axes]) == list(range(axes)) and (layout[axes:] == -1).all()
