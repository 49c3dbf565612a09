"""What GPU and TPU targets share: a data sheet, a device that may be attached or not, and the compiler's word.

Both compilers assign every buffer themselves, so that arguments + outputs + temporaries + code - aliased is what a
program takes, and no library allocates beside it. Where no such device is attached, the compiler alone is loaded and
given the topology (TPU) or the description (GPU) of one; a program compiled so can be counted, read and saved, not run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jaxlib
from jax.sharding import Sharding, SingleDeviceSharding

from exla import _compat
from exla.errors import ExlaError
from exla.targets.base import CompiledBytes
from exla.targets.facts import Facts, sheet_of
from exla.targets.machine import Machine, Work

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_AMOUNT = r"(\d+(?:\.\d+)?)([KMGT]?)"
_UNKNOWN_OPTION = "No such compile option"
_AUTOTUNER = "/autotun"
"""In the trace of an error of XLA:GPU's autotuner, which allocates memory on the card to time its choices."""
_NEEDED = (
    re.compile(rf"total memory required[^(]*\({_AMOUNT}\)"),
    re.compile(rf"[Uu]sed {_AMOUNT}i?B? of "),
    re.compile(rf"[Aa]llocat\w* {_AMOUNT}i?B?(?:ytes)?\b"),
)


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """How the compiler of one platform is reached on a machine without the device.

    Attributes:
      distribution: the name of the package that brings it.
      install: what to `pip install` for a data sheet.
      installed: whether it is, for a data sheet.
      device: the device that it compiles for, of a data sheet.
      options: the options that it needs without a device.
      told: a limit in bytes -> the options that tell it to keep within that; a compiler that does not know them is not
        told.
      without: an error of the compiler -> the options that do without what failed; none where nothing is known of it.
    """

    distribution: str
    install: Callable[[Facts], str]
    installed: Callable[[Facts], bool]
    device: Callable[[Facts], Any]
    options: Mapping[str, str]
    told: Callable[[int], Mapping[str, str]] = lambda limit_bytes: {}
    without: Callable[[str], Mapping[str, str]] = lambda said: {}


