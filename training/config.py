"""What a training run is: a small typed TOML file, and changes to it.

    [model]
    name = "split_sage"
    options = { hidden = 32, blocks = 3 }

    [data]
    files = ["npz/layout/xla/random/train"]
    train_rows = 1000

    config = read_config("layout.toml", ["optimiser.steps=500", "model.options.dtype=bfloat16"])
    config.optimiser.steps              # 500

A section is a frozen dataclass below, and its fields are the keys; what is left out has the default written there. A
key that does not exist, or a value of the wrong kind, is an `OptionError` that lists what there is. Nothing is
evaluated: a change is a TOML value, or, where it is none, text.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

from exla.cost_model.losses import LOSSES
from exla.cost_model.models import MODELS
from exla.cost_model.transforms import METHODS
from exla.errors import OptionError

HELD_OUT = ("folds", "leave-one-out", "rows", "files", "nothing")
"""What is kept from training, and evaluated on: see `HeldOutConfig`."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model.

    Fields:
      name: in `MODELS`.
      options: keyword arguments of the model, e.g. dtype = "bfloat16", remat = true for split_sage.
    """

    name: str = "split_sage"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is trained on.

    Fields:
      files: npz files, and folders of them.
      folder, collection, split: a split of TpuGraphs' standard folder, e.g. "layout:xla:random", "train"; more files.
      keep: of configurations that occur several times, "minimum" (their fastest measurement) or "drop".
      train_rows: how many random configurations of each file are trained on; 0 = all.
      held_out_rows: how many of each held-out file are evaluated on; 0 = all, or a fifth where rows are held out.
      graphs: programs in a batch, over all devices.
      configs: configurations of each of them.
      configs_scored: how many configurations are scored together once it is trained, where the model compares them;
        0 = as many as in training. More tell better where one stands, and take memory.
      prune_hops: keep only nodes that are at most so many edges from a configurable one.
      compress_paths: drop nodes that only pass a value on.
      seed: of what is chosen above, and of folds; not of the run.
      cache: where unpacked configurations are kept; "" = the user's cache folder.
    """

    files: tuple[str, ...] = ()
    folder: str = ""
    collection: str = ""
    split: str = "train"
    keep: str = "minimum"
    train_rows: int = 0
    held_out_rows: int = 0
    graphs: int = 4
    configs: int = 64
    configs_scored: int = 0
    prune_hops: int | None = None
    compress_paths: bool = False
    seed: int = 0
    cache: str = ""


@dataclass(frozen=True, kw_only=True)
class HeldOutConfig:
    """What is not trained on.

    Fields:
      by: "folds": programs, in `folds` parts of which number `fold` is held out; "leave-one-out": program number
        `fold`; "rows": configurations of every program, for data of few programs; "files": the programs of `files`
        and `split`; "nothing".
      folds, fold: see above; fold counts from 0.
      files: npz files, and folders of them.
      split: a split of `data.folder` and `data.collection`, e.g. "valid".
    """

    by: str = "folds"
    folds: int = 5
    fold: int = 0
    files: tuple[str, ...] = ()
    split: str = ""


