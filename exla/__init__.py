"""exla: run an unchanged JAX function under a hard memory cap.

f = exla.jit(fn, memory_limit="512MiB")
"""

from exla.api import JitFunction, jit
from exla.errors import (
    ExlaError,
    ExlaWarning,
    MemoryLimitError,
    OptionError,
    ProgramError,
    ReplayMiss,
    RuleError,
)
from exla.options import Options
from exla.report.plan import Plan
from exla.version import __version__

__all__ = [
    "ExlaError",
    "ExlaWarning",
    "JitFunction",
    "MemoryLimitError",
    "OptionError",
    "Options",
    "Plan",
    "ProgramError",
    "ReplayMiss",
    "RuleError",
    "__version__",
    "jit",
]
