"""A plan as plain data: what `--json` prints, and what anything but a person should read.

    json.dumps(plan_data(f.plan(x)))

Every field of `Plan` is there but the compiled program and the jaxpr; a decision is as `exla.passes.decisions.to_json`
writes it, so that `from_json` reads it back; bytes and seconds are numbers.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from exla.errors import MemoryLimitError
from exla.passes.decisions import Decision, to_json
from exla.report.plan import Plan
from exla.targets.base import CompiledBytes

PROGRAMS = ("compiled", "program")
"""Fields of a plan that are no data."""


def plan_data(plan: Plan) -> dict[str, Any]:
    """A plan as what JSON can hold.

    Args:
      plan: any plan.
    """
    return {f.name: _plain(getattr(plan, f.name)) for f in fields(plan) if f.name not in PROGRAMS}


def error_data(error: BaseException) -> dict[str, Any]:
    """An error as what JSON can hold: its kind and text, and the numbers of a refusal.

    Args:
      error: any error.
    """
    found: dict[str, Any] = {"kind": type(error).__name__, "message": str(error)}
    if isinstance(error, MemoryLimitError):
        found["limit_bytes"] = error.limit_bytes
        found["smallest_peak_bytes"] = error.smallest_peak_bytes
        found["holders"] = [asdict(h) for h in error.holders]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, typing.get_args(Decision)):
        return to_json(value)
    if isinstance(value, CompiledBytes):
        return {**asdict(value), "total": value.total}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return value
