"""Variables of the environment: exla's own, and those of JAX and XLA that change what is planned or run."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence

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
    if weights := os.environ.get("EXLA_WEIGHTS"):
        try:
            _check_weights(weights)
        except CheckpointError as error:
            wrong["EXLA_WEIGHTS"] = error
    found = []
    for variable in sorted(v for v in os.environ if v.startswith("EXLA_")):
        if variable in wrong:
            step = f"correct it, or unset {variable}"
            found.append(Finding(name=variable, status=PROBLEM, found=str(wrong[variable]), next_step=step))
        else:
            found.append(Finding(name=variable, status=OK, found=os.environ[variable]))
    return found or (Finding(name="EXLA_ variables", status=OK, found="none is set"),)


def _check_weights(folder: str) -> None:
    """Raise a `CheckpointError` where weights in a folder are not used, or not all of them."""
    from exla.errors import CheckpointError
    from exla.search.ranker import file_name, targets_of
    from exla.targets.base import TARGETS

    names = sorted(map(file_name, TARGETS))
    for path in importlib.import_module("exla.cost_model.candidates").weights_in(folder):
        unknown = sorted(targets_of(path).difference(names))
        if unknown:
            raise CheckpointError(f"{path}: no target is called {', '.join(unknown)}; there are {', '.join(names)}")
        importlib.import_module("exla.cost_model.checkpoint").load(path)


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
