"""Runs a function in a process of its own and measures how far that process grew.

The compiler's figure for a program's memory is a promise; what a user pays for is the process. Linux keeps the largest
resident size of a process in `VmHWM`, which never falls, so each measurement needs a fresh process:

>>> isolate.call("benchmarks.isolate:noise_floor")["growth_bytes"] < 8 * 2**20
True

starts `python -m benchmarks.isolate benchmarks.isolate:noise_floor '{}'`, which prints one line of JSON on stdout. Only
a name and JSON cross the boundary, so a child can be started again by hand from the line that is printed on a failure.
`call_each` makes several such calls, each in a process of its own, and imports their module once: the process that
imported it has no devices and no threads yet, and is forked for each.

In the child, `growth(run)` takes the baseline as late as possible: the runtime is warm, the arguments are resident and
the program is compiled (a compilation takes 100 MiB and more, which are not the program's). Memory that the compiler
has freed is given back to the system first, since the program would otherwise reuse it unseen; and the high-water mark
is lowered to the present size (write 5 to /proc/self/clear_refs). Where that write is not permitted the mark may still
be the compiler's, so that growth is an upper bound; `resettable` says which.

What this does not do: it does not see memory on an accelerator, and it works on Linux only.
"""

import importlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from exla.search.child import growth

MIB = 2**20
DEFAULT_TIMEOUT_S = 600
_ROOT = Path(__file__).resolve().parent.parent


class ChildError(RuntimeError):
    """A child process failed, was killed or ran out of time; the message has the command and the end of its stderr."""


def call(function: str, timeout_s: float = DEFAULT_TIMEOUT_S, **arguments: Any) -> dict[str, Any]:
    """Calls `function` in a fresh Python process.

    Args:
      function: "package.module:name" of a function of JSON values that returns a JSON object.
      timeout_s: wall-clock limit in seconds.
      **arguments: its keyword arguments.

    Returns:
      what the function returned.

    Raises:
      ChildError: the process exited with an error, was killed, or ran out of time.
    """
    return json.loads(_said(function, arguments, timeout_s)[-1])


def call_each(
    function: str, calls: Sequence[Mapping[str, Any]], timeout_s: float = DEFAULT_TIMEOUT_S
) -> list[dict[str, Any]]:
    """Calls `function` once for each of `calls`, its keyword arguments, one after another, as `call` does."""
    return [json.loads(line) for line in _said(function, list(calls), timeout_s)[-len(calls) :]]


def _said(function: str, arguments: Any, timeout_s: float) -> list[str]:
    """The lines that a process printed which was given a function and what to call it with."""
    command = [sys.executable, "-m", "benchmarks.isolate", function, json.dumps(arguments)]
    shown = shlex.join(["python", *command[1:]])
    try:
        child = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"no answer within {timeout_s:.0f} s: {shown}") from error
    lines = child.stdout.splitlines()
    if child.returncode != 0 or not lines:
        raise ChildError(f"exit status {child.returncode}: {shown}\n{child.stderr[-2000:]}")
    return lines


def noise_floor() -> dict[str, Any]:
    """Growth of a process that runs a program that needs next to nothing: what the measurement itself costs."""
    import jax
    import jax.numpy as jnp

    argument = jnp.ones((256, 256))
    compiled = jax.jit(lambda x: jnp.sin(x) @ x).lower(argument).compile()
    _, grown = growth(lambda: compiled(argument))
    return {"growth_bytes": grown.growth_bytes, "resettable": grown.resettable}


def _main(function: str, arguments: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> int:
    """Print what the function returns; of several calls, until one fails."""
    module, name = function.split(":")
    called = getattr(importlib.import_module(module), name)
    if isinstance(arguments, Mapping):
        print(json.dumps(called(**arguments)))
        return 0
    for each in arguments:
        child = os.fork()
        if child == 0:
            print(json.dumps(called(**each)), flush=True)
            os._exit(0)  # nothing that the parent imported is to end twice
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0:
            print(f"{function} failed with status {status} on {json.dumps(each)}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], json.loads(sys.argv[2])))
