"""The CPU target: XLA:CPU, its memory figure made honest.

XLA:CPU hands some operations to libraries that allocate while they run; the compiler's figure knows nothing of that
(an N-body step in one YNNPACK fusion reported 0 bytes and took 2 GB). Two answers, both used:

* programs that exla has rewritten are compiled with YNNPACK fusions off; where matrix products dominate, the
  library's products alone are tried first, because they are faster;
* what the libraries that remain may allocate is bounded (`exla.targets.cpu_scratch`) and counted, in programs that
  are used untouched too.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jaxlib
from jax.sharding import Sharding, SingleDeviceSharding

from exla.targets.base import TARGETS, CompiledBytes
from exla.targets.cpu_scratch import scratch_bytes
from exla.targets.machine import Machine, Work

CPU_INFO = Path("/proc/cpuinfo")
CGROUP_FILE = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

KEPT_BYTES = 32 << 20
"""What glibc gives back to the system at once, and asks for anew, is larger than this (`M_MMAP_THRESHOLD`, at most)."""
SMALL_PAGES_BYTES_PER_S = 1.7e9
"""How fast Linux hands out memory in pages of 4 KiB (1.55 to 1.9 on an EPYC, of 64 to 256 MiB), and in huge ones."""
HUGE_PAGES_BYTES_PER_S = 8e9

SURE_GAIN = 2.0
"""As `Machine.sure_gain`, on two cores. Of 613 instances of the six campaigns on an EPYC and a Xeon
(`benchmarks/campaigns`) 120 have a candidate that is predicted to be so much faster than the plain program, as far as
that is believed (`exla.search.faster`), and none of them was slower; of 21 more from 1.8 on one was, by 2 %
(`python -m benchmarks.sure_gain`). Each core more may help the plain program and not a chunk loop: where there are
more, as many times as fast is asked for."""
YNN_OPTION = "xla_cpu_experimental_ynn_fusion_type"
NO_YNN = {YNN_OPTION: ""}
MANY_PRODUCTS = 0.1
"""Share of the time from which on the library's matrix products pay."""
YNN_PRODUCTS = {YNN_OPTION: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
MANY_EXPONENTIALS = 0.1
"""Share of the time from which on vectors of 512 bits pay: with them the zoo's programs above it take 0.32 to 1.07
times as long (geometric mean 0.89), all others 0.79 to 1.13 (Intel Xeon, Sapphire Rapids)."""
WIDE_VECTORS = {"xla_cpu_prefer_vector_width": "512"}
"""XLA:CPU uses 256 bits by default, also where the processor has 512."""


class Cpu:
    """XLA:CPU on this machine."""

    name = "cpu"
    platform = "cpu"

    def attached(self) -> bool:
        return True

    def has(self, device: Any) -> bool:
        return device.platform == "cpu"

    def sharding(self) -> Sharding | None:
        """None where the default device is a CPU, else this machine's first."""
        return None if jax.default_backend() == "cpu" else SingleDeviceSharding(jax.devices("cpu")[0])

    def usable_bytes(self) -> int:
        """The least of the machine's available memory and what the control group leaves, in bytes."""
        return min([available_bytes(), *cgroup_bytes()])

    def machine(self) -> Machine:
        """A chunk's working set is an eighth of the last-level cache, between 1 and 8 MiB."""
        caches, threads = _cache_bytes(), _threads()
        cache_bytes = min(max(max(caches.values(), default=16 << 20) // 8, 1 << 20), 8 << 20)
        return Machine(
            cache_bytes=cache_bytes,
            near_bytes=threads * caches.get(2, 1 << 20),
            threads=threads,
            sure_gain=max(SURE_GAIN, threads),
            kept_bytes=KEPT_BYTES,
            first_touch_bytes_per_s=HUGE_PAGES_BYTES_PER_S if has_huge_pages() else SMALL_PAGES_BYTES_PER_S,
        )

    def fingerprint(self) -> Mapping[str, str]:
        return {
            "target": self.name,
            "device": f"{platform.machine()} {_cpu_model()} x{os.cpu_count()}",
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
        }

    def option_names(self) -> Collection[str]:
        return (YNN_OPTION, *WIDE_VECTORS)

    def option_sets(self, work: Work, limit_bytes: int) -> Sequence[Mapping[str, str]]:
        sets = (YNN_PRODUCTS, NO_YNN) if work.products > MANY_PRODUCTS else (NO_YNN,)
        is_wide = work.exponentials > MANY_EXPONENTIALS and has_wide_vectors()
        return tuple({**names, **WIDE_VECTORS} for names in sets) if is_wide else sets

    def called_bytes(self, libraries: tuple[int, int], options: Mapping[str, str]) -> int:
        eigen, ynnpack = libraries
        return eigen if options.get(YNN_OPTION) == NO_YNN[YNN_OPTION] else ynnpack

    def finish(self, lowered: Any, compiler_options: Mapping[str, Any]) -> Any:
        return lowered.compile(compiler_options=dict(compiler_options) or None)

    def needed_bytes(self, error: Exception) -> int | None:
        return None

    def compiled_bytes(self, compiled: Any) -> CompiledBytes:
        scratch = scratch_bytes(compiled.as_text(), threads=_threads())
        return CompiledBytes.of(compiled.memory_analysis(), unaccounted=scratch)


TARGETS.register("cpu")(Cpu())


def _threads() -> int:
    return len(os.sched_getaffinity(0))


@cache
def has_wide_vectors() -> bool:
    """Whether this processor computes on 512 bits at once (AVX-512)."""
    try:
        return re.search(r"^flags\s*:.*\bavx512f\b", CPU_INFO.read_text(), re.MULTILINE) is not None
    except OSError:
        return False


@cache
def has_huge_pages() -> bool:
    """Whether Linux hands out huge pages without being asked for them."""
    try:
        return "[always]" in HUGE_PAGES.read_text()
    except OSError:
        return False


def available_bytes() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cgroup_bytes() -> list[int]:
    """What each control group around this process still allows, version 2 and 1."""
    found = []
    try:
        groups = CGROUP_FILE.read_text().splitlines()
    except OSError:
        return []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit, used = CGROUP_ROOT, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root, limit, used = CGROUP_ROOT / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        place = root / path.lstrip("/")
        for group in (place, *place.parents):
            if not group.is_relative_to(root):
                break
            try:
                text = (group / limit).read_text().strip()
                if text != "max":
                    cached = _statistic(group / "memory.stat", "inactive_file")
                    found.append(max(int(text) - int((group / used).read_text()) + cached, 0))
            except (OSError, ValueError):
                continue
    return found


def _statistic(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


@cache
def _cache_bytes() -> dict[int, int]:
    """Level -> bytes of the caches that hold data, as far as the system says."""
    found = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind, level, size = ((index / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:], 1)
            found[int(level)] = int(size.rstrip("KMG")) * scale
    return found


@cache
def _cpu_model() -> str:
    try:
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
