"""GPU targets: the attached one, and cards by name, compiled for by JAX's CUDA plugin with or without a GPU.

Without the card, the compiler is given a description of it, made from the data sheet, and does not autotune: it can
time nothing. What it then chooses may differ from what it chooses on the card, which is why a loaded plan is compiled
and counted again there.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from jax.experimental import topologies

from exla import _compat
from exla.targets.accelerator import Accelerator, Compiler
from exla.targets.base import TARGETS
from exla.targets.facts import Facts, sheets

OLDEST = {13: 7.5, 12: 5.0}
"""CUDA release -> the smallest compute capability that it compiles for (its release notes)."""


def _release(facts: Facts) -> int | None:
    """The newest CUDA release whose plugin is installed and that compiles for a card."""
    capability = float(facts.compiler["compute_capability"])
    fitting = [release for release, oldest in OLDEST.items() if capability >= oldest]
    return next((release for release in fitting if _compat.version_of(f"jax-cuda{release}-pjrt")), None)


def _installed(facts: Facts) -> bool:
    return _release(facts) is not None


def _install(facts: Facts) -> str:
    return '"exla[compilers]"' if float(facts.compiler["compute_capability"]) >= OLDEST[13] else '"jax[cuda12]"'


def describe(facts: Facts) -> str:
    """The compiler's description of a card, as the text of a `GpuTargetConfigProto`.

    Args:
      facts: its data sheet. `compiler` holds what only a CUDA compiler asks for.
    """
    card = facts.compiler
    major, minor = str(card["compute_capability"]).split(".")
    info = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 << 10,
        "shared_memory_per_core": card["shared_memory_per_multiprocessor"],
        "shared_memory_per_block_optin": card["shared_memory_per_block"],
        "threads_per_core_limit": card["threads_per_multiprocessor"],
        "core_count": card["multiprocessors"],
        "fpus_per_core": card["float32_units_per_multiprocessor"],
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "thread_dim_limit_x": 1024,
        "thread_dim_limit_y": 1024,
        "thread_dim_limit_z": 64,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
        "memory_bandwidth": int(facts.bytes_per_s),
        "l2_cache_size": facts.cache_bytes,
        "clock_rate_ghz": card["clock_ghz"],
        "device_memory_size": facts.memory_bytes,
        "pcie_bandwidth": int(facts.host_bytes_per_s),
        "device_address_bits": 64,
    }
    text = {"device_vendor": "NVIDIA Corporation", "name": facts.kinds[0], **VERSIONS}
    numbers = " ".join(f"{k}: {v}" for k, v in info.items())
    words = " ".join(f'{k}: "{v}"' for k, v in text.items())
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
    dnn = "dnn_version_info { " + " ".join(f"{k}: {v}" for k, v in DNN.items()) + " }"
    return (
        f"gpu_device_info {{ {numbers} {capability} ecc_enabled: true {words} }}\n"
        f'platform_name: "CUDA"\n{dnn}\ndevice_description_str: "{facts.kinds[0]}"\n'
    )


DNN = {"major": 9, "minor": 10, "patch": 0}
"""cuDNN, which is not loaded; its version decides what the compiler may hand to it."""
VERSIONS = {
    "driver_version": "13.0.0",
    "runtime_version": "12.8.0",
    "compile_time_toolkit_version": "12.8.0",
    "dnn_version": "9.10.0",
}


_NO_TILES = "Couldn't find output tile sizes"


def _device(facts: Facts) -> Any:
    if not _compat.is_plugin_loaded("cuda"):
        # The plugin refuses to load where cuDNN is missing; a compiler alone does without it.
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
        importlib.import_module(f"jax_plugins.xla_cuda{_release(facts)}").initialize()
    described = topologies.get_topology_desc(platform="cuda", target_config=describe(facts), topology="1x1x1")
    return described.devices[0]


def _without(said: str) -> Mapping[str, str]:
    """Where nothing is tuned, XLA finds no tiles for Triton in some products, as `einsum("iax,jay->ijxy", x, x)`."""
    return {"xla_gpu_enable_triton_gemm": "False"} if _NO_TILES in said else {}


COMPILER = Compiler(
    distribution="jax-cuda13-pjrt",
    install=_install,
    installed=_installed,
    device=_device,
    options={"xla_gpu_autotune_level": "0"},
    without=_without,
)

_SHEETS = tuple(sheets("gpu"))
for _sheet in _SHEETS:
    TARGETS.register(_sheet.name)(Accelerator(_sheet.name, "cuda", COMPILER, _sheet, _SHEETS))
TARGETS.register("gpu")(Accelerator("gpu", "cuda", COMPILER, None, _SHEETS))
