"""exla: run an unchanged JAX function under a hard memory cap.

f = exla.jit(fn, memory_limit="512MiB")
g = exla.compile(fn, args, target="tpu:v5e", memory_limit="8GiB")   # no TPU needed

The names below are imported when they are first used, so that `exla --help` starts without JAX, and `exla doctor`
where JAX is broken.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from exla.version import __version__

if TYPE_CHECKING:
    from exla.ahead import compile, load
    from exla.api import JitFunction, jit
    from exla.errors import (
        ExlaError,
        ExlaWarning,
        MeasureError,
        MemoryLimitError,
        OptionError,
        PlanError,
        ProgramError,
        ReplayMiss,
        RuleError,
    )
    from exla.options import Options
    from exla.planned import Compiled
    from exla.report.plan import Plan
    from exla.saved import save

__all__ = [
    "Compiled",
    "ExlaError",
    "ExlaWarning",
    "JitFunction",
    "MeasureError",
    "MemoryLimitError",
    "OptionError",
    "Options",
    "Plan",
    "PlanError",
    "ProgramError",
    "ReplayMiss",
    "RuleError",
    "__version__",
    "compile",
    "jit",
    "load",
    "save",
]

_ELSEWHERE = {
    "Compiled": "exla.planned",
    "JitFunction": "exla.api",
    "Options": "exla.options",
    "Plan": "exla.report.plan",
    "compile": "exla.ahead",
    "jit": "exla.api",
    "load": "exla.ahead",
    "save": "exla.saved",
}
"""Where a public name is; all others are errors, in exla.errors."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'exla' has no attribute {name!r}; its public names are {', '.join(__all__)}")
    found = getattr(importlib.import_module(_ELSEWHERE.get(name, "exla.errors")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
