"""Learning from the user's own programs: better on programs that were left out, or nothing changes."""

import jax
import numpy as np
import pytest

from exla.cost_model.batch import Sample, collate
from exla.cost_model.candidates import own_folder, ranker_for
from exla.cost_model.checkpoint import Trained, load, save
from exla.cost_model.models import MODELS
from exla.cost_model.normalise import Normaliser
from exla.cost_model.split_configs import describe
from exla.search.pool import pool
from exla.search.ranker import find_ranker
from exla.training import online
from exla.training.online import FEWEST, keep, learn_from_kept
from tests.cost_model.test_split_configs import zoo_space

pytestmark = pytest.mark.usefixtures("compiled_quickly")

NAMES = ("chamfer", "hausdorff", "kendall_tau", "ripley_k")


@pytest.fixture(scope="module")
def spaces():
    return [(space := zoo_space(name), pool(space, most=14, seconds=2.0)) for name in NAMES]


@pytest.fixture
def weights(spaces, tmp_path, monkeypatch):
    """A model that has learned nothing, as weights that come with exla."""
    space, candidates = spaces[0]
    described = describe(space.starts)
    sample = Sample(graph=described.graph, node_config=described.configs(candidates, space.option_sets))
    normaliser = Normaliser.fit([described.graph])
    options = {"hidden": 8, "blocks": 1}
    variables = jax.jit(MODELS.get("split_sage")(**options).init)(jax.random.key(0), collate([sample], normaliser))
    path = tmp_path / "shipped" / "cpu.npz"
    path.parent.mkdir()
    save(path, Trained(model="split_sage", options=options, variables=variables, normaliser=normaliser))
    monkeypatch.setattr("exla.cost_model.candidates.shipped_weights", lambda: {"cpu": path})
    find_ranker.cache_clear()
    yield path
    find_ranker.cache_clear()


def by_temporaries(candidate):
    """As if what needs little memory were fast."""
    return 1e-3 * (1 + candidate.peak.temporary_bytes / 1e5)


def test_what_all_programs_have_in_common_is_learned_and_used_from_then_on(spaces, weights):
    for space, candidates in spaces[: FEWEST - 1]:
        keep("cpu", space, [(c.all_decisions, by_temporaries(c)) for c in candidates])
    early = learn_from_kept("cpu")
    assert not early.kept and "nothing yet" in str(early) and not list(own_folder("cpu").glob("*.npz"))
    for space, candidates in spaces:
        keep("cpu", space, [(c.all_decisions, by_temporaries(c)) for c in candidates])
    learned = learn_from_kept("cpu")
    assert learned.kept and learned.after > learned.before + 0.1 and "moved" in str(learned)
    own = own_folder("cpu") / "cpu.0.npz"
    assert load(own).card["learned_online"]["programs"] == len(NAMES) == learned.programs
    old, new = load(weights).variables["params"], ranker_for("cpu").rankers[0].trained.variables["params"]
    for name in old:
        same = jax.tree.all(jax.tree.map(np.array_equal, old[name], new[name]))
        assert same == (name != "head"), "the head moves, and nothing else"

    for path in (own_folder("cpu") / "programs").glob("*.npz"):
        path.write_bytes(path.read_bytes()[:100])
    assert learn_from_kept("cpu").programs == 0, "damaged files are passed over"


def test_what_does_not_help_is_discarded(spaces, weights, monkeypatch):
    for space, candidates in spaces:
        keep("cpu", space, [(c.all_decisions, by_temporaries(c)) for c in candidates])
    (own_folder("cpu") / "cpu.0.npz").write_bytes(weights.read_bytes())  # of an earlier time
    monkeypatch.setattr(online, "_fit", lambda old, programs, penalty: -old)
    learned = learn_from_kept("cpu")
    if learned.before > 0:
        assert not learned.kept and learned.after < learned.before and "left as they were" in str(learned)
        assert not list(own_folder("cpu").glob("*.npz"))