class Accelerator:
    """One kind of GPU or TPU.

    Args:
      name: the target's name.
      platform: JAX's name of its platform.
      compiler: how its compiler is reached where no such device is attached.
      facts: its data sheet; None for whichever is attached.
      sheets: the sheets by which an attached device is known.
    """

    def __init__(
        self, name: str, platform: str, compiler: Compiler, facts: Facts | None, sheets: Sequence[Facts]
    ) -> None:
        self.name = name
        self.platform = platform
        self.compiler = compiler
        self._named = facts
        self._sheets = tuple(sheets)

    @property
    def facts(self) -> Facts:
        """The data sheet: the one it is named after, or that of the device that is attached.

        A device without one is taken for the smallest there is, with the memory that it says it has.
        """
        if self._named is not None:
            return self._named
        device = self.device()
        sheet = sheet_of(device.device_kind, self._sheets)
        if sheet is not None:
            return sheet
        smallest = min(self._sheets, key=lambda s: s.bytes_per_s)
        memory = int((device.memory_stats() or {}).get("bytes_limit", smallest.memory_bytes))
        return replace(smallest, name=self.name, kinds=(device.device_kind,), memory_bytes=memory)

    def has(self, device: Any) -> bool:
        platform = {"cuda": "gpu"}.get(self.platform, self.platform)  # devices are named by the other name
        return device.platform == platform and self._named in (None, sheet_of(device.device_kind, self._sheets))

    def attached_device(self) -> Any:
        """The first attached device of this kind, or None."""
        return next(filter(self.has, _attached(self.platform)), None)

    def attached(self) -> bool:
        return self.attached_device() is not None

    def device(self) -> Any:
        """The device that programs are compiled for: an attached one where there is, else a description of one.

        Raises:
          ExlaError: if there is none, or nothing that compiles for it; the message says what to install.
        """
        found = self.attached_device()
        if found is not None:
            return found
        if self._named is None:
            named = ", ".join(sheet.name for sheet in self._sheets)
            raise ExlaError(f"target={self.name!r} is the attached device, and none is; to compile without: {named}")
        install = self.install()
        if install is not None:
            raise ExlaError(f"no {self.name} is attached, and its compiler is not installed: pip install {install}")
        return _described(self.compiler.device, self._named)

    def install(self) -> str | None:
        """What to `pip install` for its compiler; None where it is installed."""
        facts = self._named or self._sheets[0]
        return None if self.compiler.installed(facts) else self.compiler.install(facts)

    def sharding(self) -> Sharding | None:
        device = self.device()
        is_default = self.attached() and device == jax.devices()[0]
        return None if is_default else SingleDeviceSharding(device)

    def usable_bytes(self) -> int:
        """What JAX's allocator may hand out; without the device, its memory times the share that JAX takes of it."""
        found = self.attached_device()
        limit = ((found.memory_stats() or {}) if found is not None else {}).get("bytes_limit")
        if limit:
            return int(limit)
        share = self.facts.usable_share
        if self.platform == "cuda":
            share = float(os.environ.get("XLA_CLIENT_MEM_FRACTION") or share)
        return int(self.facts.memory_bytes * share)

    def machine(self) -> Machine:
        return Machine.of(self.facts)

    def fingerprint(self) -> Mapping[str, str]:
        return {
            "target": self.facts.name,
            "device": self.device().device_kind,
            "jax": jax.__version__,
            "jaxlib": f"{jaxlib.__version__} {self.compiler.distribution} {_version(self.compiler.distribution)}",
            "xla_flags": f"{os.environ.get('XLA_FLAGS', '')} {os.environ.get('LIBTPU_INIT_ARGS', '')}".strip(),
        }

    def option_names(self) -> Collection[str]:
        return tuple(self.compiler.told(0))

    def option_sets(self, work: Work, limit_bytes: int) -> Sequence[Mapping[str, str]]:
        return (self.compiler.told(limit_bytes) if limit_bytes < self.usable_bytes() else {},)

    def called_bytes(self, libraries: tuple[int, int], options: Mapping[str, str]) -> int:
        return min(libraries)

    def finish(self, lowered: Any, compiler_options: Mapping[str, Any]) -> Any:
        needed = {} if self.attached() else self.compiler.options
        options = {**needed, **compiler_options}
        try:
            return lowered.compile(compiler_options=options or None)
        except jax.errors.JaxRuntimeError as error:
            others = self._options_after(str(error), options)
            if others == options:
                raise
            return lowered.compile(compiler_options=others or None)

    def _options_after(self, said: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options to try after an error: without what is unknown, has failed, or for which there is no room."""
        if _UNKNOWN_OPTION in said:
            return {name: value for name, value in options.items() if name not in self.option_names()}
        if "RESOURCE_EXHAUSTED" in said and _AUTOTUNER in said:
            return {**self.compiler.options, **options}
        return {**options, **self.compiler.without(said)}

    def compiled_bytes(self, compiled: Any) -> CompiledBytes:
        stats = compiled.memory_analysis()
        return CompiledBytes.of(stats, code=stats.generated_code_size_in_bytes)

    def needed_bytes(self, error: Exception) -> int | None:
        """Read from the compiler's message: the largest amount that it says is required."""
        said = str(error)
        if "RESOURCE_EXHAUSTED" not in said and "Ran out of memory" not in said:
            return None
        amounts = [int(float(n) * _UNITS[u]) for form in _NEEDED for n, u in form.findall(said)]
        return max(amounts, default=self.usable_bytes() + 1)


def _attached(platform: str) -> Sequence[Any]:
    try:
        return jax.devices(platform)
    except RuntimeError:  # JAX has no such backend here
        return ()


@cache
def _described(device: Callable[[Facts], Any], facts: Facts) -> Any:
    return device(facts)


@cache
def _version(distribution: str) -> str:
    return _compat.version_of(distribution)
