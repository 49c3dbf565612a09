"""One signature of a function, planned: what runs, and what jax's `Lowered` and `Compiled` of it are.

A program that is used untouched runs through the very `jax.jit` function that would have run it without exla; a
rewritten one is a compiled function of its constants and the flat arguments. What was compiled for a device that is not
there can be read, counted and saved.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

import jax

from exla import _compat
from exla.errors import ExlaError
from exla.observe import Made
from exla.options import Options
from exla.overrun import confirmed
from exla.placement import Placement
from exla.report.plan import Plan, make_plan
from exla.search.choice import Call, Choice
from exla.strict import tolerate
from exla.targets.base import Target
from exla.units import format_bytes

tracing: contextvars.ContextVar[bool] = contextvars.ContextVar("exla_tracing", default=False)
"""Whether a function is being traced in order to be planned."""


class Planned:
    """One signature's choice, ready to run.

    Attributes:
      name: of the user's function.
      traced: the call before any decision.
      choice: what the driver chose.
      jitted: the jax.jit function of this signature alone, where the program is used untouched on the default device.
      out_tree: the tree of the results.
      place: where it runs.
      target: what it was compiled for.
      options: the user's.
      consts: what a split program takes before the arguments.
    """

    def __init__(
        self,
        *,
        name: str,
        call: Call,
        choice: Choice,
        target: Target,
        options: Options,
        jitted: Any,
        out_tree: Any,
        place: Placement,
    ) -> None:
        self.name = name
        self.traced = call
        self.choice = choice
        self.jitted = jitted
        self.out_tree = out_tree
        self.place = place
        self.target = target
        self.options = options
        self.consts: tuple[Any, ...] = ()
        self._count = len(place.arguments)
        self._flat_call = None
        self._is_confirmed = False
        if not choice.untouched and target.attached():
            wanted = choice.compiled.input_shardings[0]
            self.consts = tuple(jax.device_put(c, s) for c, s in zip(choice.program.consts, wanted, strict=False))
            with tolerate("reading a compiled program"):
                self._flat_call = _compat.flat_call(choice.compiled)

    def plan(self) -> Plan:
        """What was decided, and why."""
        return make_plan(self.traced.program, self.choice)

    def made(self) -> Made:
        """What is announced of it."""
        return Made(function=self.name, call=self.traced, choice=self.choice, target=self.target, options=self.options)

    def call(self, leaves: Sequence[Any], args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Any, bool]:
        """Run the call; returns what `JitFunction._miss` does."""
        return self.confirmed(lambda: self._call(leaves, args, kwargs), leaves)

    def confirmed(self, run: Callable[[], Any], arguments: Any) -> Any:
        """What `run` returns; the first time, the device's allocator is asked what that took."""
        if self._is_confirmed or self.place.has_references:  # those are results that JAX's Compiled says nothing of
            return run()
        self._is_confirmed = True
        return confirmed(
            run,
            name=self.name,
            devices={d for s in jax.tree.leaves(self.choice.compiled.output_shardings) for d in s.device_set},
            arrays=(*self.consts, *jax.tree.leaves(arguments)),
            counted_bytes=self.choice.compiled_bytes.total,
            limit_bytes=self.choice.limit_bytes,
        )

    def _call(self, leaves: Sequence[Any], args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Any, bool]:
        if self.choice.untouched and self.jitted is None:
            placed = jax.device_put((args, kwargs), self.target.sharding())
            return self.choice.compiled(*placed[0], **placed[1]), None, False
        if self.jitted is None:
            return self._call_split(leaves)
        token = tracing.set(True)  # jax.clear_caches() makes it trace again
        try:
            return _compat.call_and_enter(self.jitted, args, kwargs)
        finally:
            tracing.reset(token)

    def _call_split(self, leaves: Sequence[Any]) -> tuple[Any, Any, bool]:
        if self._flat_call is None:
            return self.run(leaves), None, False
        flat, data, _ = self._flat_call(*self.consts, *self._checked(leaves))
        enter = None
        with tolerate("entering a call into the cache"):
            enter = _compat.entry(data, self.consts, flat, self.out_tree)
        return jax.tree.unflatten(self.out_tree, flat), enter, False

    def run(self, leaves: Sequence[Any]) -> Any:
        """Results of the split program."""
        return jax.tree.unflatten(self.out_tree, self.choice.compiled(*self.consts, *self._checked(leaves)))

    def _checked(self, leaves: Sequence[Any]) -> Sequence[Any]:
        if len(leaves) != self._count:
            raise ExlaError(f"the call has {len(leaves)} array arguments, its trace had {self._count}")
        return self.place.brought(leaves)


def check_attached(target: Target) -> None:
    """Refuse to run what can only be compiled here.

    Raises:
      ExlaError: if no such device is attached.
    """
    if not target.attached():
        if ":" not in target.name:
            target.sharding()  # "gpu" and "tpu" are nothing without a device, and say so
        raise ExlaError(
            f"target={target.name!r} is not attached, so that nothing can run on it here: run it where it is, or leave "
            "target out; plan, explain and exla.compile do not need the device"
        )


class Traced:
    """jax's `Traced` of the unchanged function, whose `lower` plans; `exla.jit(f).trace(...)` returns it."""

    def __init__(self, traced: Any, lower: Callable[[], Lowered]) -> None:
        self._traced = traced
        self._lower = lower

    def lower(self, **how: Any) -> Any:
        """Plan, and return what `exla.jit(f).lower(...)` does; with arguments, jax's `Lowered` as `jax.jit` has it."""
        return self._traced.lower(**how) if how else self._lower()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._traced, name)


class Lowered:
    """jax's `Lowered` of the unchanged function, whose `compile` obeys the cap; `exla.jit(f).lower(...)` returns it."""

    def __init__(self, planned: Planned, flatten: Callable[..., Sequence[Any]], lower: Callable[[], Any]) -> None:
        self._planned = planned
        self._flatten = flatten
        self._lower = lower

    def compile(self) -> Compiled:
        """What was chosen for this signature."""
        return Compiled(self._planned, self._flatten)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lower(), name)


class Compiled:
    """What was chosen for one signature: called with the same arguments; otherwise jax's `Compiled` of it.

    Attributes:
      plan: what was decided, and why.
    """

    def __init__(self, planned: Planned, flatten: Callable[..., Sequence[Any]]) -> None:
        self.planned = planned
        self._flatten = flatten

    @property
    def plan(self) -> Plan:
        return self.planned.plan()

    def __repr__(self) -> str:
        choice = self.planned.choice
        done = "as jax.jit compiles it" if choice.untouched else f"{len(choice.decisions)} decisions"
        bytes_of = f"{format_bytes(choice.compiled_bytes.total)} of at most {format_bytes(choice.limit_bytes)}"
        return f"<exla.Compiled for {self.planned.target.name}: {done}, {bytes_of}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        planned = self.planned
        check_attached(planned.target)
        if planned.choice.untouched:
            return planned.confirmed(lambda: planned.choice.compiled(*args, **kwargs), (args, kwargs))
        leaves = self._flatten(args, kwargs)
        return planned.confirmed(lambda: planned.run(leaves), leaves)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.planned.choice.compiled, name)
