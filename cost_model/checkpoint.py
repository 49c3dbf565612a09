"""A trained model as one file: weights, scaling of features, and where they come from.

An npz of plain arrays and one JSON text, so that reading it executes nothing:

    save("cpu.npz", Trained(model="split_sage", options={"hidden": 64}, variables=..., normaliser=..., card={...}))
    trained = load("cpu.npz")

`card` is the model card: data and its hash, held-out metrics, versions. A file of another version of the
features is refused, since its numbers would be read as something else. Runs that can be continued are another
matter, kept by orbax (`training/`).
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from flax import traverse_util

from exla.cost_model.graph import NODE_FEATURES, TILE_CONFIG_FEATURES
from exla.cost_model.inputs import Inputs
from exla.cost_model.models import MODELS
from exla.cost_model.normalise import Normaliser
from exla.errors import CheckpointError

FEATURE_VERSION = 1
"""Raised whenever the meaning of a feature, an opcode id or a configuration's number changes."""
STATISTICS = {"mean": NODE_FEATURES, "scale": NODE_FEATURES, "config_mean": TILE_CONFIG_FEATURES}
STATISTICS["config_scale"] = TILE_CONFIG_FEATURES


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A model and what it learned.

    Fields:
      model: name in `MODELS`.
      options: keyword arguments of the model.
      variables: flax variables, {"params": nested dicts of float arrays}.
      normaliser: how features are scaled.
      inputs: what is done to a program before the model sees it.
      card: the model card, JSON values only.
    """

    model: str
    options: Mapping[str, Any]
    variables: Mapping[str, Any] = field(repr=False)
    normaliser: Normaliser = field(repr=False)
    inputs: Inputs = field(default_factory=Inputs)
    card: Mapping[str, Any] = field(default_factory=dict)


def save(path: str | os.PathLike[str], trained: Trained) -> None:
    """Write `trained`; an existing file is replaced whole or not at all."""
    path = Path(path)
    flat = traverse_util.flatten_dict(dict(trained.variables), sep="/")
    arrays = {f"variables/{name}": np.asarray(value) for name, value in flat.items()}
    arrays |= {f"normaliser/{name}": getattr(trained.normaliser, name) for name in STATISTICS}
    about = {
        "feature_version": FEATURE_VERSION,
        "model": trained.model,
        "options": dict(trained.options),
        "inputs": asdict(trained.inputs),
        "card": dict(trained.card),
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "wb") as file:
            np.savez_compressed(file, about=np.array(json.dumps(about, sort_keys=True)), **arrays)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> Trained:
    """Read a trained model.

    Raises:
      CheckpointError: if the file is missing, torn or no such file, of another feature version, or of a model
        that this exla does not have.
    """
    arrays = _arrays(Path(path))
    about = _about(path, arrays)
    if about["model"] not in MODELS:
        raise CheckpointError(f"{path}: no cost model named {about['model']!r}; there are: {', '.join(MODELS)}")
    for name, width in STATISTICS.items():
        if (found := arrays.get(f"normaliser/{name}")) is None or found.shape != (width,):
            raise CheckpointError(f"{path}: normaliser/{name} is {_described(found)}, expected shape ({width},)")
    flat = {name.removeprefix("variables/"): value for name, value in arrays.items() if name.startswith("variables/")}
    for name, value in flat.items():
        if value.dtype.kind != "f" or not np.isfinite(value).all():
            raise CheckpointError(f"{path}: {name} is {_described(value)}, expected finite floating-point numbers")
    return Trained(
        model=about["model"],
        options=about["options"],
        variables=traverse_util.unflatten_dict(flat, sep="/"),
        normaliser=Normaliser(**{name: arrays[f"normaliser/{name}"] for name in STATISTICS}),
        inputs=Inputs(**about["inputs"]),
        card=about["card"],
    )


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        if path.is_file() and not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("it is not a zip of arrays, or its end is missing")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise CheckpointError(f"{path}: a folder; name the file of weights in it") from None
    except (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as e:
        raise CheckpointError(f"{path}: not a saved model, or damaged ({e}); train or copy it again") from None


def _about(path: str | os.PathLike[str], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    try:
        about = json.loads(str(arrays["about"][()]))
        version, kinds = about["feature_version"], {"model": str, "options": dict, "inputs": dict, "card": dict}
        if not all(isinstance(about[name], kind) for name, kind in kinds.items()):
            raise ValueError(f"one of {', '.join(kinds)} is of the wrong kind")
        if unknown := set(about["inputs"]) - {f.name for f in fields(Inputs)}:
            raise ValueError(f"inputs that this exla does not know: {', '.join(sorted(unknown))}")
    except KeyError as error:
        raise CheckpointError(f"{path}: not a saved model: it has no {error}") from None
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: not a saved model ({error})") from None
    if version != FEATURE_VERSION:
        raise CheckpointError(
            f"{path}: made for version {version} of the features, this exla computes version {FEATURE_VERSION}; "
            f"train it again, or use the exla that made it"
        )
    return about


def _described(value: np.ndarray | None) -> str:
    return "missing" if value is None else f"of shape {value.shape} and dtype {value.dtype}"
