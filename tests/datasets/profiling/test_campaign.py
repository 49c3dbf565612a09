"""What a campaign file says, and what it does not."""

from dataclasses import replace

import pytest

from exla.datasets.profiling.campaign import Campaign, from_dict, read_campaign
from exla.datasets.profiling.generated import generate
from exla.datasets.profiling.prepare import prepare
from exla.datasets.profiling.run import Folder
from exla.datasets.profiling.zoo.families import FAMILIES
from exla.datasets.profiling.zoo.programs import ZOO
from exla.errors import OptionError
from exla.search.pool import walks
from exla.search.ranker import Ranking


@pytest.mark.parametrize(
    "text, said",
    [
        ("megabyte = [3]", "did you mean 'megabytes'"),
        ('zoo = ["chamfr"]', "did you mean 'chamfer'"),
        ("megabytes = 3", "megabytes: expected a list"),
        ('megabytes = ["3"]', "megabytes: expected float"),
        ("candidates = true", "candidates: expected int"),
        ("shares = [0.0]", "above 0"),
        ("walk = 1", "a factor from 2 on, or 0"),
        ("walk = 8\nunsure = 2", "nothing to be unsure of"),
        ("megabytes = []", "one of each at least"),
        ("candidates = 0", "above 0"),
        ("unsure = -1", "not -1"),
        ("name = ", "no campaign can be read"),
    ],
)
def test_what_is_no_campaign_is_refused_with_what_there_is(tmp_path, text, said):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(OptionError, match=said):
        read_campaign(tmp_path / "c.toml")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(OptionError, match="nowhere.toml"):
        read_campaign(tmp_path / "nowhere.toml")


def test_every_program_of_the_zoo_that_can_be_split_is_in_one_family():
    names = [name for family in FAMILIES.values() for name in family]
    assert len(names) == len(set(names))
    assert set(names) == {name for name, p in ZOO.items() if p.over is not None}


def test_a_family_is_of_one_split_and_all_splits_have_some():
    instances = list(Campaign(generated=60).instances())
    assert len({i.name for i in instances}) == len(instances)
    splits = {}
    for instance in instances:
        assert splits.setdefault(instance.family, instance.split) == instance.split
    assert set(splits.values()) == {"train", "valid", "test"} and len(splits) >= 50


def test_a_campaign_that_is_stopped_early_has_seen_many_families():
    first = list(Campaign(generated=60).instances())[:60]
    assert len({i.family for i in first}) >= 25 and len({(i.megabytes, i.share) for i in first}) == 4


def test_the_same_seed_makes_the_same_program():
    for seed in range(12):
        one, other = generate(seed), generate(seed)
        assert one.family == other.family
        arguments = one.arguments(24)
        first, second = one.function(*arguments), other.function(*other.arguments(24))
        assert str(first) == str(second)


def test_a_campaign_is_what_its_values_say():
    made = from_dict({"name": "a", "megabytes": [8], "zoo": ["chamfer"], "rounds_s": 1})
    assert made.megabytes == (8,) and made.zoo == ("chamfer",) and made.rounds_s == 1.0
    assert made.label == "wall_clock" and from_dict({"target": "tpu:v5e"}).label == "tpu_estimate"
    assert {i.name for i in made.instances()} == {"chamfer-8MB-0.3", "chamfer-8MB-0.1"}


def test_a_campaign_of_walks_measures_every_candidate_of_them():
    campaign = Campaign(zoo=("svgd_step",), megabytes=(1.0,), shares=(0.3, 2.0), candidates=6, walk=8)
    for instance in campaign.instances():
        prepared = prepare(instance, "cpu")
        obeys = prepared.space.root.peak.bytes <= prepared.attempt.limit_bytes
        assert obeys == (instance.share > 1)
        candidates = prepared.candidates(campaign)
        again = walks(prepare(instance, "cpu").space, 8)
        assert [c.all_decisions for c in candidates] == [c.all_decisions for c in again]
        assert len(candidates) > 6


def test_what_the_weights_are_unsure_of_is_measured_too(monkeypatch):
    campaign = Campaign(zoo=("svgd_step",), megabytes=(1.0,), shares=(0.3,), candidates=6)
    prepared = prepare(next(campaign.instances()), "cpu")
    asked = []

    class Doubting:
        """Finds all alike, and doubts the third and the fifth."""

        def rank(self, starts, candidates, option_sets):
            asked.extend(candidates)
            doubts = tuple(float(k in (2, 4)) for k in range(len(candidates)))
            zeros = (0.0,) * len(candidates)
            return Ranking(order=tuple(range(len(candidates))), scores=zeros, doubts=doubts, weights="made up")

    monkeypatch.setattr("exla.datasets.profiling.prepare.find_ranker", lambda target: Doubting())
    sure = [c.all_decisions for c in prepared.candidates(campaign)]
    assert not asked
    found = [c.all_decisions for c in prepared.candidates(replace(campaign, unsure=2))]
    assert found == [*sure, asked[2].all_decisions, asked[4].all_decisions]
    assert len(asked) > 6 and len(set(found)) == len(found)


def test_without_weights_nothing_can_be_unsure(tmp_path, monkeypatch):
    monkeypatch.setattr("exla.cost_model.candidates.shipped_weights", lambda: {})
    with pytest.raises(OptionError, match="unsure = 2, and there are no weights for cpu .*EXLA_WEIGHTS"):
        Folder.open(tmp_path / "runs", Campaign(unsure=2))
    assert not (tmp_path / "runs").exists()
