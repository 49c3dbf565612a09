"""Learning from the user's own programs: what `exla tune` measured moves the head of the target's weights.

    learned = learn("cpu", space, [(decisions, seconds), ...])
    learned.kept, learned.before, learned.after

Only the head is moved, which is linear in what the rest of a model makes of a candidate, so that the best change has a
closed form: ridge regression of the logarithm of the times, within each program, on what the old head leaves over. How
much may change is decided by leaving out one program at a time; where no change is better on the programs that are left
out, or there are fewer than `FEWEST` of them, the weights stay as they are. What was measured is kept beside the user's
records, in TpuGraphs' layout format; so is what was learned, which is looked for before the weights that exla comes
with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from exla.cost_model.candidates import own_folder, ranker_for
from exla.cost_model.checkpoint import Trained, save
from exla.cost_model.graph import Graph
from exla.cost_model.metrics import kendall_tau
from exla.cost_model.ranker import Ranker
from exla.cost_model.split_configs import describe
from exla.datasets.tpugraphs_adapter import SplitParts, read, write_layout
from exla.errors import TpuGraphsError
from exla.ir.fingerprint import fingerprint
from exla.passes.decisions import Decision, to_json
from exla.search.ranker import file_name, find_ranker
from exla.search.space import Space

FEWEST = 4
"""Programs, and candidates of each, below which nothing is learned."""
MOST = 64
"""Programs that are learned from: the latest."""
PENALTIES = (1e2, 1e1, 1e0, 1e-1, 1e-2, 1e-3)
"""What a change of the head costs, by the least of which that pays; the largest first."""


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What came of it.

    Attributes:
      programs: how many were learned from.
      kept: whether the weights were changed.
      before, after: Kendall's tau on programs that were left out, with the old weights and the new; NaN below `FEWEST`.
    """

    programs: int
    kept: bool
    before: float = math.nan
    after: float = math.nan

    def __str__(self) -> str:
        if math.isnan(self.before):
            return f"learned nothing yet: {self.programs} of at least {FEWEST} programs were measured"
        verb = "moved" if self.kept else "left as they were"
        return (
            f"weights {verb}: Kendall's tau {self.before:.3f} before, {self.after:.3f} after, each of {self.programs} "
            "programs ranked by what was learned from the others"
        )


@dataclass(frozen=True, kw_only=True)
class _Program:
    """What a model's head sees of a program: (c, f) summaries and (c,) logarithms of times, both centred."""

    summary: np.ndarray
    times: np.ndarray


def learn(target: str, space: Space, measured: Sequence[tuple[Sequence[Decision], float]]) -> Learned:
    """Keep what was measured of a program, and learn from all that was kept.

    Args:
      target: whose weights.
      space: of the program.
      measured: decisions, and seconds of one run; each candidate once.

    Returns:
      What came of it. Nothing where there are no weights for the target.

    Raises:
      OSError: if the folder cannot be written.
    """
    keep(target, space, measured)
    return learn_from_kept(target)


def learn_from_kept(target: str) -> Learned:
    """Learn anew from all that was kept, beginning with the weights that exla comes with.

    Where that is no better on programs that are left out, what was learned before is removed.
    """
    folder = own_folder(target)
    ensemble = ranker_for(target, own=False)
    paths = sorted((folder / "programs").glob("*.npz"), key=lambda p: p.stat().st_mtime)[-MOST:]
    if ensemble is None:
        return Learned(programs=len(paths), kept=False)
    programs = [p for path in paths if (p := _read(path)) is not None]
    if len(programs) < FEWEST:
        return Learned(programs=len(programs), kept=False)
    befores, afters, moved = [], [], []
    for ranker in ensemble.rankers:
        before, after, trained = _moved(ranker, programs)
        befores.append(before)
        afters.append(after)
        moved.append(trained)
    before, after = float(np.mean(befores)), float(np.mean(afters))
    kept = after > before
    for number, trained in enumerate(moved):
        path = folder / f"{file_name(target)}.{number}.npz"
        if kept:
            save(path, trained)
        else:
            path.unlink(missing_ok=True)
    find_ranker.cache_clear()
    return Learned(programs=len(programs), kept=kept, before=before, after=after)


