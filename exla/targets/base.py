"""What a target is: a device kind with its compiler, its memory and its honest byte counts.

A target compiles a function, says how many bytes the compiled program needs, and what the device has. Nothing is
believed before the target's compiler has seen it. The device need not be there: where the compiler of an accelerator is
installed, programs are compiled for it and counted on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jax.sharding import Sharding

from exla.errors import ExlaError
from exla.registry import Registry
from exla.targets.machine import Machine, Work


@dataclass(frozen=True, kw_only=True)
class CompiledBytes:
    """Bytes of a compiled program, by the compiler's buffer assignment.

    Attributes:
      arguments: constants and arguments.
      outputs: results.
      temporaries: everything else that is allocated while it runs.
      aliased: outputs that share a donated argument's memory, counted in both.
      unaccounted: an upper bound on what the compiler's figure leaves out; 0 where the figure is complete.
      code: the program itself, where it lies in the device's memory.
    """

    arguments: int
    outputs: int
    temporaries: int
    aliased: int
    unaccounted: int
    code: int = 0

    @property
    def accounted(self) -> int:
        """Arguments + outputs + temporaries + code - aliased: the compiler's figure."""
        return self.arguments + self.outputs + self.temporaries + self.code - self.aliased

    @property
    def total(self) -> int:
        """The compiler's figure, with what it leaves out."""
        return self.accounted + self.unaccounted

    @classmethod
    def of(cls, stats: Any, *, unaccounted: int = 0, code: int = 0) -> CompiledBytes:
        """From what `memory_analysis()` of a compiled program says."""
        return cls(
            arguments=stats.argument_size_in_bytes,
            outputs=stats.output_size_in_bytes,
            temporaries=stats.temp_size_in_bytes,
            aliased=stats.alias_size_in_bytes,
            unaccounted=unaccounted,
            code=code,
        )


class Target(Protocol):
    """A device kind."""

    name: str
    platform: str
    """JAX's name of the platform that programs are lowered for: "cpu", "cuda" or "tpu"."""

    def attached(self) -> bool:
        """Whether such a device is here, so that what is compiled can run."""

    def has(self, device: Any) -> bool:
        """Whether a device, attached or described, is of this kind."""

    def sharding(self) -> Sharding | None:
        """Where programs live that say nothing about it; None = on JAX's default device."""

    def usable_bytes(self) -> int:
        """Memory that a program may use where the user names no limit."""

    def machine(self) -> Machine:
        """What a planner has to know of the device."""

    def fingerprint(self) -> Mapping[str, str]:
        """Named parts that identify device and compiler, the same in every process."""

    def option_names(self) -> Collection[str]:
        """Names of all compile options that exla sets on some machine of this kind: a plan may come from another."""

    def option_sets(self, work: Work, limit_bytes: int) -> Sequence[Mapping[str, str]]:
        """Compile options worth trying for a rewritten program, best first; the last needs the least memory.

        They differ in what libraries take beside the buffers, which are the same under all.

        Args:
          work: what the program spends its time on.
          limit_bytes: what each device may use.
        """

    def called_bytes(self, libraries: tuple[int, int], options: Mapping[str, str]) -> int:
        """Of what libraries are projected to allocate (`Peak.libraries`), that under some compile options."""

    def finish(self, lowered: Any, compiler_options: Mapping[str, Any]) -> Any:
        """Compile what was lowered for this target; returns jax's Compiled."""

    def compiled_bytes(self, compiled: Any) -> CompiledBytes:
        """Bytes of a compiled program."""

    def needed_bytes(self, error: Exception) -> int | None:
        """The bytes that a program needs by the word of a compiler that refused it; None for any other error."""


def place(structs: Sequence[Any], shardings: Sequence[Sharding | None] | None) -> list[Any]:
    """ShapeDtypeStructs on shardings; None, for one or for all, where nothing is said."""
    return [
        x if s is None else jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type, sharding=s)
        for x, s in zip(structs, shardings or (None,) * len(structs), strict=True)
    ]


def place_all(target: Target, structs: Sequence[Any]) -> list[Any]:
    """ShapeDtypeStructs on a target's device, unless something is said about one of them."""
    silent = all(x.sharding is None for x in structs)
    return place(structs, [target.sharding()] * len(structs)) if silent else list(structs)


def compile_for(
    target: Target,
    fn: Callable[..., Any],
    structs: Sequence[Any],
    *,
    donate: Sequence[int] = (),
    results: Sequence[Any] | None = None,
    compiler_options: Mapping[str, Any],
) -> Any:
    """Compile a function of flat arguments for a target.

    Args:
      target: what to compile for.
      fn: the function.
      structs: its arguments, as ShapeDtypeStructs.
      donate: positions of those whose memory it may reuse.
      results: shardings of the results; None where nothing is said about any.
      compiler_options: XLA's, by name.

    Returns:
      jax's Compiled.
    """
    placed = place_all(target, structs)
    out = target.sharding() if results is None else list(results)
    jitted = jax.jit(fn, donate_argnums=tuple(donate), out_shardings=out)
    return target.finish(jitted.lower(*placed), compiler_options)


TARGETS: Registry[Target] = Registry("target", package="exla.targets")


def find_target(name: str | None) -> Target:
    """The target of a name; of JAX's default device where it is None.

    Raises:
      ExlaError: if exla knows nothing of the default device.
    """
    found = TARGETS.find(name or jax.default_backend())
    if found is None:
        raise ExlaError(f"exla has no target for {name or jax.default_backend()!r}; there are: {', '.join(TARGETS)}")
    return found
