"""How a plan is written to disk: JSON that `exla.load` replays.

Also what is left behind where a candidate gave wrong values: a file with which anybody can see it happen again.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from exla.options import Options
from exla.passes.decisions import Decision, to_json
from exla.search.choice import Call, describe
from exla.targets.base import Target
from exla.version import __version__

FORMAT = 1
KEPT = ("target", "memory_limit", "numerics", "search", "rules", "records")
"""The options that a plan keeps."""


def write_plan(
    path: Path,
    *,
    call: Call,
    target: Target,
    options: Options,
    limit_bytes: int,
    decisions: Sequence[Decision],
    **found: Any,
) -> None:
    """Write a plan, whole or not at all.

    Args:
      path: the file; its folder exists.
      call: what was planned.
      target: what for.
      options: the user's.
      limit_bytes: the limit that held.
      decisions: what was decided.
      **found: what else is worth knowing, as JSON.
    """
    kept = {k: v for k, v in asdict(options).items() if k in KEPT}
    row = {
        "exla_plan": FORMAT,
        "exla_version": __version__,
        "origin": describe(call, target),
        "weak_types": weak_types(call),
        "options": {**kept, "target": target.name, "memory_limit": limit_bytes},
        "decisions": [to_json(d) for d in decisions],
        **found,
    }
    write_whole(path, f"{json.dumps(row, indent=1)}\n".encode())


def weak_types(call: Call) -> list[int]:
    """Which inputs of a call's program are weakly typed, as Python's numbers are: its description does not say."""
    return [k for k, v in enumerate(call.program.invars) if getattr(v.aval, "weak_type", False)]


def write_whole(path: Path, data: bytes) -> None:
    """Write a file in a folder that exists, whole or not at all."""
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=path.name, delete=False) as file:
        file.write(data)
    os.replace(file.name, path)
