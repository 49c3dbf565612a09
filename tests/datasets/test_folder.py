"""The standard folder: collections, splits, ids; known damage is told and nothing is dropped."""

import numpy as np
import pytest

from exla.datasets.tpugraphs_adapter import DAMAGED, Layout, Tile, TpuGraphs, TpuGraphsError, damaged, parse_id
from tests.datasets.made import layout_arrays, save, tile_arrays


@pytest.fixture
def root(tmp_path):
    npz = tmp_path / "npz_all" / "npz"
    for name in ("unet_3d.4x4.bf16", "alexnet"):
        save(npz / "layout" / "xla" / "random" / "train" / f"{name}.npz", layout_arrays())
    zeros = np.zeros(5, np.int64)
    save(npz / "layout" / "xla" / "random" / "test" / "hidden.npz", layout_arrays(), config_runtime=zeros)
    save(npz / "tile" / "xla" / "valid" / "mlp_1.npz", tile_arrays())
    return tmp_path


@pytest.mark.parametrize("level", [".", "npz_all", "npz_all/npz"])
def test_collections_splits_and_files_are_listed_from_any_level(level, root):
    data = TpuGraphs(root / level)
    assert data.collections() == ("layout:xla:random", "tile:xla")
    assert data.splits("layout:xla:random") == ("train", "test")
    assert data.ids("layout:xla:random", "train") == [
        "layout:xla:random:alexnet",
        "layout:xla:random:unet_3d.4x4.bf16",
    ]
    assert [p.name for p in data.files("tile:xla", "valid")] == ["mlp_1.npz"]


def test_an_id_opens_its_file(root):
    data = TpuGraphs(root)
    assert isinstance(data.read("layout:xla:random:unet_3d.4x4.bf16"), Layout)
    assert isinstance(data.read("tile:xla:mlp_1", "valid"), Tile)
    assert not data.read("layout:xla:random:hidden").has_target


def test_listing_opens_nothing(root):
    (root / "npz_all" / "npz" / "tile" / "xla" / "valid" / "broken.npz").write_bytes(b"no zip")
    data = TpuGraphs(root)
    assert data.ids("tile:xla", "valid") == ["tile:xla:broken", "tile:xla:mlp_1"]
    with pytest.raises(TpuGraphsError, match="broken.npz"):
        data.read("tile:xla:broken")


def test_a_name_in_two_splits_needs_the_split(root):
    data = TpuGraphs(root)
    save(data.root / "tile" / "xla" / "train" / "mlp_1.npz", tile_arrays(seed=1))
    with pytest.raises(TpuGraphsError, match="mlp_1 in train, valid of train, valid"):
        data.path("tile:xla:mlp_1")
    assert data.path("tile:xla:mlp_1", "train").parent.name == "train"


@pytest.mark.parametrize(
    "ask, message",
    [
        (lambda d: d.files("layout:xla:best", "train"), "one of layout:nlp:default, .*; found 'layout:xla:best'"),
        (lambda d: d.files("tile:xla", "train"), "found 'train', of the splits valid"),
        (lambda d: d.read("tile:xla:absent"), "absent in none of valid"),
        (lambda d: d.read("tile:xla:mlp_1", "test"), "mlp_1 in none of test"),
        (lambda d: d.read("tile:xla:../valid/mlp_1"), "a collection, a colon and a file's name"),
    ],
    ids=range(5),
)
def test_what_is_not_there_is_an_error_that_lists_what_is(ask, message, root):
    with pytest.raises(TpuGraphsError, match=message):
        ask(TpuGraphs(root))


def test_a_folder_without_the_data_set_is_an_error(tmp_path):
    with pytest.raises(TpuGraphsError, match="npz_all/npz, npz, or the folders layout and tile; found none of them"):
        TpuGraphs(tmp_path)
    with pytest.raises(TpuGraphsError, match="found no folder"):
        TpuGraphs(tmp_path / "absent")


def test_ids_are_a_collection_and_a_name():
    assert parse_id("layout:nlp:default:bert.4x4") == ("layout:nlp:default", "bert.4x4")
    assert parse_id("tile:xla:mlp_1") == ("tile:xla", "mlp_1")
    for wrong in ("", "tile:xla", "tile:xla:", "tile:nlp:x", "layout:xla:x", "tile:xla:a,b", "tile:xla:a/b"):
        with pytest.raises(TpuGraphsError):
            parse_id(wrong)


def test_files_that_somebody_found_damaged_are_told_and_not_dropped(root):
    data = TpuGraphs(root)
    assert "unet_3d.4x4.bf16" in {entry.name for entry in damaged("layout:xla:random")}
    assert "layout:xla:random:unet_3d.4x4.bf16" in data.ids("layout:xla:random", "train")
    assert damaged("tile:xla") == () and damaged() == DAMAGED
    for entry in DAMAGED:
        assert entry.reason and entry.source
        assert all(parse_id(f"{collection}:{entry.name}") for collection in entry.collections)
