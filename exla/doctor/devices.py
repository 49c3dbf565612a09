"""Which devices and compilers work, each tried in a process of its own: a broken plugin may crash, or wait for ever.

The default device is tried under the user's environment, as JAX would find it. The compilers are tried as
`exla.compile(..., target=...)` uses them without a device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from exla.doctor.finding import NOTE, OK, PROBLEM, Finding

TIMEOUT_S = 120
COMPILERS = ("tpu:v5e", "gpu:h200")
"""One target of each compiler."""

_DEVICE = """
import jax, json
kinds = [f"{d.device_kind} ({d.platform})" for d in jax.devices()]
assert float(jax.jit(lambda x: x + 1)(1.0)) == 2
print(json.dumps({"backend": jax.default_backend(), "kinds": kinds, "x64": bool(jax.config.jax_enable_x64)}))
"""
_COMPILER = """
import jax, json, exla, sys
x = jax.ShapeDtypeStruct((512, 512), "float32")
plan = exla.compile(lambda x: x @ x, [x], target=sys.argv[1], search="off", records="off").plan
print(json.dumps({"bytes": plan.compiled_bytes}))
"""


def default_device() -> Sequence[Finding]:
    """The device that programs run on where nobody says otherwise; that it computes."""
    found, why = attempt(_DEVICE, environment=os.environ)
    if found is None:
        step = "set JAX_PLATFORMS=cpu where there is no other device, or mend the plugin that the message names"
        return (Finding(name="default device", status=PROBLEM, found=f"JAX does not start: {why}", next_step=step),)
    kinds = {kind: found["kinds"].count(kind) for kind in found["kinds"]}
    listed = ", ".join(f"{count} x {kind}" if count > 1 else kind for kind, count in kinds.items())
    bits = "64-bit values are on" if found["x64"] else "64-bit values are off, as JAX has it (JAX_ENABLE_X64)"
    return (Finding(name="default device", status=OK, found=listed), Finding(name="x64", status=OK, found=bits))


def compilers() -> Sequence[Finding]:
    """The compilers of TPUs and GPUs; that each compiles a small program."""
    from exla.targets.accelerator import Accelerator
    from exla.targets.base import TARGETS

    described = [t for t in map(TARGETS.get, COMPILERS) if isinstance(t, Accelerator)]
    with ThreadPoolExecutor() as pool:
        return [*pool.map(lambda target: _compiler(target.name, target.install()), described)]


def _compiler(target: str, install: str | None) -> Finding:
    name = f"compiler of {target}"
    if install is not None:
        return Finding(name=name, status=NOTE, found="not installed", next_step=f"pip install {install}")
    # The options are exla's own here, and the compiler is to be reached as it is without a device.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EXLA_")} | {"JAX_PLATFORMS": "cpu"}
    found, why = attempt(_COMPILER, target, environment=environment)
    if found is None:
        step = 'reinstall it, in the version that fits the installed jax: pip install --upgrade "exla[compilers]"'
        return Finding(name=name, status=PROBLEM, found=f"installed, and does not work: {why}", next_step=step)
    return Finding(name=name, status=OK, found="works")


def attempt(
    code: str, *arguments: str, environment: Mapping[str, str], timeout_s: float = TIMEOUT_S
) -> tuple[Any, str]:
    """Run code in a fresh process.

    Args:
      code: Python that prints one JSON line last.
      *arguments: its sys.argv[1:].
      environment: its variables.
      timeout_s: after so many seconds it is ended.

    Returns:
      (what it printed, "") or (None, why it did not).
    """
    path = os.pathsep.join(p for p in sys.path if p)
    try:
        child = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**environment, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer in {timeout_s:g} s"
    if child.returncode == 0:
        return json.loads(child.stdout.strip().splitlines()[-1]), ""
    if child.returncode < 0:
        return None, f"the process died of signal {-child.returncode}"
    said = [line for line in child.stderr.strip().splitlines() if line.strip() and not line.startswith(("-", " "))]
    errors = [line for line in said if "Error" in line.partition(":")[0]]
    return None, (errors or said or [f"exit code {child.returncode}"])[-1][:500]
