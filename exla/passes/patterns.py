"""Patterns: the spellings of a replace rule, traced so that programs can be searched for them.

Each argument has named axes. They are traced at sizes that are primes of their own, so that a number in the traced
pattern that is one of these primes is known to stand for the size of that axis. Every spelling is traced alone and
vmapped: what a transformation makes of an operation that has no free axes, such as a gather, is a spelling too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from exla._compat import Literal
from exla.ir.program import Program, canonical
from exla.ir.rewrites import ReplaceRule

PRIMES = (101, 103, 107, 109, 113, 127, 131, 137, 139)
"""Sizes of pattern axes: an integer in the pattern that is one of them stands for the size of that axis."""
BATCH = "batch"
"""The axis of a vmapped spelling that its arguments have in common."""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One spelling of a rule's pattern, traced.

    Attributes:
      program: the traced pattern; its inputs are the rule's arguments.
      axes: argument name -> names of its axes.
      sizes: axis name -> the size it is traced at.
    """

    program: Program
    axes: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]

    @property
    def root(self) -> int:
        """The equation that makes the pattern's results."""
        return self.program.producers[self.program.outvars[0]]

    @property
    def made_by(self) -> str:
        """The name of that equation's primitive."""
        return self.program.eqns[self.root].primitive.name


def argument_axes(text: str) -> tuple[tuple[str, ...], Any]:
    """The axes and dtype of "n d" or "n d:int32"; float32 where none is named. "j*l" is two axes made one."""
    axes, _, dtype = text.partition(":")
    return tuple(axes.split()), np.dtype(dtype or "float32")


def spellings(rule: ReplaceRule) -> int:
    """How many spellings a rule has: each of its patterns alone and vmapped."""
    return 2 * len(rule.patterns)


def spelling(rule: ReplaceRule, which: int) -> Pattern | None:
    """One spelling of a rule, traced; None where no one equation makes its results.

    Args:
      rule: the rule.
      which: its number, less than `spellings(rule)`.
    """
    fn, batch = rule.patterns[which // 2], (BATCH,) if which % 2 else ()
    every = {n: argument_axes(text) for n, text in rule.arguments.items()}
    names = sorted({a for axes, _ in every.values() for joint in axes for a in joint.split("*")} | set(rule.sizes))
    sizes = dict(zip([BATCH, *names], PRIMES, strict=False))
    extra = {"sizes": {n: sizes[n] for n in names}} if rule.sizes else {}
    known = {n: (*batch, *axes) for n, (axes, _) in every.items()}
    structs = [
        jax.ShapeDtypeStruct([math.prod(sizes[a] for a in joint.split("*")) for joint in axes], every[n][1])
        for n, axes in known.items()
    ]

    def call(*arguments: Any) -> Any:
        return fn(*arguments, **extra)

    traced = canonical(jax.make_jaxpr(jax.vmap(call) if batch else call)(*structs))
    return None if traced.consts or not _makes_all(traced) else Pattern(program=traced, axes=known, sizes=sizes)


def _makes_all(program: Program) -> bool:
    """Whether one equation makes every result, in order."""
    outs = list(program.outvars)
    made = [] if any(isinstance(v, Literal) for v in outs) else [program.producers.get(v) for v in outs]
    return bool(made) and made[0] is not None and len(set(made)) == 1
