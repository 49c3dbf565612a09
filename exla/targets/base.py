"""What a target is: a device kind with its compiler, its memory and its honest byte counts.

A target compiles a function, says how many bytes the compiled program needs, and what the device has. Nothing is
believed before the target's compiler has seen it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from exla.registry import Registry


@dataclass(frozen=True, kw_only=True)
class CompiledBytes:
    """Bytes of a compiled program, by the compiler's buffer assignment.

    Attributes:
      arguments: constants and arguments.
      outputs: results.
      temporaries: everything else that is allocated while it runs.
      aliased: outputs that share a donated argument's memory, counted in both.
      unaccounted: an upper bound on what the compiler's figure leaves out; 0 where the figure is complete.
    """

    arguments: int
    outputs: int
    temporaries: int
    aliased: int
    unaccounted: int

    @property
    def total(self) -> int:
        """Arguments + outputs + temporaries - aliased, with what the figure leaves out."""
        return self.arguments + self.outputs + self.temporaries - self.aliased + self.unaccounted


class Target(Protocol):
    """A device kind."""

    name: str

    def usable_bytes(self) -> int:
        """Memory that a program may use where the user names no limit."""

    def cache_bytes(self) -> int:
        """Working set of a chunk that stays in fast memory."""

    def fingerprint(self) -> Mapping[str, str]:
        """Named parts that identify device and compiler, the same in every process."""

    def option_sets(self, product_share: float) -> Sequence[Mapping[str, str]]:
        """Compile options worth trying for a rewritten program, best first; the last needs the least memory.

        Args:
          product_share: the share of its predicted time that matrix products take.
        """

    def compile(
        self,
        fn: Callable[..., Any],
        structs: Sequence[Any],
        *,
        donate: Sequence[int],
        compiler_options: Mapping[str, Any],
    ) -> Any:
        """Compile a function of flat arguments; returns jax's Compiled."""

    def compiled_bytes(self, compiled: Any) -> CompiledBytes:
        """Bytes of a compiled program."""


TARGETS: Registry[Target] = Registry("target", package="exla.targets")
