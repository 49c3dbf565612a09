"""Results as they are kept: one JSON line per measurement, in a file named after the day and the versions.

Each line carries what is needed to repeat it (device, versions, command), so that a line can be quoted alone.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

import exla

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, kw_only=True)
class Results:
    """A file of results that is being written.

    Attributes:
      path: the file; lines are added to its end.
      environment: the fields that every line starts with.
    """

    path: Path
    environment: dict[str, Any]

    def append(self, **fields: Any) -> None:
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            line = json.dumps({**self.environment, **fields})
            for here in (RESULTS.parent.parent, tempfile.gettempdir()):  # source lines and locks, wherever this is
                line = line.replace(f"{here}{os.sep}", "")
            file.write(line + "\n")


def open_results(suite: str) -> Results:
    """Results of `benchmarks.<suite>`, run now in this environment with this process's command line."""
    now = datetime.datetime.now(datetime.UTC)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Results(
        path=RESULTS / f"{suite}-{now:%Y-%m-%d}-py{python}-jax{jax.__version__}.jsonl",
        environment={
            "suite": suite,
            "date": now.isoformat(timespec="seconds"),
            "device": jax.devices()[0].device_kind,
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "jax": jax.__version__,
            "jaxlib": importlib.metadata.version("jaxlib"),
            "exla": exla.__version__,
            "command": shlex.join(["python", "-m", f"benchmarks.{suite}", *map(_anywhere, sys.argv[1:])]),
        },
    )


def _anywhere(word: str) -> str:
    """A word of a command; of a path of this machine the last part."""
    return Path(word).name if Path(word).is_absolute() else word


def console() -> Console:
    """A terminal, or a page wide enough for the tables when the output goes to a file."""
    return Console() if sys.stdout.isatty() else Console(width=180)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
