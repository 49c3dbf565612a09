"""Files that are known to be damaged, and who says so. Nothing is dropped by being in this table.

A file can be sound as a zip and hold measurements that cannot be of its program. No list of those comes with the data
set. What is here was published by participants of the Kaggle competition who looked; exla has not checked it, the same
source says that there are others, and what to leave out is for the user to say:

    bad = {entry.name for entry in damaged("layout:xla:random")}
"""

from __future__ import annotations

from dataclasses import dataclass

from exla.datasets.tpugraphs_adapter.folder import COLLECTIONS

_SECOND_PLACE = "github.com/Obs01ete/kaggle_latenciaga, README (second place, Kaggle 2023)"


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """One file that somebody found to be damaged.

    Attributes:
      name: of the file, without .npz.
      collections: where; the ones that the source says, or all that may be meant.
      reason: what is wrong, as the source has it.
      source: who says so.
    """

    name: str
    collections: tuple[str, ...]
    reason: str
    source: str


_XLA = ("layout:xla:random", "layout:xla:default")

DAMAGED = (
    Damaged(
        name="unet_3d.4x4.bf16",
        collections=_XLA,
        reason="runtimes 'badly corrupted'; the source left out every layout file with 'unet' in its name",
        source=_SECOND_PLACE,
    ),
    Damaged(
        name="mlperf_bert_batch_24_2x2",
        collections=("layout:xla:default",),
        reason="runtimes corrupted; left out of validation, whose result it made unstable",
        source=_SECOND_PLACE,
    ),
    Damaged(
        name="magenta_dynamic",
        collections=_XLA,
        reason="runtimes by row jump so that they 'can in no way' be of one graph; the source does not name the search",
        source=_SECOND_PLACE,
    ),
)
"""All that is known."""


def damaged(collection: str | None = None) -> tuple[Damaged, ...]:
    """The entries of a collection such as "layout:xla:random"; None = all.

    Raises:
      ValueError: if there is no such collection.
    """
    if collection is not None and collection not in COLLECTIONS:
        raise ValueError(f"there is no collection {collection!r}; there are: {', '.join(COLLECTIONS)}")
    return tuple(entry for entry in DAMAGED if collection is None or collection in entry.collections)
