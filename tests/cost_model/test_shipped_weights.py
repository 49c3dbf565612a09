"""The weights that come with exla: small, of targets that there are, with a card, and good for a search."""

import json
import re

import numpy as np
import pytest

from exla.cost_model.candidates import ranker_for
from exla.cost_model.checkpoint import load
from exla.cost_model.ranker import shipped_weights
from exla.cost_model.split_configs import COLUMNS, describe
from exla.search.pool import pool
from exla.search.ranker import targets_of
from exla.targets.base import TARGETS
from tests.cost_model.test_split_configs import zoo_space

SHIPPED = shipped_weights()
NAMES = sorted({target.replace("-", ":", 1) for path in SHIPPED.values() for target in targets_of(path)})
"""The targets that weights come with exla for."""


@pytest.fixture(autouse=True)
def as_they_come(tmp_path, monkeypatch):
    """Nothing that was learned on this machine."""
    monkeypatch.delenv("EXLA_WEIGHTS", raising=False)
    monkeypatch.setenv("EXLA_RECORDS_DIR", str(tmp_path))


def test_there_are_weights_for_what_was_profiled():
    assert {"cpu", "tpu:v5e", "tpu:v6e"} <= set(NAMES) <= set(TARGETS)


@pytest.mark.parametrize("name", SHIPPED)
def test_weights_are_small_and_have_a_card(name):
    assert SHIPPED[name].stat().st_size < 1 << 20
    card = load(SHIPPED[name]).card
    assert card["label"] in (["wall_clock"], ["tpu_estimate"]) and len(card["families"]) >= 25
    assert card["data"]["programs"] >= 150 and len(card["data"]["hash"]) == 64 and card["versions"]["jax"]
    assert 0 < card["config"]["optimiser"]["trust"] <= 1 and card["known_failures"]
    for table in card["held_out"]["by_device"].values():
        assert table["programs"] >= 150 and 1 <= table["learned"] <= table["learned_worst"]
        kept = "learned_3" if table["learned"] < table["analytic"] else "advised_3"
        assert table[kept] < table["analytic_3"] and table["learned"] < table["heuristic"] < table["random"]
    assert not re.search(r'"[^"]*/[^" ]*/', json.dumps(card)), "a path of some machine"


@pytest.mark.parametrize("target", NAMES)
def test_they_rank_a_program_near_what_is_predicted_and_not_just_so(target):
    space = zoo_space("svgd_step")
    candidates = pool(space, most=24, seconds=30.0)
    ranker = ranker_for(target)
    assert len(ranker.rankers) >= 2
    ranking = ranker.rank(space.starts, candidates, space.option_sets)
    configs = describe(space.starts).configs(candidates, space.option_sets)
    predicted = configs[:, :, COLUMNS.index("predicted_us")].max(1)
    assert np.isfinite(ranking.scores).all() and np.corrcoef(ranking.scores, predicted)[0, 1] > 0.5
    assert ranking.order != tuple(np.argsort(predicted, kind="stable")) and max(ranking.doubts) > 0