@dataclass(frozen=True, kw_only=True)
class SegmentsConfig:
    """Whether programs are trained on by segments (`training/segments.py`).

    Fields:
      size: most nodes of a segment; 0 = whole programs.
      method: "topological" or "metis".
      keep: how likely each segment that is not computed is counted in, as it was the last time.
      head_steps: how many of the last steps train the head alone.
    """

    size: int = 0
    method: str = "topological"
    keep: float = 0.5
    head_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """How it is trained: AdamW, linear warm-up and then cosine decay to 0.

    Fields:
      loss: in `LOSSES`.
      steps: batches in all.
      learning_rate: the largest.
      warm_up: share of the steps in which the learning rate rises.
      weight_decay: of matrices; biases, scales and single numbers have none.
      clip_norm: length that a gradient is cut to; 0 = never.
      ema: how much of the averaged parameters stays after a step; it is the average that is evaluated and exported.
      trust: of a model with a `prior`, how far the exported head goes from the prior, where it began, to where training
        took it; 1 = all the way. A run that is done is exported anew with another trust.
    """

    loss: str = "pairwise_hinge"
    steps: int = 1000
    learning_rate: float = 2e-3
    warm_up: float = 0.05
    weight_decay: float = 1e-2
    clip_norm: float = 1.0
    ema: float = 0.995
    trust: float = 1.0


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where a run is kept.

    Fields:
      folder: of checkpoints, logs, plots and the exported weights; a run that is there is continued.
      seed: of the first parameters and of the batches.
      checkpoint_every, evaluate_every: steps; 0 = only at the end.
      keep_checkpoints: how many are kept, the latest.
    """

    folder: str = "runs/model"
    seed: int = 0
    checkpoint_every: int = 200
    evaluate_every: int = 200
    keep_checkpoints: int = 2


@dataclass(frozen=True, kw_only=True)
class Config:
    """A training run; each field is a section of the file."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    held_out: HeldOutConfig = field(default_factory=HeldOutConfig)
    segments: SegmentsConfig = field(default_factory=SegmentsConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def as_json(self) -> dict[str, Any]:
        """JSON values: section -> key -> value."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def trained_by(self) -> dict[str, Any]:
        """ "section.key" -> value, of all that decides which numbers come out."""
        return {
            f"{section}.{key}": value
            for section, values in self.as_json().items()
            for key, value in values.items()
            if f"{section}.{key}" not in _OF_NO_CONSEQUENCE
        }


_OF_NO_CONSEQUENCE = {
    *("data.files", "data.folder", "data.collection", "data.split", "held_out.files", "held_out.split"),
    *("data.cache", "optimiser.trust", "run.folder"),
    *("run.checkpoint_every", "run.evaluate_every", "run.keep_checkpoints"),
}
"""What may differ when a run is continued; which data they are is told by their hash."""


def shipped_configs() -> dict[str, Path]:
    """Name -> path, of the configs that come with exla."""
    folder = Path(str(resources.files("exla.training"))) / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_config(path: str | PathLike[str], changes: Iterable[str] = ()) -> Config:
    """Read a config.

    Args:
      path: a TOML file, or the name of one that comes with exla.
      changes: "section.key=value", the value as in TOML; text needs no quotes.

    Raises:
      OptionError: if there is no such file, key or value.
    """
    shipped = shipped_configs()
    path = Path(path) if Path(path).is_file() else shipped.get(str(path), Path(path))
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror}; configs that come with exla: {', '.join(shipped)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: not a TOML file: {error}") from None
    changes = list(changes)
    for change in changes:
        _change(values, change)
    return make_config(values, f"{path} with --set" if changes else str(path))


def make_config(values: Mapping[str, Any], source: str = "config") -> Config:
    """A config of nested dicts.

    Args:
      values: section -> key -> value.
      source: what errors call it.

    Raises:
      OptionError: for a section, key or value that there is not.
    """
    config = _made(Config, values, source, "")
    _check(config, source)
    return config


def _change(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    names = key.strip().split(".")
    if not equals or len(names) < 2 or not all(names):
        raise OptionError(f"--set {change}: write section.key=value, e.g. optimiser.steps=500")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    at = values
    for name in names[:-1]:
        at = at.setdefault(name, {})
        if not isinstance(at, dict):
            raise OptionError(f"--set {change}: {name} is a value, and no section")
    at[names[-1]] = value


def _made(kind: Any, values: Any, source: str, section: str) -> Any:
    if not isinstance(values, Mapping):
        raise OptionError(f"{source}: {section} is {values!r}, expected a section [{section}]")
    hints = typing.get_type_hints(kind)
    found = {}
    for key, value in values.items():
        name = f"{section}.{key}" if section else key
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            what = f"key in [{section}]" if section else "section"
            raise OptionError(f"{source}: there is no {what} called {key!r}{hint}; there are: {', '.join(hints)}")
        nested = dataclasses.is_dataclass(hints[key])
        found[key] = _made(hints[key], value, source, name) if nested else _value(hints[key], value, source, name)
    return kind(**found)


def _value(hint: Any, value: Any, source: str, name: str) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for kind in kinds:
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if kind in (int, float, str, bool) and type(value) is kind:
            return value
        origin = typing.get_origin(kind)
        if origin is dict and isinstance(value, dict):
            return value
        if origin is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
    names = " or ".join(_KINDS[typing.get_origin(kind) or kind] for kind in kinds if kind is not type(None))
    raise OptionError(f"{source}: {name} is {value!r}, expected {names}")


_KINDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "a table",
    tuple: "a list of texts",
}


WIDTHS = frozenset(("hidden", "opcode_channels", "value_channels"))
"""Options of models that are numbers of channels."""


def _check(config: Config, source: str) -> None:
    choices = {
        "model.name": (config.model.name, tuple(MODELS)),
        "optimiser.loss": (config.optimiser.loss, tuple(LOSSES)),
        "held_out.by": (config.held_out.by, HELD_OUT),
        "data.keep": (config.data.keep, ("minimum", "drop")),
        "segments.method": (config.segments.method, tuple(METHODS)),
    }
    for name, (value, valid) in choices.items():
        if value not in valid:
            raise OptionError(f"{source}: {name} is {value!r}; there are: {', '.join(valid)}")
    options = _options(MODELS.get(config.model.name))
    for key, value in config.model.options.items():
        if key not in options:
            raise OptionError(f"{source}: {config.model.name} has no option {key!r}; there are: {', '.join(options)}")
        if type(value) is not type(options[key]):
            kind = _KINDS[type(options[key])]
            raise OptionError(f"{source}: model.options.{key} is {value!r}, expected {kind}")
    data, held_out, optimiser, run = config.data, config.held_out, config.optimiser, config.run
    segments = config.segments
    if segments.size and not hasattr(MODELS.get(config.model.name), "summary"):
        raise OptionError(f"{source}: {config.model.name} cannot be trained by segments; take split_sage")
    if segments.size and config.model.options.get("prior", -1) >= 0:
        raise OptionError(f"{source}: a prior is of a whole program; leave segments.size or model.options.prior out")
    if optimiser.trust != 1 and config.model.options.get("prior", -1) < 0:
        raise OptionError(
            f"{source}: optimiser.trust is of a model with a prior; set model.options.prior, or leave it out"
        )
    bounds = {
        "data.train_rows": (data.train_rows, 0, None),
        "data.held_out_rows": (data.held_out_rows, 0, None),
        "data.graphs": (data.graphs, 1, None),
        "data.configs": (data.configs, 2, None),
        "data.configs_scored": (data.configs_scored, 0, None),
        "data.prune_hops": (data.prune_hops or 0, 0, None),
        "held_out.folds": (held_out.folds, 2, None),
        "held_out.fold": (held_out.fold, 0, held_out.folds - 1 if held_out.by == "folds" else None),
        "segments.size": (segments.size, 0, None),
        "segments.keep": (segments.keep, 0, 1),
        "segments.head_steps": (segments.head_steps, 0, optimiser.steps),
        "optimiser.steps": (optimiser.steps, 1, None),
        "optimiser.learning_rate": (optimiser.learning_rate, 0, None),
        "optimiser.warm_up": (optimiser.warm_up, 0, 1),
        "optimiser.weight_decay": (optimiser.weight_decay, 0, None),
        "optimiser.clip_norm": (optimiser.clip_norm, 0, None),
        "optimiser.ema": (optimiser.ema, 0, 1),
        "optimiser.trust": (optimiser.trust, 0, 1),
        "data.seed": (data.seed, 0, None),
        "run.seed": (run.seed, 0, None),
        **{f"model.options.{k}": (config.model.options[k], 1, None) for k in WIDTHS & config.model.options.keys()},
        "run.checkpoint_every": (run.checkpoint_every, 0, None),
        "run.evaluate_every": (run.evaluate_every, 0, None),
        "run.keep_checkpoints": (run.keep_checkpoints, 1, None),
    }
    for name, (number, low, high) in bounds.items():
        if not number >= low or (high is not None and number > high):
            raise OptionError(f"{source}: {name} is {number}, expected {low} " + (f"to {high}" if high else "or more"))


def _options(model: type) -> dict[str, Any]:
    """Option -> default, of a flax module."""
    return {f.name: f.default for f in dataclasses.fields(model) if f.name not in ("parent", "name")}
