"""Replace rules: what a match-and-replace rewrite is made of.

A rule is two ordinary JAX functions. Both are traced at shapes whose axes have names, and a program is searched for the
first one, however it is spelled there: broadcast or vmapped, transposed, operands swapped, any sizes.

    REPLACE_RULES.register("trace_of_product")(
        ReplaceRule(
            rewrite="trace(A @ B) -> sum(A * B.T)",
            source="Golub and Van Loan, Matrix Computations, section 1.1",
            arguments={"a": "n k", "b": "k n"},
            patterns=(lambda a, b: jnp.trace(a @ b),),
            replacement=lambda a, b: jnp.sum(a * b.T),
            examples=(...,),
            counterexamples=(...,),
        )
    )

A rewrite that is right only on some inputs says so at run time: a `checked` replacement returns (safe, results), and
where not all of `safe` holds the original equations are evaluated instead (PET's correction of partially equivalent
programs, Wang et al., OSDI 2021).

What it does not do: choose. `exla.passes.replace` decides whether a match pays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from exla.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Example:
    """A function as a user writes it, and arguments that it is tried on.

    Attributes:
      fn: the function.
      arguments: axes of each argument by size, as "6 4" or "5:int32"; drawn from a standard normal distribution, or
        from 0 to 2 for integers.
      draw: makes the arguments from a NumPy generator instead.
    """

    fn: Callable[..., Any]
    arguments: tuple[str, ...] = ()
    draw: Callable[..., tuple[Any, ...]] | None = None


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """A match that its rule's guard lets through.

    Attributes:
      extras: (what it is, variable) for further values of the program that the replacement asks for; it takes them as
        `extras`, a list of (what it is, value), each value whole.
    """

    extras: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Match:
    """A place where a pattern was found.

    Attributes:
      program: the program.
      position: the equation whose results the pattern computes.
      bound: argument name -> the value that it stands for.
      dtypes: argument name -> its dtype.
      sizes: axis name -> how many indices it has there.
      inside: positions of the equations that the pattern covers.
    """

    program: Any
    position: int
    bound: Mapping[str, Any]
    dtypes: Mapping[str, Any]
    sizes: Mapping[str, int]
    inside: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class ReplaceRule:
    """One match-and-replace rewrite.

    Attributes:
      rewrite: "before -> after", for people.
      source: where it is from.
      arguments: argument name -> its axes, as "n d", or "n:int32"; "" is a scalar, "j*l" an axis of j times l indices.
      sizes: axes that no argument has, such as the k of a top-k. Patterns and the replacement then take `sizes`, a
        mapping from axis name to size.
      patterns: spellings of the same function; each takes the arguments.
      replacement: takes the arguments and returns what the pattern returns, or (safe, that) where `checked`.
      made_of: primitives that every spelling holds, views of its values left out. A program without one of them is not
        searched, and no spelling is traced for it.
      checked: whether the replacement says at run time if it may be used. `safe` is a boolean scalar, or has the
        results' leading axes and 1 for each other axis.
      slow_top_k: whether it is for devices that start each row of a top-k anew, as CPUs do (True), for the others
        (False), or for all (None).
      guard: looks at a match and returns a reason to decline, or what it admits.
      exact: whether every bit stays the same; others are off under numerics="exact".
      reassociates: whether it multiplies and adds in another order, so that infinities meet elsewhere: it promises
        nothing about arguments that are not finite.
      eases: whether what it leaves can be cut where what it replaces cannot: it pays where it costs little.
      opt_in: whether the rule is used only where it is asked for by name.
      tolerance: how far results may be from those of the pattern, relative to the largest of them, in units of the
        dtype's precision (eps).
      examples: user functions in which the rule must be found.
      counterexamples: lookalikes in which it must not.
    """

    rewrite: str
    source: str
    arguments: Mapping[str, str]
    patterns: tuple[Callable[..., Any], ...]
    replacement: Callable[..., Any]
    made_of: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    checked: bool = False
    slow_top_k: bool | None = None
    guard: Callable[[Match], str | Admitted] = lambda match: Admitted()
    exact: bool = False
    reassociates: bool = False
    eases: bool = False
    opt_in: bool = False
    tolerance: float = 64.0
    examples: tuple[Example, ...] = ()
    counterexamples: tuple[Example, ...] = ()


REPLACE_RULES: Registry[ReplaceRule] = Registry("replace rule", package="exla.rules.replace", rare=["discovered"])
"""The rules by name. They are tried in the order of their names' registration: the order of the modules. Those that
were discovered are read where one is asked for: none is used otherwise."""
