"""TPU targets: the attached one, and each generation by name, compiled for by libtpu with or without a TPU."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from jax.experimental import topologies

from exla.targets.accelerator import Accelerator, Compiler
from exla.targets.base import TARGETS
from exla.targets.facts import Facts, sheets


def _installed(facts: Facts) -> bool:
    return importlib.util.find_spec("libtpu") is not None


def topology(facts: Facts) -> Any:
    """The smallest topology of a generation, as JAX describes it to a compiler without the device.

    Args:
      facts: its data sheet.
    """
    # Without these, libtpu looks for a TPU machine's metadata server and waits for it.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    return topologies.get_topology_desc(facts.compiler["topology"], platform="tpu")


COMPILER = Compiler(
    distribution="libtpu",
    install=lambda facts: '"exla[compilers]"',
    installed=_installed,
    device=lambda facts: topology(facts).devices[0],
    options={},
    told=lambda limit_bytes: {"xla_tpu_max_hbm_size_mib": str(max(-(-limit_bytes // (1 << 20)), 1))},
)
"""libtpu refuses what does not fit, by the sum that exla's count is too. Before that it orders, and computes again,
what it can to fit; and it gives up within a second where it would take a minute to compile what is too large."""

_SHEETS = tuple(sheets("tpu"))
for _sheet in _SHEETS:
    TARGETS.register(_sheet.name)(Accelerator(_sheet.name, "tpu", COMPILER, _sheet, _SHEETS))
TARGETS.register("tpu")(Accelerator("tpu", "tpu", COMPILER, None, _SHEETS))
