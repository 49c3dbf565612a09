"""Configs: what is read, what is changed, and what is refused with a list of what there is."""

import pytest

from exla.errors import OptionError
from exla.training.config import Config, make_config, read_config, shipped_configs

TEXT = """
[model]
options = { hidden = 32 }
[data]
files = ["a.npz", "b"]
prune_hops = 1
[optimiser]
learning_rate = 1
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.toml").write_text(TEXT)
    return tmp_path / "mine.toml"


def test_a_file_is_read_and_the_rest_has_its_defaults(file):
    config = read_config(file)
    assert config.data.files == ("a.npz", "b") and config.data.prune_hops == 1
    assert config.optimiser.learning_rate == 1.0 and type(config.optimiser.learning_rate) is float
    assert config.model.options == {"hidden": 32} and config.model.name == "split_sage"
    assert config.run == Config().run and config.optimiser.ema == 0.995


def test_changes_win_over_the_file_and_text_needs_no_quotes(file):
    changes = ["optimiser.steps=7", "run.folder=runs/x", "model.options.dtype=bfloat16", "model.options.remat=true"]
    config = read_config(file, [*changes, "data.files=['c.npz']"])
    assert config.optimiser.steps == 7 and config.run.folder == "runs/x" and config.data.files == ("c.npz",)
    assert config.model.options == {"hidden": 32, "dtype": "bfloat16", "remat": True}


REFUSED = {
    "section": ({"optimizer": {}}, r"no section called 'optimizer' \(did you mean 'optimiser'\?\).*model, data"),
    "key": ({"data": {"graph": 1}}, r"no key in \[data\] called 'graph' \(did you mean 'graphs'\?\).*train_rows"),
    "no section": ({"data": 3}, r"data is 3, expected a section \[data\]"),
    "kind": ({"data": {"graphs": "4"}}, "data.graphs is '4', expected a whole number"),
    "true is no number": ({"data": {"graphs": True}}, "data.graphs is True, expected a whole number"),
    "list": ({"data": {"files": "a.npz"}}, "data.files is 'a.npz', expected a list of texts"),
    "optional": ({"data": {"prune_hops": 1.5}}, "data.prune_hops is 1.5, expected a whole number"),
    "model": ({"model": {"name": "gpt"}}, "model.name is 'gpt'; there are: .*split_sage"),
    "model's option": ({"model": {"options": {"width": 3}}}, "split_sage has no option 'width'; there are: hidden"),
    "its kind": ({"model": {"options": {"remat": 1}}}, "model.options.remat is 1, expected true or false"),
    "loss": ({"optimiser": {"loss": "mse"}}, "optimiser.loss is 'mse'; there are: delay_huber, expected_delay"),
    "prior": ({"segments": {"size": 9}, "model": {"options": {"prior": 16}}}, "a prior is of a whole program; leave"),
    "trust": ({"optimiser": {"trust": 0.5}}, "optimiser.trust is of a model with a prior; set model.options.prior"),
    "held out": ({"held_out": {"by": "luck"}}, "held_out.by is 'luck'; there are: folds, leave-one-out, rows"),
    "fold": ({"held_out": {"folds": 3, "fold": 3}}, "held_out.fold is 3, expected 0 to 2"),
    "bound": ({"data": {"configs": 1}}, "data.configs is 1, expected 2 or more"),
    "seed": ({"run": {"seed": -1}}, "run.seed is -1, expected 0 or more"),
    "width": ({"model": {"options": {"hidden": 0}}}, "model.options.hidden is 0, expected 1 or more"),
    "share": ({"optimiser": {"ema": 1.5}}, "optimiser.ema is 1.5, expected 0 to 1"),
    "not a number": ({"optimiser": {"learning_rate": float("nan")}}, "learning_rate is nan"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_there_is_not_is_refused_with_what_there_is(case):
    values, message = REFUSED[case]
    with pytest.raises(OptionError, match=message):
        make_config(values)


@pytest.mark.parametrize("change", ["steps=3", "optimiser.steps", "optimiser..steps=3", "model.name.x=3"])
def test_a_change_that_names_no_key_is_refused(file, change):
    file.write_text('model = { name = "split_sage" }')
    with pytest.raises(OptionError, match="--set"):
        read_config(file, [change])


def test_a_file_that_is_not_there_or_no_toml_is_refused(tmp_path):
    with pytest.raises(OptionError, match="configs that come with exla: layout, one_program, split, tile, tiny"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[model")
    with pytest.raises(OptionError, match="not a TOML file"):
        read_config(tmp_path / "bad.toml")


@pytest.mark.parametrize("name", shipped_configs())
def test_the_configs_that_come_with_exla_are_sound(name):
    assert read_config(name).run.folder == f"runs/{name}"


def test_where_a_run_is_kept_and_how_often_does_not_tell_it_from_another():
    one, other = (make_config({"run": {"folder": f, "checkpoint_every": n}}) for f, n in (("a", 1), ("b", 2)))
    assert one.trained_by() == other.trained_by() != make_config({"run": {"seed": 1}}).trained_by()
    assert one.trained_by()["optimiser.steps"] == 1000
