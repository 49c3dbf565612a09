"""Graph segment training: programs of any size in the memory of one segment.

A program is cut into segments of at most `size` nodes. A batch holds one random segment of each of its programs, and
only that one is computed, forward and backward; what the other segments came to when it was last their turn is read
from a table:

    summary = weight · share · summary(segment)  +  Σ over some of the others  share · table[other]
    loss    = loss(head(summary))

A share is a segment's part of the program's nodes (of its configurable nodes, for the half of the summary that is
their mean). Each of the others is left out with probability 1 - keep (stale embedding dropout), since what is in the
table is of older parameters; the weight of the fresh one makes up for those left out or not known yet. In the last
`head_steps` steps the backbone stands still at its average, the table is made anew, and only the head is trained.

    sampler = SegmentSampler(split.train, normaliser, graphs=1, configs=64, shards=1, seed=0,
                             how=config.segments, steps=1000)
    state = replace(state, history=start_history(sampler.table_size, width))
    steps = SegmentSteps(model, loss, optimiser, ema=0.995, mesh=mesh, sampler=sampler, scorer=scorer)
    state, measured = steps(0, state, spread(mesh, [sampler.shard(0, 0)]))

Programs are scored by segments too (`SegmentScorer`), since norms and attention see a segment at a time.

Source: Cao et al., Learning Large Graph Property Prediction via Graph Segment Training, NeurIPS 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh

from exla.cost_model.batch import Batch, collate
from exla.cost_model.inputs import Inputs
from exla.cost_model.losses import Loss
from exla.cost_model.normalise import Normaliser
from exla.cost_model.pieces import Cut
from exla.training.config import SegmentsConfig
from exla.training.data import Part
from exla.training.parallel import local_shards, on_all, replicated, spread
from exla.training.sampling import Sampler, Sizes, without_candidates
from exla.training.scoring import Ranked, Scorer, in_lots
from exla.training.step import State, Variables, apply_gradients, make_apply


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Where:
    """What a batch of segments reads from the table and writes into it.

    Fields:
      fresh: (g + 1, c) int32, where the segment's summaries go; the last entry of the table is for padding.
      fresh_share: (g + 1, 2) float32.
      others: (g + 1, c, J) int32, entries of the program's other segments.
      others_share: (g + 1, J, 2) float32, 0 for those that are left out.
      missing: (g + 1, J) float32, 1 for each other segment that the program has.
    """

    fresh: jax.Array
    fresh_share: jax.Array
    others: jax.Array
    others_share: jax.Array
    missing: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class SegmentBatch:
    """One segment of each of g programs, c candidates each.

    Fields:
      batch: the segments; places are those of the candidates of the whole program.
      where: the rest of the programs.
    """

    batch: Batch
    where: Where


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class History:
    """What segments came to the last time, of all rows and segments of all training programs, and one for padding.

    Fields:
      summary: (entries, w) float32, means over the segment's nodes ‖ over its configurable nodes.
      known: (entries,) bool, False before the first time.
    """

    summary: jax.Array
    known: jax.Array


def start_history(entries: int, width: int) -> History:
    """A table of which nothing is known."""
    return History(summary=jnp.zeros((entries, width), jnp.float32), known=jnp.zeros(entries, bool))


class SegmentSampler:
    """Batches of segments; a function of the seed and the step, as `Sampler`.

    Args:
      parts: what is trained on.
      normaliser: how features are scaled.
      graphs, configs, shards, seed: as for `Sampler`.
      how: the cut.
      steps: of the run; in the last `how.head_steps` of them nothing is left out.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        normaliser: Normaliser,
        *,
        graphs: int,
        configs: int,
        shards: int,
        seed: int,
        how: SegmentsConfig,
        steps: int,
    ) -> None:
        self._programs = Sampler(parts, normaliser, graphs=graphs, configs=configs, shards=shards, seed=seed)
        self.parts, self.normaliser, self.how, self.configs = tuple(parts), normaliser, how, configs
        self.head_from = steps - how.head_steps
        self.cuts = [Cut.of(part.program.graph, size=how.size, method=how.method) for part in parts]
        self.most = max(len(cut.pieces) for cut in self.cuts)
        sizes = [len(part.rows) * len(cut.pieces) for part, cut in zip(parts, self.cuts, strict=True)]
        self._first = np.concatenate([[0], np.cumsum(sizes)])
        self.sizes = segment_sizes(self.cuts, num_graphs=-(-graphs // shards), num_configs=configs)

    @property
    def table_size(self) -> int:
        """Entries of the table, with the one of padding."""
        return int(self._first[-1]) + 1

    def entries(self, part: int, rows: np.ndarray, segment: int | np.ndarray) -> np.ndarray:
        """Where a segment's summaries of some rows of a part are, int32."""
        return (self._first[part] + rows * len(self.cuts[part].pieces) + segment).astype(np.int32)

    def shard(self, step: int, number: int) -> SegmentBatch:
        """One shard of a step's batch."""
        chosen = self._programs.chosen(step)
        mine = np.array_split(np.arange(len(chosen)), self._programs.shards)[number]
        random = np.random.default_rng([self._programs.seed, 2, step])
        drawn = [int(random.integers(len(self.cuts[one.part].pieces))) for one in chosen]
        keep = self.how.keep if step < self.head_from else 1.0
        kept = random.random((len(chosen), self.most)) < keep
        g, c, j = self.sizes.num_graphs, self.configs, self.most
        where = Where(
            fresh=np.full((g + 1, c), self.table_size - 1, np.int32),
            fresh_share=np.zeros((g + 1, 2), np.float32),
            others=np.full((g + 1, c, j), self.table_size - 1, np.int32),
            others_share=np.zeros((g + 1, j, 2), np.float32),
            missing=np.zeros((g + 1, j), np.float32),
        )
        samples = []
        for place, i in enumerate(mine):
            part, rows, segment = chosen[i].part, chosen[i].rows, drawn[i]
            cut, k = self.cuts[part], len(chosen[i].rows)
            count = len(cut.pieces)
            samples.append(cut.sample(self.parts[part].sample(rows), segment))
            where.fresh[place, :k] = self.entries(part, rows, segment)
            where.others[place, :k, :count] = self.entries(part, rows[:, None], np.arange(count))
            other = np.arange(count) != segment
            where.fresh_share[place] = cut.shares[segment]
            where.others_share[place, :count] = cut.shares * (other & kept[i, :count])[:, None]
            where.missing[place, :count] = other
        if samples:
            return SegmentBatch(batch=collate(samples, self.normaliser, **asdict(self.sizes)), where=where)
        first = chosen[0]
        other = self.cuts[first.part].sample(self.parts[first.part].sample(first.rows), 0)
        batch = without_candidates(collate([other], self.normaliser, **asdict(self.sizes)))
        return SegmentBatch(batch=batch, where=where)


def segment_sizes(cuts: Sequence[Cut], *, num_graphs: int, num_configs: int) -> Sizes:
    """What a batch of segments is padded to."""
    return Sizes.of([p.graph for cut in cuts for p in cut.pieces], num_graphs=num_graphs, num_configs=num_configs)


def combined(fresh: jax.Array, history: History, where: Where) -> jax.Array:
    """The programs' summaries: (g + 1, c, w) of the segments and what is known of the others -> (g + 1, c, w).

    The fresh segment weighs 1 where all others are there, and J where none is: on average the sum is that of all.
    """
    half = fresh.shape[-1] // 2

    def add(carry: tuple[jax.Array, jax.Array], one: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        total, there = carry
        entry, share = one
        known = history.known[entry][..., None]
        stale = history.summary[entry] * (known * jnp.repeat(share, half, axis=-1)[:, None])
        return (total + stale, there + known * (share.sum(-1) > 0)[:, None, None]), None

    # One at a time, so that what is read from the table takes no more memory for many segments than for one.
    nothing = jnp.zeros_like(fresh), jnp.zeros((*fresh.shape[:2], 1), fresh.dtype)
    (rest, there), _ = jax.lax.scan(
        add, nothing, (jnp.moveaxis(where.others, -1, 0), where.others_share.swapaxes(0, 1))
    )
    weight = 1 + where.missing.sum(-1)[:, None, None] - there
    return rest + fresh * jnp.repeat(where.fresh_share, half, axis=-1)[:, None] * weight


def make_segment_step(
    model: nn.Module, loss: Loss, optimiser: optax.GradientTransformation, ema: float, mesh: Mesh
) -> Callable[[State, SegmentBatch], tuple[State, dict[str, jax.Array]]]:
    """The compiled step, as `step.make_step`, of a state with a `History`.

    Args:
      model: with `summary` and `score`, as split_sage.
      loss, optimiser, ema, mesh: as there.
    """
    summaries = make_apply(model, mesh, method="summary")

    def step(state: State, given: SegmentBatch) -> tuple[State, dict[str, jax.Array]]:
        batch = given.batch
        where, *truth = _of_all_shards((given.where, batch.rank, batch.delay, batch.candidate_mask))

        def value(variables: Variables) -> tuple[jax.Array, jax.Array]:
            fresh = _of_all_shards(summaries(variables, batch))
            scores = model.apply(variables, combined(fresh, state.history, where), method="score")
            return loss(scores, *truth), fresh

        (found, fresh), gradients = jax.value_and_grad(value, has_aux=True)(state.variables)
        after = apply_gradients(state, gradients, optimiser, ema)
        measured = {"loss": found, "gradient_norm": optax.tree.norm(gradients)}
        return replace(after, history=_written(state.history, where.fresh, fresh)), measured

    return jax.jit(step, donate_argnums=0, out_shardings=replicated(mesh))


def make_head_step(
    model: nn.Module, loss: Loss, optimiser: optax.GradientTransformation, ema: float, mesh: Mesh
) -> Callable[[State, SegmentBatch], tuple[State, dict[str, jax.Array]]]:
    """A step that trains the head on the table alone; everything else stays as it is."""

    def step(state: State, given: SegmentBatch) -> tuple[State, dict[str, jax.Array]]:
        batch = given.batch
        where, *truth = _of_all_shards((given.where, batch.rank, batch.delay, batch.candidate_mask))
        summary = combined(state.history.summary[where.fresh], state.history, where)

        def value(variables: Variables) -> jax.Array:
            return loss(model.apply(variables, summary, method="score"), *truth)

        found, gradients = jax.value_and_grad(value)(state.variables)
        after = apply_gradients(state, gradients, optimiser, ema)
        kept = {"variables": _only_head(state.variables, after.variables), "ema": _only_head(state.ema, after.ema)}
        return replace(after, **kept), {"loss": found, "gradient_norm": optax.tree.norm(gradients)}

    return jax.jit(step, donate_argnums=0, out_shardings=replicated(mesh))


def _of_all_shards(tree: Any) -> Any:
    """Arrays (D, g + 1, …) -> (D (g + 1), …)."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def _written(history: History, entries: jax.Array, fresh: jax.Array) -> History:
    summary = history.summary.at[entries].set(jax.lax.stop_gradient(fresh))
    known = history.known.at[entries].set(True)
    return History(summary=summary, known=known.at[-1].set(False))


def _only_head(before: Variables, after: Variables) -> Variables:
    return {"params": {**before["params"], "head": after["params"]["head"]}}


class SegmentScorer:
    """Summaries and scores of whole programs, a segment at a time; as `scoring.Scorer`.

    Args:
      model: with `summary` and `score`.
      normaliser: that it was trained with.
      mesh: the devices, each of which takes another segment.
      inputs: the cut, and how many configurations it sees together.
    """

    def __init__(self, model: nn.Module, normaliser: Normaliser, mesh: Mesh, inputs: Inputs) -> None:
        self.normaliser, self.mesh, self.inputs, self.configs = normaliser, mesh, inputs, inputs.configs
        self._summaries = jax.jit(make_apply(model, mesh, method="summary"), out_shardings=replicated(mesh))
        self._score = jax.jit(lambda variables, summary: model.apply(variables, summary, method="score"))

    def rank(self, variables: Variables, parts: Sequence[Part]) -> list[Ranked]:
        """Score all rows of some parts, in their order."""
        return [self._ranked(variables, part) for part in parts]

    def _ranked(self, variables: Variables, part: Part) -> Ranked:
        cut = Cut.of(part.program.graph, size=self.inputs.segment_size, method=self.inputs.segment_method)
        scores: np.ndarray = np.empty(len(part.rows), np.float32)
        for new, rows in in_lots(part, self.configs):
            total = 0.0
            for segment, summary in self.summaries(variables, part, cut, rows):
                total = total + summary * cut.share(segment, summary.shape[-1])
            scores[new] = np.asarray(self._score(variables, total))[: len(new)]
        return Ranked.of(part, scores)

    def summaries(
        self, variables: Variables, part: Part, cut: Cut, rows: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray]]:
        """(segment, (c, w)) of at most `configs` rows of a part, for all of its segments."""
        sizes = asdict(segment_sizes([cut], num_graphs=1, num_configs=self.configs))
        whole, count = part.sample(rows), len(cut.pieces)
        for at in range(0, count, self.mesh.size):
            here = [min(at + place, count - 1) for place in local_shards(self.mesh)]
            shards = [collate([cut.sample(whole, number)], self.normaliser, **sizes) for number in here]
            found = np.asarray(self._summaries(variables, spread(self.mesh, shards)))
            for place in range(min(self.mesh.size, count - at)):
                yield at + place, found[place, 0, : len(rows)]


def with_fresh_history(state: State, sampler: SegmentSampler, scorer: SegmentScorer) -> State:
    """The state before the first step of the head: parameters at their average, and a table of what they compute."""
    summary, known = np.array(state.history.summary), np.array(state.history.known)
    for number, (part, cut) in enumerate(zip(sampler.parts, sampler.cuts, strict=True)):
        for new, rows in in_lots(part, scorer.configs):
            for segment, found in scorer.summaries(state.ema, part, cut, rows):
                entries = sampler.entries(number, new, segment)
                summary[entries], known[entries] = found[: len(new)], True
    history = on_all(scorer.mesh, History(summary=summary, known=known))
    averaged = on_all(scorer.mesh, jax.tree.map(np.asarray, state.ema))
    return replace(state, variables=averaged, history=history)


class SegmentSteps:
    """The steps of a run by segments: the first of the whole model, the last `head_steps` of the head.

    Args:
      model, loss, optimiser, ema, mesh: as for `make_segment_step`.
      sampler: makes the batches.
      scorer: makes the table that the head is trained on.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimiser: optax.GradientTransformation,
        ema: float,
        mesh: Mesh,
        *,
        sampler: SegmentSampler,
        scorer: SegmentScorer,
    ) -> None:
        self._step = make_segment_step(model, loss, optimiser, ema, mesh)
        self._head = make_head_step(model, loss, optimiser, ema, mesh)
        self._sampler, self._scorer = sampler, scorer

    def __call__(self, number: int, state: State, batch: SegmentBatch) -> tuple[State, dict[str, jax.Array]]:
        """Take step `number`, from 0."""
        if number < self._sampler.head_from:
            return self._step(state, batch)
        if number == self._sampler.head_from:
            state = with_fresh_history(state, self._sampler, self._scorer)
        return self._head(state, batch)


def scorer_for(model: nn.Module, normaliser: Normaliser, mesh: Mesh, inputs: Inputs) -> Scorer | SegmentScorer:
    """What scores programs as a model was trained on them: whole, or a segment at a time."""
    if inputs.segment_size:
        return SegmentScorer(model, normaliser, mesh, inputs)
    return Scorer(model, normaliser, mesh, configs=inputs.configs)
