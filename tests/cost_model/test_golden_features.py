"""The graphs of kept modules are what they were."""

from pathlib import Path

import numpy as np
import pytest

from exla.cost_model.features import featurize
from exla.cost_model.hlo import read_module
from tests.golden.hlo import make

FOLDER = Path(make.__file__).parent
NAMES = sorted(path.name.removesuffix(".hlo.pb") for path in FOLDER.glob("*.hlo.pb"))


def test_each_program_has_its_files():
    assert set(NAMES) == {*make.PROGRAMS, *(f"{name}_optimised" for name in make.OPTIMISED)}
    assert all((FOLDER / f"{name}.npz").exists() for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_of_a_kept_module_is_what_it_was(name):
    made = featurize(read_module(FOLDER / f"{name}.hlo.pb")).arrays()
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as kept:
        assert set(kept.files) == set(made)
        for key in kept.files:
            np.testing.assert_array_equal(made[key], kept[key], err_msg=key)
            assert made[key].dtype == kept[key].dtype
