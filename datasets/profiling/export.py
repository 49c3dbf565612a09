"""From a campaign's records to the split collection: what cost models are trained on.

    export(Folder.open(Path("runs/cpu")), Path("npz/split"))

writes `npz/split/<label>/<device>/<train|valid|test>/<instance>.npz`, TpuGraphs' layout keys and those of
`SplitParts`, and a card beside the splits: counts, noise floor, versions, what was left out and why. Instances are
divided by family; of a candidate the last time counts. Each instance is traced anew, its candidates
replayed, and read as `exla.cost_model.split_configs` says; a record whose decisions no longer apply is left out and
counted. Wall-clock times are whole nanoseconds, estimates of a
compiler whole cycles; they are in folders of their own and never in one file.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np

from exla.cost_model.split_configs import describe
from exla.datasets.profiling.campaign import Instance
from exla.datasets.profiling.prepare import Settled, prepare
from exla.datasets.profiling.run import Folder, folder_name
from exla.datasets.tpugraphs_adapter import SplitParts, write_layout
from exla.errors import ReplayMiss
from exla.passes.decisions import from_json
from exla.search.record import Record
from exla.search.space import Candidate, Space
from exla.version import __version__

ROUNDS = 20
"""Rounds from which on a time's even and odd rounds say how noisy it is."""
FEWEST = 4
"""Candidates of an instance that have a time, below which there is nothing to rank."""


@dataclass(kw_only=True)
class Exported:
    """What an export wrote.

    Attributes:
      folder: of the label and device.
      instances: split -> how many.
      families: split -> their names.
      records: split -> candidates with a time.
      statuses: status -> how many records.
      left_out: reason -> how many records.
      twins: records whose code was that of an earlier one, so that its time is that one's.
      noise: of candidates that were timed in many rounds, how far even rounds are from odd ones, as a part.
      label, device: what the times are.
    """

    folder: Path
    label: str
    device: str
    instances: Counter[str] = field(default_factory=Counter)
    families: dict[str, set[str]] = field(default_factory=dict)
    records: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    twins: int = 0
    noise: list[float] = field(default_factory=list)

    def card(self) -> dict[str, Any]:
        """The data card, JSON values."""
        ordered = sorted(self.noise)
        return {
            "label": self.label,
            "device": self.device,
            "instances": dict(self.instances),
            "families": {name: sorted(found) for name, found in sorted(self.families.items())},
            "candidates_with_a_time": dict(self.records),
            "records_by_status": dict(sorted(self.statuses.items())),
            "twins": self.twins,
            "left_out": dict(sorted(self.left_out.items())),
            "with_a_noise": len(ordered),
            "noise_floor": {
                "median": _rounded(median(ordered)) if ordered else None,
                "nine_in_ten_below": _rounded(ordered[int(0.9 * len(ordered))]) if ordered else None,
            },
            "versions": {"exla": __version__, "jax": jax.__version__, "numpy": np.__version__},
            "command": "exla profile export",
        }


def export(folders: Sequence[Folder], out: Path, *, say: Callable[[str], None] = print) -> Exported:
    """Write the split collection of campaigns for one target.

    Args:
      folders: of the campaigns; all for one target.
      out: the root, as "npz/split".
      say: told a line for each instance that is left out.

    Returns:
      What was written.

    Raises:
      OSError: if it cannot be written.
    """
    campaign = folders[0].campaign
    label = campaign.label
    made: Exported | None = None
    for folder in folders:
        known = {i.name: i for i in folder.campaign.instances()}
        for name, records, bad in folder.records():
            device = next((r.about.get("device") for r in records if r.about.get("device")), campaign.target)
            if made is None:
                made = Exported(folder=out / label / folder_name(campaign.target, str(device)), label=label,
                                device=str(device))  # fmt: skip
            made.left_out["no record"] += bad
            instance = known.get(name)
            if instance is None:
                made.left_out["of an instance that the campaign does not name"] += len(records)
                continue
            try:
                _export_instance(made, instance, folder, records)
            except Exception as error:  # one program that fails must not cost the others
                made.left_out["instance failed"] += len(records)
                say(f"{name}: left out: {type(error).__name__}: {error}")
    if made is None:
        made = Exported(folder=out / label / folder_name(campaign.target), label=label, device=campaign.target)
    made.folder.mkdir(parents=True, exist_ok=True)
    partial = made.folder / f".card.json.{os.getpid()}"
    partial.write_text(json.dumps(made.card(), indent=1) + "\n")
    os.replace(partial, made.folder / "card.json")
    return made


