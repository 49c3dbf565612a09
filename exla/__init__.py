"""exla: run an unchanged JAX function under a hard memory cap.

f = exla.jit(fn, memory_limit="512MiB")
g = exla.compile(fn, args, target="tpu:v5e", memory_limit="8GiB")   # no TPU needed
"""

from exla.api import JitFunction, compile, jit, load
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
from exla.version import __version__

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
