"""`exla.jit`: jax.jit with a hard memory cap.

    f = exla.jit(fn, memory_limit="512MiB")
    y = f(x)            # obeys the cap, or raises MemoryLimitError before anything runs
    print(f.plan(x))    # decisions and the four byte counts
    print(f.explain(x)) # what was split, what was left alone, and why

The first call with a new signature traces the function once, with jax.jit's own tracing, and lets the driver
choose; later calls dispatch to what was chosen. A program that obeys the cap as it is runs through the very
`jax.jit` function that would have run it without exla. There is one such function for each signature, and it refuses
to trace any other (`_Unplanned`): while there is only one, a call goes straight to it, at jax.jit's own speed.

Under a transformation (`jax.grad`, `jax.vmap`, an outer `jax.jit`) the call is one primitive that carries the original
program (`exla.call`).
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax

from exla import _compat
from exla.call import Wishes, bind, read
from exla.errors import ExlaError
from exla.ir.program import Program, as_struct
from exla.options import Options
from exla.report.plan import Plan, explain_text, make_plan
from exla.search.driver import Call, Choice, decide
from exla.targets.base import TARGETS

_is_top_level = _compat.is_top_level

_tracing: contextvars.ContextVar[bool] = contextvars.ContextVar("exla_tracing", default=False)
"""Whether a function is being traced in order to be planned."""


class _Unplanned(Exception):
    """Raised where jax.jit traces a signature that has no plan yet; never seen by a user."""


class JitFunction:
    """A function compiled under a memory cap; made by `exla.jit`.

    Calls take and return what the wrapped function does. Instances are descriptors, so that methods work.
    """

    def __init__(self, fn: Callable[..., Any], options: Options, jit_arguments: dict[str, Any]) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._options = options
        self._jit_arguments = jit_arguments
        self._plain = jax.jit(fn, **jit_arguments)
        self._static = _static_parameters(fn, jit_arguments)
        self._wishes = Wishes(
            options=options,
            name=getattr(fn, "__name__", "function"),
            compiler_options=tuple(sorted((jit_arguments.get("compiler_options") or {}).items())),
        )
        self._planned: dict[Any, _Planned] = {}
        self._traced: dict[Any, Any] = {}
        self._only: Callable[..., Any] | None = None
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not _is_top_level():
            return self._inside_a_trace(args, kwargs)
        only = self._only
        if only is not None:
            try:
                return only(*args, **kwargs)
            except _Unplanned:
                pass
        if jax.config.jax_disable_jit:
            return self._fn(*args, **kwargs)
        leaves, key = self._signature(args, kwargs)
        planned = self._planned.get(key) or self._plan(key, args, kwargs)
        return planned.call(leaves, args, kwargs)

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
        return self._plain.trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Plan, and return jax's `Lowered` of what was chosen; `compile` makes it a function of the same arguments."""
        _, key = self._signature(args, kwargs)
        return Lowered(self._planned.get(key) or self._plan(key, args, kwargs), self, args, kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the results."""
        return self._plain.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget all plans and compiled programs."""
        with self._lock:
            self._only = None
            self._planned.clear()
            self._traced.clear()
            self._plain.clear_cache()

    def _plan(self, key: Any, args: tuple, kwargs: dict[str, Any]) -> _Planned:
        with self._lock:
            if key in self._planned:
                return self._planned[key]
            jitted = jax.jit(_guarded(self._fn), **self._jit_arguments)
            token = _tracing.set(True)
            try:
                traced = jitted.trace(*args, **kwargs)
            finally:
                _tracing.reset(token)
            program = read(traced.jaxpr)
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
            planned = _Planned(
                program=program,
                choice=choice,
                jitted=jitted if choice.untouched else None,
                out_tree=tree,
                count=len(infos),
            )
            self._planned[key] = planned
            self._only = planned.jitted if len(self._planned) == 1 else None
            return planned

    def _inside_a_trace(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The call under a transformation; without a limit of its own it is jax.jit's."""
        options = self._options
        if options.memory_limit is None and options.tensor_size_threshold is None and options.tensor_split_size is None:
            return self._plain(*args, **kwargs)
        leaves, key = self._signature(args, kwargs)
        known = self._traced.get(key)
        if known is None:
            known = self._trace_flat(leaves, args, kwargs)
            if not any(isinstance(c, jax.core.Tracer) for c in known[0].consts):
                self._traced[key] = known
        closed, out_tree = known
        return jax.tree.unflatten(out_tree, bind(closed, self._wishes, leaves))

    def _trace_flat(self, leaves: Sequence[Any], args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The function as a closed jaxpr of its flat arguments, and the tree of its results."""
        dynamic_args, dynamic_kwargs = self._dynamic(args, kwargs)
        tree = jax.tree.structure((dynamic_args, dynamic_kwargs))
        positions, _ = self._static
        trees = []

        def flat(*values: Any) -> list[Any]:
            given, named = jax.tree.unflatten(tree, values)
            rest = iter(given)
            everything = [args[k] if k in positions else next(rest) for k in range(len(args))]
            results, out_tree = jax.tree.flatten(self._fn(*everything, **{**kwargs, **named}))
            trees.append(out_tree)
            return results

        closed = jax.make_jaxpr(flat)(*(as_struct(_compat.typeof(x)) for x in leaves))
        return closed, trees[-1]

    def _dynamic(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments that are not static."""
        positions, names = self._static
        return (
            tuple(a for k, a in enumerate(args) if k not in positions),
            {k: v for k, v in kwargs.items() if k not in names},
        )

    def _signature(self, args: tuple, kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
        """Flat dynamic arguments, and what a plan is looked up by."""
        positions, names = self._static
        leaves, tree = jax.tree.flatten(self._dynamic(args, kwargs))
        static = (
            tuple((k, args[k]) for k in positions if k < len(args)),
            tuple((k, kwargs[k]) for k in sorted(names) if k in kwargs),
        )
        avals = tuple(_leaf_key(x) for x in leaves)
        key = (tree, avals, static, jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision)
        return leaves, key


class _Planned:
    """One signature's choice, ready to run.

    Attributes:
      program: the canonical program before any decision.
      choice: what the driver chose.
      jitted: the jax.jit function of this signature alone, where the program is used untouched.
    """

    def __init__(self, *, program: Program, choice: Choice, jitted: Any, out_tree: Any, count: int) -> None:
        self.program = program
        self.choice = choice
        self.jitted = jitted
        self.out_tree = out_tree
        self._count = count

    def call(self, leaves: Sequence[Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        if self.jitted is None:
            return self.run(leaves)
        token = _tracing.set(True)  # arguments that differ in what a plan does not depend on may trace again
        try:
            return self.jitted(*args, **kwargs)
        finally:
            _tracing.reset(token)

    def run(self, leaves: Sequence[Any]) -> Any:
        if len(leaves) != self._count:
            raise ExlaError(f"the call has {len(leaves)} array arguments, its trace had {self._count}")
        flat = self.choice.compiled(*self.choice.program.consts, *leaves)
        return jax.tree.unflatten(self.out_tree, flat)


class Lowered:
    """jax's `Lowered` of the unchanged function, whose `compile` obeys the cap; `exla.jit(f).lower(...)` returns it."""

    def __init__(self, planned: _Planned, function: JitFunction, args: tuple, kwargs: dict[str, Any]) -> None:
        self._planned = planned
        self._function = function
        self._arguments = (args, kwargs)

    def compile(self) -> Compiled:
        """What was chosen for this signature."""
        return Compiled(self._planned, self._function)

    def __getattr__(self, name: str) -> Any:
        args, kwargs = self._arguments
        return getattr(self._function._plain.lower(*args, **kwargs), name)


class Compiled:
    """What was chosen for one signature: called with the same arguments; otherwise jax's `Compiled` of it."""

    def __init__(self, planned: _Planned, function: JitFunction) -> None:
        self._planned = planned
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._planned.choice.untouched:
            return self._planned.choice.compiled(*args, **kwargs)
        leaves, _ = self._function._signature(args, kwargs)
        return self._planned.run(leaves)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._planned.choice.compiled, name)


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


def _guarded(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, refusing to be traced for a signature that nobody has planned."""

    @functools.wraps(fn)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not _tracing.get() and not jax.config.jax_disable_jit:
            raise _Unplanned
        return fn(*args, **kwargs)

    return guarded


def _leaf_key(x: Any) -> Any:
    """What of an argument a plan depends on: shape, dtype, weak type, placement of committed arrays."""
    if isinstance(x, jax.core.Tracer):
        return x.aval
    if isinstance(x, jax.Array):
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
