"""Hearing of plans as they are made: how `exla explain script.py` knows what a script planned.

    with observing(heard.append):
        run_the_script()

Every signature that `exla.jit` plans while the block runs is announced, in whichever thread: plain calls, and programs
that `jax.grad`, `jax.vmap` or an outer `jax.jit` made of them. Nothing is announced of what was planned before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from exla.options import Options
from exla.search.choice import Call, Choice
from exla.targets.base import Target


@dataclass(frozen=True, kw_only=True)
class Made:
    """One signature, planned.

    Attributes:
      function: the name of the user's function.
      call: the signature, traced.
      choice: what was chosen for it.
      target: what it was compiled for.
      options: those under which it was planned.
      derived: whether it is a program that a transformation made, and not a call of the function.
    """

    function: str
    call: Call
    choice: Choice
    target: Target
    options: Options
    derived: bool = False

    @property
    def arguments(self) -> str:
        """The types of the flat arguments, as `--shapes` takes them."""
        program = self.call.program
        return " ".join(v.aval.str_short(short_dtypes=True) for v in program.invars[len(program.consts) :])


_OBSERVERS: list[Callable[[Made], None]] = []
"""Those that listen; empty but inside of `observing`. A list, because threads that a script starts are heard too."""


@contextlib.contextmanager
def observing(observer: Callable[[Made], None]) -> Iterator[None]:
    """Call a function with every plan that is made while the block runs, in the order in which they are."""
    _OBSERVERS.append(observer)
    try:
        yield
    finally:
        _OBSERVERS.remove(observer)


def announce(made: Made) -> None:
    """Tell whoever listens."""
    for observer in tuple(_OBSERVERS):
        observer(made)
