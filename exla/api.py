"""`exla.jit`: jax.jit with a hard memory cap.

    f = exla.jit(fn, memory_limit="512MiB")
    y = f(x)            # obeys the cap, or raises MemoryLimitError before anything runs
    print(f.plan(x))    # decisions and the four byte counts
    print(f.explain(x)) # what was split, what was left alone, and why

The first call with a new signature traces the function once, with jax.jit's own tracing, and lets the driver
choose; later calls dispatch to what was chosen. A program that obeys the cap as it is runs through the very
`jax.jit` function that would have run it without exla.

Under a transformation (`jax.grad`, `jax.vmap`, an outer `jax.jit`) the call is the plain function: what is traced
into another program cannot obey a cap of its own. An outer `exla.jit` plans it together with the rest; anything
else gets a warning.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax

from exla.errors import ExlaError, ExlaWarning
from exla.ir.program import Program, canonical
from exla.options import Options
from exla.report.plan import Plan, explain_text, make_plan
from exla.search.driver import Call, Choice, decide
from exla.targets.base import TARGETS

_planning: contextvars.ContextVar[bool] = contextvars.ContextVar("exla_planning", default=False)
"""Whether an exla.jit is tracing: its plan covers every call inside."""


class JitFunction:
    """A function compiled under a memory cap; made by `exla.jit`.

    Calls take and return what the wrapped function does. Instances are descriptors, so that methods work.
    """

    def __init__(self, fn: Callable[..., Any], options: Options, jit_arguments: dict[str, Any]) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._options = options
        self._jit_arguments = jit_arguments
        self._jit = jax.jit(fn, **jit_arguments)
        self._static = _static_parameters(fn, jit_arguments)
        self._planned: dict[Any, _Planned] = {}
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        dynamic, key = self._signature(args, kwargs)
        if any(isinstance(x, jax.core.Tracer) for x in dynamic):
            return self._inside_a_trace(args, kwargs)
        planned = self._planned.get(key)
        if planned is None:
            planned = self._plan(key, args, kwargs)
        if planned.choice.untouched:
            return self._jit(*args, **kwargs)
        return planned.run(dynamic)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"exla.jit({getattr(self._fn, '__qualname__', self._fn)!s}, {self._options})"

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Decide, without running anything.

        Args:
          *args: arrays or ShapeDtypeStructs, as for a call.
          **kwargs: likewise.

        Returns:
          The plan.

        Raises:
          MemoryLimitError: if no candidate obeys the limit.
        """
        _, key = self._signature(args, kwargs)
        planned = self._planned.get(key) or self._plan(key, args, kwargs)
        return make_plan(planned.program, planned.choice)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Say what was done about each big value, or why nothing was. Arguments as for `plan`."""
        return explain_text(self.plan(*args, **kwargs))

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """jax.jit's `trace` of the unchanged function."""
        return self._jit.trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """jax.jit's `lower` of the unchanged function; `plan(...).compiled` is what exla chose."""
        return self._jit.lower(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the results."""
        return self._jit.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget all plans and compiled programs."""
        with self._lock:
            self._planned.clear()
            self._jit.clear_cache()

    def _plan(self, key: Any, args: tuple, kwargs: dict[str, Any]) -> _Planned:
        with self._lock:
            if key in self._planned:
                return self._planned[key]
            token = _planning.set(True)
            try:
                traced = self._jit.trace(*args, **kwargs)
            finally:
                _planning.reset(token)
            program = canonical(traced.jaxpr)
            infos = jax.tree.leaves(traced.args_info)
            call = Call(
                program=program,
                compile_plain=lambda: traced.lower().compile(),
                donated=tuple(k for k, info in enumerate(infos) if info.donated),
                compiler_options=self._jit_arguments.get("compiler_options") or {},
            )
            choice = decide(call, TARGETS.get(self._options.target or "cpu"), self._options)
            if not choice.untouched and _shardings(self._jit_arguments):
                raise ExlaError(
                    "this program needs splitting, and in_shardings/out_shardings are not supported for split "
                    "programs yet; raise memory_limit or drop the shardings"
                )
            tree = jax.tree.structure(traced.out_info)
            planned = _Planned(program=program, choice=choice, out_tree=tree, count=len(infos))
            self._planned[key] = planned
            return planned

    def _inside_a_trace(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        if not _planning.get() and self._options.memory_limit is not None:
            warnings.warn(
                f"exla.jit({getattr(self._fn, '__name__', 'function')}) is called inside another transformation; its "
                "memory_limit is not applied there. Put exla.jit outermost: exla.jit(jax.grad(f), ...)",
                ExlaWarning,
                stacklevel=3,
            )
        return self._jit(*args, **kwargs)

    def _signature(self, args: tuple, kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
        """Flat dynamic arguments, and what a plan is looked up by."""
        positions, names = self._static
        dynamic_args = tuple(a for k, a in enumerate(args) if k not in positions)
        dynamic_kwargs = {k: v for k, v in kwargs.items() if k not in names}
        leaves, tree = jax.tree.flatten((dynamic_args, dynamic_kwargs))
        static = (
            tuple((k, args[k]) for k in positions if k < len(args)),
            tuple((k, kwargs[k]) for k in sorted(names) if k in kwargs),
        )
        avals = tuple(_leaf_key(x) for x in leaves)
        key = (tree, avals, static, jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision)
        return leaves, key


class _Planned:
    """One signature's choice, ready to run."""

    def __init__(self, *, program: Program, choice: Choice, out_tree: Any, count: int) -> None:
        self.program = program
        self.choice = choice
        self._out_tree = out_tree
        self._count = count

    def run(self, leaves: Sequence[Any]) -> Any:
        if len(leaves) != self._count:
            raise ExlaError(f"the call has {len(leaves)} array arguments, its trace had {self._count}")
        flat = self.choice.compiled(*self.choice.program.consts, *leaves)
        return jax.tree.unflatten(self._out_tree, flat)


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    memory_limit: int | str | None = None,
    search: str | None = None,
    target: str | None = None,
    numerics: str | None = None,
    tensor_size_threshold: int | str | None = None,
    tensor_split_size: int | str | None = None,
    records: str | None = None,
    **jit_arguments: Any,
) -> Any:
    """Compile a function so that it runs under a hard memory cap.

    Works as `jax.jit` does, as a decorator too, and takes its arguments (static_argnums, donate_argnums, …).

    Args:
      fn: a function that jax.jit can trace, unchanged.
      memory_limit: cap on arguments + outputs + temporaries - aliased, in bytes or as "512MiB"; None = what the
        device has.
      search: who chooses what is split: "heuristic", or "off" for nothing.
      target: what to compile for; None = the default device.
      numerics: "reassociate" may change the order of sums, "exact" may not change values beyond that either.
      tensor_size_threshold: split values above this although they fit (the paper's knob).
      tensor_split_size: working set that no chunk may exceed (the paper's other knob).
      records: use of the tuning records, "append", "read" or "off".
      **jit_arguments: every other argument of jax.jit, with its meaning.

    Returns:
      A function that takes and returns what `fn` does. It raises MemoryLimitError before anything runs where no
      candidate obeys the cap.

    Raises:
      OptionError: for an unknown option, value or unit.

    Source: Artemev et al., Memory Safe Computations with XLA Compiler, NeurIPS 2022.
    """
    options = Options.resolve(
        memory_limit=memory_limit,
        search=search,
        target=target,
        numerics=numerics,
        tensor_size_threshold=tensor_size_threshold,
        tensor_split_size=tensor_split_size,
        records=records,
    )
    if fn is None:
        return lambda f: JitFunction(f, options, jit_arguments)
    return JitFunction(fn, options, jit_arguments)


def _leaf_key(x: Any) -> Any:
    """What of an argument a plan depends on: shape, dtype, weak type, placement of committed arrays."""
    if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer):
        return (x.aval, x.sharding if x.committed else None)
    if isinstance(x, (bool, int, float, complex)):
        return type(x)
    return (getattr(x, "shape", None), getattr(x, "dtype", None), getattr(x, "weak_type", False), type(x).__name__)


def _shardings(jit_arguments: dict[str, Any]) -> bool:
    return any(jit_arguments.get(k) is not None for k in ("in_shardings", "out_shardings"))


def _static_parameters(fn: Callable[..., Any], jit_arguments: dict[str, Any]) -> tuple[tuple[int, ...], frozenset[str]]:
    """Positions and names of static parameters, each inferred from the other as jax.jit does."""
    numbers = jit_arguments.get("static_argnums")
    names = jit_arguments.get("static_argnames")
    numbers = () if numbers is None else (numbers,) if isinstance(numbers, int) else tuple(numbers)
    names = () if names is None else (names,) if isinstance(names, str) else tuple(names)
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return tuple(numbers), frozenset(names)
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    numbers = tuple(n % len(positional) if n < 0 and positional else n for n in numbers)
    if jit_arguments.get("static_argnames") is None:
        names = tuple(positional[n] for n in numbers if n < len(positional))
    elif jit_arguments.get("static_argnums") is None:
        numbers = tuple(positional.index(n) for n in names if n in positional)
    return numbers, frozenset(names)
