"""Variables of the environment: exla's own, and those of JAX and XLA that change what is planned or run."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path

from exla.doctor.finding import NOTE, OK, PROBLEM, Finding

CHANGES = {
    "XLA_FLAGS": "changes how every program is compiled; records and plans made under other flags are not used",
    "LIBTPU_INIT_ARGS": "changes how TPU programs are compiled; records made under others are not used",
    "JAX_PLATFORMS": "JAX uses these devices alone, and the first by default",
    "JAX_ENABLE_X64": "whether JAX has 64-bit values",
    "JAX_COMPILER_ENABLE_REMAT_PASS": "XLA computes values again by itself",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "programs are compiled quickly, and run slowly",
    "JAX_DEBUG_NANS": "programs are run again operation by operation where a NaN appears, outside of any cap",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "whether the GPU's memory is taken at once",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "the share of the GPU's memory that JAX takes; newer releases read "
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_CLIENT_MEM_FRACTION": "the share of the GPU's memory that JAX takes, and exla with it",
}
"""Variable -> what it does, where it is not exla's."""


def exla_variables() -> Sequence[Finding]:
    """Every EXLA_ variable: whether there is such an option, and such a value of it."""
    from exla.errors import CheckpointError, ExlaError, OptionError
    from exla.options import variable_errors
    from exla.passes.replace import check_names

    wrong: dict[str, ExlaError] = dict(variable_errors())
    rules = os.environ.get("EXLA_RULES", "")
    try:
        check_names([name.strip() for name in rules.split(",") if name.strip()])
    except OptionError as error:
        wrong["EXLA_RULES"] = error
    weights = os.environ.get("EXLA_WEIGHTS")
    if weights and (why := _weights_error(Path(weights))):
        wrong["EXLA_WEIGHTS"] = CheckpointError(why)
    found = []
    for variable in sorted(v for v in os.environ if v.startswith("EXLA_")):
        if variable in wrong:
            step = f"correct it, or unset {variable}"
            found.append(Finding(name=variable, status=PROBLEM, found=str(wrong[variable]), next_step=step))
        else:
            found.append(Finding(name=variable, status=OK, found=os.environ[variable]))
    return found or (Finding(name="EXLA_ variables", status=OK, found="none is set"),)


def _weights_error(folder: Path) -> str:
    """Why weights in a folder are not used, or not all of them; "" where they are."""
    from exla.errors import CheckpointError
    from exla.targets.base import TARGETS

    load = importlib.import_module("exla.cost_model.checkpoint").load
    paths = sorted(folder.glob("*.npz"))
    names = {name.replace(":", "-") for name in TARGETS}
    for path in paths:
        unknown = set(path.name.split(".")[0].split("+")) - names
        if unknown:
            return f"{path}: no target is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(names))}"
        try:
            load(path)
        except CheckpointError as error:
            return str(error)
    return "" if paths else f"{folder}: no folder with weights (*.npz) in it"


def other_variables() -> Sequence[Finding]:
    """What is set that changes JAX and XLA."""
    found = [
        Finding(name=name, status=NOTE, found=f"{os.environ[name]}: {what}")
        for name, what in CHANGES.items()
        if os.environ.get(name)
    ]
    if os.environ.get("JAX_DISABLE_JIT", "0").lower() not in ("", "0", "false"):
        step = "unset JAX_DISABLE_JIT"
        text = "nothing is compiled, so that exla.jit caps nothing"
        found.append(Finding(name="JAX_DISABLE_JIT", status=PROBLEM, found=text, next_step=step))
    return found
