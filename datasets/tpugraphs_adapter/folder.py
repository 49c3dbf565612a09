"""The standard folder of TpuGraphs, and the ids of its files.

    data = TpuGraphs("~/data/tpugraphs")
    data.collections()                                   # ("layout:nlp:default", ..., "tile:xla")
    for path in data.files("layout:xla:random", "train"):
        file = read(path)                                # configurations stay on disk
    data.read("layout:xla:random:resnet50.4x4.fp16")

The folder is `npz_all/npz/{layout/{xla,nlp}/{random,default},tile/xla}/{train,valid,test}/<name>.npz`; a root may be
any of its first levels. An id is the collection and the file's name, as in Kaggle submissions.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from exla.datasets.tpugraphs_adapter.files import Layout, Tile, read
from exla.errors import Problem, TpuGraphsError

COLLECTIONS = ("layout:nlp:default", "layout:nlp:random", "layout:xla:default", "layout:xla:random", "tile:xla")
SPLITS = ("train", "valid", "test")


class TpuGraphs:
    """The files of a data set, by collection and split; none is opened before it is asked for.

    Args:
      root: the folder that holds npz_all, npz, or layout and tile.

    Raises:
      TpuGraphsError: if it holds none of them.
    """

    def __init__(self, root: str | PathLike[str]) -> None:
        given = Path(root).expanduser()
        for folder in (given / "npz_all" / "npz", given / "npz", given):
            if (folder / "layout").is_dir() or (folder / "tile").is_dir():
                self.root = folder
                return
        raise _error(
            given,
            "npz_all/npz, npz, or the folders layout and tile",
            "none of them" if given.is_dir() else "no folder",
            "Unpack the archives of TpuGraphs there, or name the folder where they are.",
        )

    def collections(self) -> tuple[str, ...]:
        """Those that are there."""
        return tuple(name for name in COLLECTIONS if self._folder(name).is_dir())

    def splits(self, collection: str) -> tuple[str, ...]:
        """Those of a collection that are there: train, valid, test."""
        return tuple(split for split in SPLITS if (self._folder(collection) / split).is_dir())

    def files(self, collection: str, split: str) -> list[Path]:
        """The files of a split, by name.

        Raises:
          TpuGraphsError: if there is no such collection or split.
        """
        if split not in self.splits(collection):
            found = f"{split!r}, of the splits {', '.join(self.splits(collection)) or 'none'}"
            raise _error(self._folder(collection), "a split that is there", found, "Download it, or name another.")
        return sorted((self._folder(collection) / split).glob("*.npz"))

    def ids(self, collection: str, split: str) -> list[str]:
        """The ids of a split, in the order of `files`."""
        return [f"{collection}:{path.stem}" for path in self.files(collection, split)]

    def path(self, id: str, split: str | None = None) -> Path:
        """Where the file of an id is.

        Args:
          id: such as "tile:xla:resnet50_1".
          split: where to look; None = in all.

        Raises:
          TpuGraphsError: if it is nowhere, or in several splits and none is named.
        """
        collection, name = parse_id(id)
        splits = self.splits(collection) if split is None else (split,)
        paths = [p for s in splits if (p := self._folder(collection) / s / f"{name}.npz").is_file()]
        if len(paths) != 1:
            found = (
                f"{name} in {', '.join(p.parent.name for p in paths) or 'none'} of {', '.join(splits) or 'no split'}"
            )
            raise _error(self._folder(collection), "the file in one split", found, "Name the split, or another id.")
        return paths[0]

    def read(self, id: str, split: str | None = None) -> Layout | Tile:
        """Open the file of an id.

        Raises:
          TpuGraphsError: if it is not there, or not sound.
        """
        return read(self.path(id, split))

    def _folder(self, collection: str) -> Path:
        if collection not in COLLECTIONS:
            raise _error(self.root, f"one of {', '.join(COLLECTIONS)}", repr(collection), "Name a collection.")
        return self.root.joinpath(*collection.split(":"))


def parse_id(id: str) -> tuple[str, str]:
    """An id as collection and name.

    Raises:
      TpuGraphsError: if it is none.
    """
    for collection in COLLECTIONS:
        name = id.removeprefix(f"{collection}:")
        if name != id and name and not set(name) & set("/\\:,"):
            return collection, name
    raise _error(id, "a collection, a colon and a file's name", repr(id), f"Collections: {', '.join(COLLECTIONS)}.")


def _error(path: str | PathLike[str], expected: str, found: str, next_step: str) -> TpuGraphsError:
    return TpuGraphsError(path, [Problem(array="folder", expected=expected, found=found, next_step=next_step)])
