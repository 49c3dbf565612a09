"""Saved models: what is refused, and with which words."""

import json

import numpy as np
import pytest

from exla.cost_model.checkpoint import FEATURE_VERSION, Trained, load, save
from exla.errors import CheckpointError
from tests.cost_model.made import fitted, made_sample


@pytest.fixture
def saved(tmp_path):
    trained = Trained(
        model="split_sage",
        options={"hidden": 8},
        variables={"params": {"head": {"kernel": np.ones((4, 1), np.float32)}}},
        normaliser=fitted([made_sample(0)]),
    )
    save(tmp_path / "m.npz", trained)
    return tmp_path / "m.npz"


def rewritten(path, **changes):
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    about = json.loads(str(arrays["about"]))
    for name, value in changes.items():
        if isinstance(value, np.ndarray):
            arrays[name.replace("__", "/")] = value
        else:
            about[name] = value
    arrays["about"] = arrays["about"] if "about" in changes else np.array(json.dumps(about))
    np.savez(path, **arrays)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="none.npz: there is no such file"):
        load(tmp_path / "none.npz")


def test_a_model_of_other_features_is_refused(saved):
    rewritten(saved, feature_version=FEATURE_VERSION + 1)
    with pytest.raises(CheckpointError, match=f"made for version {FEATURE_VERSION + 1} of the features"):
        load(saved)


def test_an_unknown_model_is_refused_with_the_list(saved):
    rewritten(saved, model="transformer")
    with pytest.raises(CheckpointError, match="no cost model named 'transformer'; there are: .*split_sage"):
        load(saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"normaliser__mean": np.zeros(3, np.float32)},
        {"variables__params__head__kernel": np.array([[np.nan]], np.float32)},
        {"variables__params__head__kernel": np.array(["text"])},
        {"about": np.array("not json")},
        {"options": [1]},
    ],
)
def test_what_does_not_make_sense_is_refused(saved, changes):
    rewritten(saved, **changes)
    with pytest.raises(CheckpointError):
        load(saved)


def test_a_pickle_is_refused_and_not_read(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    np.savez(tmp_path / "m.npz", about=np.array([Bomb()], dtype=object))
    with pytest.raises(CheckpointError):
        load(tmp_path / "m.npz")
    assert not (tmp_path / "exploded").exists()


def test_a_torn_file_is_refused_wherever_it_is_torn(saved):
    whole = saved.read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 60)):
        saved.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            load(saved)


def test_saving_again_replaces_the_file_and_leaves_nothing_else(saved):
    trained = load(saved)
    save(saved, trained)
    assert [p.name for p in saved.parent.iterdir()] == ["m.npz"]


def test_a_text_file_and_a_folder_are_no_models_and_no_word_is_said_for_unpickling(tmp_path):
    (tmp_path / "m.npz").write_text("hello")
    with pytest.raises(CheckpointError) as error:
        load(tmp_path / "m.npz")
    assert "pickle" not in str(error.value) and "not a zip" in str(error.value)
    with pytest.raises(CheckpointError, match="a folder; name the file"):
        load(tmp_path)
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(CheckpointError, match="not a saved model: it has no 'about'"):
        load(tmp_path / "other.npz")
