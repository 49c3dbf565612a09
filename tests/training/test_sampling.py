"""Batches are functions of a seed and a step; every program once in an epoch; one shape for each class of sizes."""

import jax
import numpy as np
import pytest

from exla.training.data import open_split
from exla.training.sampling import Sampler
from exla.training.train import fit_normaliser
from tests.training.made import config, layout_file, layout_files

CONFIGS = 5


@pytest.fixture
def split(tmp_path):
    """Five small programs, and two of a larger class."""
    files = [*layout_files(tmp_path, 5, n=5), *(layout_file(tmp_path, f"large_{i}", n=20, seed=9 + i) for i in (0, 1))]
    return open_split(config(tmp_path, files, held_out={"by": "nothing"}))


def sampler_of(split, *, seed=0, graphs=2, shards=1):
    normaliser = fit_normaliser(split)
    return Sampler(split.train, normaliser, graphs=graphs, configs=CONFIGS, shards=shards, seed=seed)


def seen(sampler, steps):
    return [[(c.part, c.rows.tolist()) for c in sampler.chosen(step)] for step in steps]


def test_a_batch_depends_on_the_seed_and_the_step_and_on_nothing_before(split):
    straight = seen(sampler_of(split), range(9))
    assert seen(sampler_of(split), reversed(range(9))) == straight[::-1]
    assert seen(sampler_of(split, shards=4), range(9)) == straight != seen(sampler_of(split, seed=1), range(9))
    assert len({str(batch) for batch in straight}) == 9


def test_an_epoch_has_every_program_and_no_batch_has_two_classes(split):
    sampler = sampler_of(split)
    assert sampler.steps_per_epoch == 4  # three of the small ones, one of the large
    for epoch in range(3):
        parts = [[c.part for c in sampler.chosen(4 * epoch + i)] for i in range(4)]
        assert set(sum(parts, [])) == set(range(7))
        assert all(len({part >= 5 for part in batch}) == 1 for batch in parts)


def test_rows_are_drawn_from_all_and_none_twice_in_a_batch(split):
    sampler = sampler_of(split)
    drawn = [c.rows.tolist() for step in range(80) for c in sampler.chosen(step)]
    assert all(len(set(rows)) == CONFIGS for rows in drawn) and set(sum(drawn, [])) == set(range(24))


def test_a_class_has_one_shape_whatever_its_batch(split):
    sampler, shapes = sampler_of(split), {}
    for step in range(8):
        batch = sampler.shard(step, 0)
        large = sampler.chosen(step)[0].part >= 5
        shapes.setdefault(large, set()).add(str(jax.tree.map(np.shape, batch)))
    assert len(shapes) == 2 and all(len(found) == 1 for found in shapes.values())


def real(batch):
    """Places of the real candidates of the programs that have any."""
    mask = batch.candidate_mask
    return [rank[m].tolist() for rank, m in zip(batch.rank, mask, strict=True) if m.any()]


@pytest.mark.parametrize("graphs, shards", [(3, 1), (3, 2), (3, 3), (2, 4), (5, 4)])
def test_the_shards_together_are_the_batch(split, graphs, shards):
    whole = sampler_of(split, graphs=graphs)
    cut = sampler_of(split, graphs=graphs, shards=shards)
    for step in range(3):
        parts = [cut.shard(step, i) for i in range(shards)]
        assert sum((real(p) for p in parts), []) == real(whole.shard(step, 0))
        assert len({str(jax.tree.map(np.shape, p)) for p in parts}) == 1
