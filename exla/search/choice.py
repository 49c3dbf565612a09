"""What the driver is asked and what it answers: a traced call, the candidates that were tried, the choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from exla._compat import Literal
from exla.ir.fingerprint import fingerprint
from exla.ir.memory import Peak
from exla.ir.program import Program, value_bytes
from exla.ir.spread import Spread
from exla.passes.decisions import Decision
from exla.passes.replace import Declined
from exla.passes.split.decide import Seed
from exla.targets.base import CompiledBytes, Target
from exla.targets.machine import Machine
from exla.version import rules_hash

if TYPE_CHECKING:
    from exla.search.ranker import Prediction

PLAIN = "as jax.jit compiles it"
"""The candidate without decisions, in words."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One signature of a function, traced.

    Attributes:
      program: the canonical program.
      compile_plain: compiles the function exactly as `jax.jit` does.
      donated: positions of donated arguments among the flat arguments.
      compiler_options: the user's own.
      inline: whether it becomes part of somebody else's program, whose compiler options are not exla's to choose.
      arguments: shardings of the flat arguments; None, for one or for all, where nothing is said.
      results: shardings of the results, likewise.
      devices: how many devices share it; the limit is that of each.
      shrink: traces the function with the shapes of its arguments changed by a function; None where nobody can.
      spread: (argument, axis) of what they share -> how: such an axis is cut inside the shares only.
    """

    program: Program
    compile_plain: Callable[[], Any]
    donated: tuple[int, ...]
    compiler_options: Mapping[str, Any]
    inline: bool = False
    arguments: Sequence[Any] | None = None
    results: Sequence[Any] | None = None
    devices: int = 1
    shrink: Callable[[Callable[[Sequence[int]], tuple[int, ...]]], Program] | None = None
    spread: Mapping[tuple[int, int], Spread] = field(default_factory=dict)

    @property
    def fixed_bytes(self) -> int:
        """What each device needs at least: arguments and results, but for what they share."""
        program = self.program
        outputs = {v for v in program.outvars if not isinstance(v, Literal)}
        whole = sum(map(value_bytes, program.arguments)) + sum(map(value_bytes, outputs))
        return -(-(whole - self.aliased_bytes) // self.devices)

    @property
    def aliased_bytes(self) -> int:
        """What donated arguments and results may share at most."""
        program, first = self.program, len(self.program.consts)
        donated = {program.invars[first + k] for k in self.donated}
        return min(
            sum(value_bytes(v) for v in program.arguments if v in donated),
            sum(value_bytes(v) for v in program.outvars),
        )


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One candidate that was compiled.

    Attributes:
      what: its decisions in words.
      decisions: what it is made of.
      untouched: whether it is the program as `jax.jit` compiles it.
      compiled_bytes: the compiler's figure; None where it did not compile.
      measured_bytes: what a process that ran it took; None where none did.
      needed_bytes: what it needs by the word of a compiler that refused it for that.
      error: what the compiler said then, or why it must not be used.
      compile_s: seconds that compiling took; None where that is not known.
    """

    what: str
    decisions: tuple[Decision, ...] = ()
    untouched: bool
    compiled_bytes: CompiledBytes | None
    measured_bytes: int | None = None
    needed_bytes: int | None = None
    error: str = ""
    compile_s: float | None = None

    @property
    def is_barred(self) -> bool:
        """Whether it compiled and must not be used, whatever it takes."""
        return bool(self.error) and self.compiled_bytes is not None

    @property
    def peak_bytes(self) -> int | None:
        """What it takes, by the compiler's word and by measurement; None where there is neither."""
        if self.compiled_bytes is None:
            return self.needed_bytes
        return max(self.compiled_bytes.total, self.measured_bytes or 0)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the driver chose.

    Attributes:
      compiled: jax's Compiled; of the user's function where `untouched`, else of flat constants and arguments.
      untouched: whether it is the program as `jax.jit` compiles it.
      decisions: what was decided.
      program: the program after the decisions.
      project: projects its peak, once; a replay does not need it.
      compiled_bytes: the compiler's figure.
      limit_bytes: the limit that it obeys.
      measured_bytes: what a process that ran it took; None where none did.
      seeds: the regions that were split.
      machine: what was planned for.
      tried: every candidate that was compiled, in order.
      declined: rewrites that were found and not applied, with reasons.
      sources: the user's lines of the rewrites that were.
      prediction: what was predicted of it by what was learned; None where nothing was.
      source: "search", "record", "shipped" (a record that comes with exla, made by other code), "plan" (a saved one) or
        "executable" (a saved one with what was compiled).
      search_s: seconds it took.
      instead: why it is used although the plain program obeys too; "" where that does not.
      hint: what may be faster than the plain program, and how to find out; "" where nothing is known to be.
    """

    compiled: Any
    untouched: bool
    decisions: tuple[Decision, ...]
    program: Program
    project: Callable[[], Peak]
    compiled_bytes: CompiledBytes
    limit_bytes: int
    machine: Machine
    measured_bytes: int | None = None
    seeds: tuple[Seed, ...] = ()
    tried: tuple[Tried, ...] = ()
    declined: tuple[Declined, ...] = ()
    sources: Mapping[Decision, str] = field(default_factory=dict)
    prediction: Prediction | None = None
    source: str = "search"
    search_s: float = 0.0
    instead: str = ""
    hint: str = ""

    @property
    def peak(self) -> Peak:
        """The projected peak of its program."""
        return self.project()


def describe(call: Call, target: Target) -> dict[str, str]:
    """What an outcome depends on but for limit and options, by name."""
    return {
        "program": fingerprint(call.program),
        "arguments": " ".join(v.aval.str_short() for v in call.program.invars)
        + f" donated {call.donated}{_sharded(call)}",
        **target.fingerprint(),
        "exla": rules_hash(),
    }


def _sharded(call: Call) -> str:
    """The shardings of a call over several devices, for its key."""
    return "" if call.devices == 1 else f" on {call.devices}: {call.arguments} -> {call.results}"