def times(records: Sequence[Record], label: str) -> tuple[list[tuple[Record, int]], dict[str, int]]:
    """The records that have a time, with it, and why others are left out.

    Returns:
      (record, nanoseconds or cycles), and reason -> how many.
    """
    kept, left = list[tuple[Record, int]](), Counter[str]()
    for record in records:
        if label == "wall_clock":
            value = None if record.run_s is None else record.run_s * 1e9
        else:
            value = record.extra.get("estimated_cycles")
            if record.extra.get("unknown_trips"):
                left["a loop of unknown length"] += 1
                continue
            if record.extra.get("unestimated"):
                left["work that the compiler does not estimate"] += 1
                continue
        if record.status != "ok" or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 1:
            left[record.status if record.status != "ok" else "no time"] += 1
            continue
        kept.append((record, round(value)))
    return kept, dict(left)


def _halves(record: Record) -> Iterator[tuple[float, float]]:
    """A record's times in even and in odd rounds, where it has both and enough of them."""
    halves, rounds = record.extra.get("halves"), record.extra.get("rounds")
    if isinstance(halves, list) and len(halves) == 2 and isinstance(rounds, int) and rounds >= ROUNDS:
        even, odd = halves
        if isinstance(even, float) and isinstance(odd, float) and even > 0 and odd > 0:
            yield even, odd


def _final(kept: Sequence[tuple[Record, int]]) -> list[tuple[Record, int]]:
    """Each candidate once, in the order in which they were begun, with its last time."""
    found: dict[str, tuple[Record, int]] = {}
    for record, value in kept:
        found[record.candidate] = (record, value)
    return list(found.values())


def made_again(
    instance: Instance, target: str, kept: Sequence[tuple[Record, int]]
) -> tuple[Space, list[Candidate], list[tuple[Record, int]]]:
    """The candidates of records, each once.

    Args:
      instance: that the records are of.
      target: of the campaign.
      kept: as `times` gives them.

    Returns:
      The space of the instance at the size and under the limit that the records settle, the candidates, and of each its
      record with the last time. What does not apply any more, and what is of another size, is left out.
    """
    settled = Settled.by(record for record, _ in kept)
    space = prepare(instance, target, settled).space
    candidates, rows = list[Candidate](), list[tuple[Record, int]]()
    for record, value in _final([(r, v) for r, v in kept if Settled.by([r]) == settled]):
        try:
            candidate = space.build([from_json(d) for d in record.decisions]) if record.decisions else space.root
        except (ReplayMiss, ValueError):
            continue
        candidates.append(candidate)
        rows.append((record, value))
    return space, candidates, rows


def _export_instance(made: Exported, instance: Instance, folder: Folder, records: Sequence[Record]) -> None:
    made.statuses.update(r.status for r in records)
    made.twins += sum("twin" in r.extra for r in records)
    made.noise += [abs(even / odd - 1) for r in records for even, odd in _halves(r)]
    kept, left = times(records, made.label)
    made.left_out.update(left)
    if len(kept) < FEWEST:
        made.left_out["of an instance with too few times"] += len(kept)
        return
    space, candidates, rows = made_again(instance, folder.campaign.target, kept)
    if misses := len(_final(kept)) - len(rows):
        made.left_out["replay miss"] += misses
    if len(rows) < FEWEST:
        made.left_out["of an instance with too few times"] += len(rows)
        return
    described = describe(space.starts, instance.name)
    path = made.folder / instance.split / f"{instance.name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    limit = next((r.limit_bytes for r, _ in rows if r.limit_bytes is not None), 0)
    write_layout(
        path,
        graph=described.graph,
        configs=described.configs(candidates, space.option_sets),
        runtime=np.array([v for _, v in rows], np.int64),
        is_default=np.array([r.is_default for r, _ in rows]),
        split=SplitParts(
            peak_bytes=np.array([r.compiled_bytes or 0 for r, _ in rows], np.int64),
            statuses=tuple("ok" if obeys(r) else "over_limit" for r, _ in rows),
            decisions=tuple(list(r.decisions) for r, _ in rows),
            meta=_meta(instance, made, limit, rows),
        ),
        test=False,
    )
    made.instances[instance.split] += 1
    made.families.setdefault(instance.split, set()).add(instance.family)
    made.records[instance.split] += len(rows)


def _meta(instance: Instance, made: Exported, limit: int, rows: Sequence[tuple[Record, int]]) -> Mapping[str, Any]:
    record = rows[0][0]
    return {
        **{"instance": instance.name, "family": instance.family, "program": instance.program, "label": made.label},
        **{"device": made.device, "limit_bytes": limit, "size": record.extra.get("size"), "key": dict(record.key)},
        "versions": {"exla": __version__, "jax": jax.__version__},
    }


def obeys(record: Record) -> bool:
    """Whether the compiled candidate is within its limit, as far as the record says."""
    return record.compiled_bytes is None or record.limit_bytes is None or record.compiled_bytes <= record.limit_bytes


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")
