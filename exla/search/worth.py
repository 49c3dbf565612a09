"""Whether a change of a program pays by the model.

A change must bring a smaller projected peak without much more predicted time, or less time without a larger peak; much
less time may cost some. What is much less is seen on the equations that change: the last of three kernel matrices is
worth what the first is. Most changes are of a few equations among hundreds, and a peak elsewhere stays where it is:
what a change leaves of it is bounded first, and projected where that does not decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from exla.ir.fusing import Fused
from exla.ir.memory import Peak, fused_of
from exla.ir.program import Program, value_bytes
from exla.ir.rewrites import ReplaceRule
from exla.search.cost import changed_s, predict_s, projected, storing_of
from exla.targets.machine import Machine
from exla.units import format_bytes


@dataclass(frozen=True)
class Before:
    """A program that may be changed.

    Attributes:
      program: as it is.
      machine: the machine.
    """

    program: Program
    machine: Machine

    @cached_property
    def peak(self) -> Peak:
        """What it takes."""
        return projected(self.program, self.machine)

    @cached_property
    def seconds(self) -> float:
        """How long."""
        return predict_s(self.program, self.machine)

    @cached_property
    def _fusions(self) -> Fused:
        return fused_of(self.program, storing_of(self.machine))

    def pays(self, changed: Program, rule: ReplaceRule | None = None) -> bool:
        """Whether a change is worth it.

        Args:
          changed: the program with it.
          rule: what makes it, if a rule does: what keeps every bit pays as soon as it saves anything, and what leaves
            something that is easier to cut may take more till it is cut.
        """
        most_bytes = self._most_bytes(changed, rule)
        return self.least_bytes(changed) <= most_bytes and projected(changed, self.machine).bytes <= most_bytes

    def beside(self, changed: Program) -> str:
        """What a program takes with and without a change, in words."""
        after = Before(changed, self.machine)
        return (
            f"with it, before any split, the program is projected to take {after._in_words()}; "
            f"without it, {self._in_words()}"
        )

    def is_free(self, changed: Program) -> bool:
        """Whether a change takes nothing more, and hardly more time."""
        if predict_s(changed, self.machine) > 1.1 * self.seconds:
            return False
        return projected(changed, self.machine).bytes <= self.peak.bytes

    def least_bytes(self, changed: Program) -> int:
        """What a change leaves of the peak at least, nearly: that of the equations that stay, less all others touch.

        The code is not counted: it may be that of what changes.
        """
        eqns, consumers = self.program.eqns, self.program.consumers
        stay = {id(eqn) for eqn in changed.eqns}
        gone = {position for position, eqn in enumerate(eqns) if id(eqn) not in stay}
        made = [v for position in gone for v in eqns[position].outvars]
        touched = {*made, *(v for position in gone for v in self._fusions.reads[position])}
        touched.update(v for var in made for reader, _ in consumers.get(var, ()) for v in eqns[reader].outvars)
        elsewhere = max((b for position, b in enumerate(self.peak.course) if position not in gone), default=0)
        return self.peak.arguments_bytes + max(elsewhere - sum(map(value_bytes, touched)), 0)

    def _most_bytes(self, changed: Program, rule: ReplaceRule | None) -> float:
        """The peak up to which a change pays; below none where it pays in no case."""
        most, seconds = [-1.0], predict_s(changed, self.machine)
        if rule is not None and rule.exact and seconds < self.seconds:
            most.append(self.peak.bytes)
        if rule is not None and rule.eases and seconds <= 1.1 * self.seconds:
            most.append(2 * self.peak.bytes)
        if seconds <= 1.2 * self.seconds:
            most.append(0.9 * self.peak.bytes)
        if seconds < 0.95 * self.seconds:
            gone_s, new_s = changed_s(self.program, changed, self.machine)
            most.append((3 if new_s < 0.75 * gone_s else 1.1) * self.peak.bytes)  # what is split anyway may be more
        return max(most)

    def _in_words(self) -> str:
        return f"{format_bytes(self.peak.bytes)} and {self.seconds * 1e3:.3g} ms"
