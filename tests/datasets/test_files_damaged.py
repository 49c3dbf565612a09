"""Whatever is done to the bytes of a file: an error that says what, or the values that were there. Nothing else."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exla.datasets.tpugraphs_adapter import TpuGraphsError, check, read
from tests.datasets.made import arrays_of, assert_same, layout_arrays, save, tile_arrays

LAYOUT = layout_arrays() | {"is_default": np.arange(5) == 1}
TILE = tile_arrays()


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Bytes of a sound file of each kind, what it holds, and a path to put damaged ones."""
    folder = tmp_path_factory.mktemp("damaged")
    kinds = {"layout": LAYOUT, "tile": TILE}
    return {k: (save(folder / f"{k}.npz", a).read_bytes(), a, folder / f"{k}.npz") for k, a in kinds.items()}


def read_all(path, data):
    """What a file with these bytes holds; None where it is refused."""
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            file = read(path)
            some = file.configs([1])
            arrays = arrays_of(file)
        except TpuGraphsError as error:
            assert error.problems
            return None
    name = "node_config_feat" if "node_config_feat" in arrays else "config_feat"
    np.testing.assert_array_equal(some, arrays[name][[1]])
    return arrays


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_a_file_that_is_cut_off_anywhere_is_refused(kind, sound):
    data, _, path = sound[kind]
    assert read_all(path, data) is not None
    for length in range(0, len(data), 25):
        assert read_all(path, data[:length]) is None, length


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_a_flipped_bit_in_any_byte_is_refused_or_harmless(kind, sound):
    data, arrays, path = sound[kind]
    refused = 0
    places = [*range(0, len(data) - 700, 13), *range(len(data) - 700, len(data), 4)]  # the directory is at the end
    for at in places:
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        found = read_all(path, bytes(changed))
        refused += found is None
        if found is not None:
            assert_same(found, arrays)
    assert refused > len(places) / 4


def test_an_optional_array_that_the_directory_lost_is_missed(sound):
    data, _, path = sound["layout"]
    entry = data.rindex(b"node_splits.npy") - 46
    changed = bytearray(data)
    changed[entry + 32] = 46 + len("is_default.npy")  # the next entry becomes this one's comment
    path.write_bytes(changed)
    with pytest.raises(TpuGraphsError, match="a zip of 8 members, of which its directory lists 7"):
        read(path)


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(["layout", "tile"]),
    at=st.integers(0, 10**6),
    removed=st.integers(0, 40),
    added=st.binary(max_size=40)
    | st.sampled_from([b"\0" * 30, b"\xff" * 30, b"PK\x01\x02", b"PK\x05\x06" + b"\0" * 18]),
)
def test_bytes_that_are_overwritten_removed_or_added_are_refused_or_harmless(kind, at, removed, added, sound):
    data, arrays, path = sound[kind]
    at %= len(data)
    found = read_all(path, data[:at] + added + data[at + removed :])
    if found is not None:
        assert_same(found, arrays)


@pytest.mark.parametrize("store", [np.savez, np.savez_compressed])
def test_a_damaged_configuration_is_found_whichever_rows_are_asked_for(store, tmp_path):
    arrays = layout_arrays(c=300)
    arrays["node_config_feat"] = np.random.default_rng(0).random((300, 2, 18), np.float32)
    path = tmp_path / "x.npz"
    store(path, **arrays)
    data = path.read_bytes()
    at = data.index(b"node_config_feat.npy") + 20_000
    path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
    file = read(path)
    for ask in (lambda: file.configs([0]), lambda: file.configs([]), file.configs, lambda: list(file.blocks(1))):
        with pytest.raises(TpuGraphsError, match="node_config_feat: expected data that unpack to what their checksum"):
            ask()
    assert [p.array for p in check(path)] == ["node_config_feat"]