def keep(target: str, space: Space, measured: Sequence[tuple[Sequence[Decision], float]]) -> None:
    """Keep what was measured of a program; arguments and errors are those of `learn`."""
    if len(measured) < FEWEST:
        return
    folder = own_folder(target) / "programs"
    folder.mkdir(parents=True, exist_ok=True)
    candidates = [space.build(list(decisions)) if decisions else space.root for decisions, _ in measured]
    described = describe(space.starts)
    configs = described.configs(candidates, space.option_sets)
    write_layout(
        folder / f"{fingerprint(space.program)[:16]}-{space.goal.bytes}.npz",
        graph=described.graph,
        configs=configs,
        runtime=np.array([max(round(seconds * 1e9), 1) for _, seconds in measured], np.int64),
        is_default=np.array([not decisions for decisions, _ in measured]),
        split=SplitParts(
            peak_bytes=np.array([c.peak.bytes for c in candidates], np.int64),
            statuses=("ok",) * len(candidates),
            decisions=tuple([to_json(d) for d in decisions] for decisions, _ in measured),
            meta={"label": "wall_clock", "source": "exla tune"},
        ),
        test=False,
    )


def _read(path: Path) -> tuple[Graph, np.ndarray, np.ndarray] | None:
    """A program that was kept; None where its file is damaged."""
    try:
        file = read(path, test=False)
    except (TpuGraphsError, OSError):
        return None
    return file.graph, file.configs(), file.runtime.astype(np.float64)


def _moved(ranker: Ranker, programs: Sequence[tuple[Graph, np.ndarray, np.ndarray]]) -> tuple[float, float, Trained]:
    """Tau of programs that were left out, before and after, and the model with its head moved by all of them."""
    trained = ranker.trained
    head = trained.variables["params"]["head"]
    seen = []
    for graph, configs, runtime in programs:
        summary: np.ndarray = ranker.summaries(graph, configs).astype(np.float64)
        times = np.log(runtime)
        scale = max(float(times.std()), 1e-9)
        seen.append(_Program(summary=summary - summary.mean(axis=0), times=(times - times.mean()) / scale))
    old = np.asarray(head["kernel"], np.float64)[:, 0]
    befores = _tau(old, seen)
    taus = {}
    for penalty in PENALTIES:
        found = []
        for number, one in enumerate(seen):
            others = seen[:number] + seen[number + 1 :]
            found.append(_tau(_fit(old, others, penalty), [one]))
        taus[penalty] = float(np.mean(found))
    penalty = max(PENALTIES, key=lambda p: (taus[p], p))
    kernel: np.ndarray = _fit(old, seen, penalty).astype(np.float32)[:, None]
    params: dict[str, Any] = {**trained.variables["params"], "head": {**head, "kernel": kernel}}
    card: Mapping[str, Any] = {**trained.card, "learned_online": {"programs": len(programs), "penalty": penalty}}
    moved = replace(trained, variables={**trained.variables, "params": params}, card=card)
    return befores, taus[penalty], moved


def _fit(old: np.ndarray, programs: Sequence[_Program], penalty: float) -> np.ndarray:
    """The head that fits centred times best, at a price for being another one than the old."""
    rows = np.concatenate([p.summary for p in programs])
    times = np.concatenate([p.times for p in programs])
    scores = rows @ old
    scale = max(float(scores @ times) / max(float(scores @ scores), 1e-12), 1e-6)  # an order has no scale
    spread = float(np.trace(rows.T @ rows)) / rows.shape[1]
    change = np.linalg.solve(
        rows.T @ rows + penalty * max(spread, 1e-12) * np.eye(rows.shape[1]), rows.T @ (times - scale * scores)
    )
    return scale * old + change


def _tau(head: np.ndarray, programs: Sequence[_Program]) -> float:
    # Times are logarithms; tau wants them positive, and looks at their order only.
    found = [kendall_tau(p.summary @ head, np.exp(p.times)) for p in programs]
    known = [t for t in found if not math.isnan(t)]
    return float(np.mean(known)) if known else 0.0
