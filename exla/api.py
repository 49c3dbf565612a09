"""`exla.jit`: jax.jit with a hard memory cap.

    f = exla.jit(fn, memory_limit="512MiB")
    y = f(x)            # obeys the cap, or raises MemoryLimitError before anything runs
    print(f.plan(x))    # decisions and the four byte counts
    print(f.explain(x)) # what was split, what was left alone, and why

The first call with a new signature traces the function once, with jax.jit's own tracing, and lets the driver
choose. What was chosen is entered into a call cache like that of jax.jit (`_compat.dispatcher`), so that later calls
are as fast as jax.jit's, whether split or not. Only planned calls are entered: whatever differs from them in a way
that jax.jit's cache can tell apart comes back here. A program that obeys the cap as it is runs through the very
`jax.jit` function that would have run it without exla. There is one such function for each signature, and it refuses
to trace any other (`_Unplanned`).

Under a transformation (`jax.grad`, `jax.vmap`, an outer `jax.jit`) the call is one primitive that carries the original
program (`exla.call`).
"""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, SupportsIndex

import jax

from exla import _compat
from exla.call import Wishes, as_traced, bind, read
from exla.errors import ExlaWarning, MemoryLimitError
from exla.ir.program import Program, as_struct
from exla.observe import announce
from exla.options import Options
from exla.passes.replace import check_names
from exla.placement import Placement, committed, placement, target_of, whole, with_results_typed
from exla.planned import Lowered, Planned, Traced, check_attached, tracing
from exla.report.plan import Plan, explain_text
from exla.saved import SavedPlan
from exla.search.choice import Call, Choice
from exla.search.driver import decide, space_of
from exla.search.space import Space
from exla.strict import tolerate
from exla.targets.base import Target, find_target, place_all


class _Unplanned(Exception):
    """Raised where jax.jit traces a signature outside of planning: a bug in exla."""


class JitFunction:
    """A function compiled under a memory cap; made by `exla.jit`.

    Calls take and return what the wrapped function does. Instances are descriptors, so that methods work.
    """

    __slots__ = ("__call__", "__dict__", "__weakref__")  # a call goes to jaxlib without a Python function in between
    __call__: Callable[..., Any]

    def __init__(
        self,
        fn: Callable[..., Any],
        options: Options,
        jit_arguments: dict[str, Any],
        saved: SavedPlan | None = None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._options = options
        self._jit_arguments = jit_arguments
        self._saved = saved
        self._plain = jax.jit(fn, **jit_arguments)
        self._static = _static_parameters(fn, jit_arguments)
        self._wishes = Wishes(
            options=options,
            name=getattr(fn, "__name__", "function"),
            compiler_options=tuple(sorted((jit_arguments.get("compiler_options") or {}).items())),
        )
        self._planned: dict[Any, Planned] = {}
        self._refused: dict[Any, MemoryLimitError] = {}
        self._traced: dict[Any, Any] = {}
        self._lock = threading.RLock()
        self.__call__ = self._dispatcher()

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `exla.jit` that this function was made with: exla's options, resolved, and jax.jit's own."""
        return {**asdict(self._options), **self._jit_arguments}

    def _dispatcher(self) -> Callable[..., Any]:
        with tolerate("making a call cache"):
            return _compat.dispatcher(_guarded(self._fn), self._miss, *self._static)
        return lambda *args, **kwargs: self._miss(*args, **kwargs)[0]

    def _miss(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
        """Run a call that is not in the cache; returns (results, what to enter, whether to forget the entry)."""
        if not _compat.is_top_level():
            return self._inside_a_trace(args, kwargs), None, False
        if jax.config.jax_disable_jit:
            return self._fn(*args, **kwargs), None, False
        self._check_target()
        leaves, planned = self._find(args, kwargs)
        with _compat.checked_results(self._wishes.name):
            return planned.call(leaves, args, kwargs)

    def _check_target(self) -> None:
        """Refuse to run what can only be compiled here, before anything is planned."""
        name = self._options.target
        if name is not None:
            check_attached(find_target(name))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else BoundMethod(self, instance)

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
        _, planned = self._find(args, kwargs)
        return planned.plan()

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Say what was done about each big value, or why nothing was. Arguments as for `plan`."""
        return explain_text(self.plan(*args, **kwargs))

    def space(self, *args: Any, **kwargs: Any) -> Space:
        """What can be done to the program under the limit: every candidate, sampled, counted, in words.

        Arguments as for `plan`. Nothing is compiled.
        """
        leaves = self._signature(args, kwargs)[0]
        target = target_of(self._options.target, self._jit_arguments, leaves)
        return space_of(self._read(target, leaves, args, kwargs)[0], target, self._options)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """jax's `Traced` of the unchanged function; its `lower` plans, as `lower` does."""
        return Traced(self._plain.trace(*args, **kwargs), lambda: self.lower(*args, **kwargs))

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Plan, and return jax's `Lowered` of what was chosen; `compile` makes it a function of the same arguments."""
        planned = self._find(args, kwargs)[1]
        return Lowered(planned, lambda a, k: self._signature(a, k)[0], lambda: self._plain.lower(*args, **kwargs))

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the results."""
        return self._plain.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget all plans and compiled programs."""
        with self._lock:
            self._planned.clear()
            self._refused.clear()
            self._traced.clear()
            self._plain.clear_cache()
            self.__call__ = self._dispatcher()

    def _find(self, args: tuple, kwargs: dict[str, Any]) -> tuple[list[Any], Planned]:
        """Flat dynamic arguments and the plan of their signature, which is made where there is none."""
        try:
            leaves, key = self._signature(args, kwargs)
            planned = self._planned.get(key)
        except (TypeError, ValueError):
            self._plain.eval_shape(*args, **kwargs)  # what jax.jit does not take, it has the better message for
            raise
        return leaves, planned or self._plan(key, leaves, args, kwargs)

    def _plan(self, key: Any, leaves: Sequence[Any], args: tuple, kwargs: dict[str, Any]) -> Planned:
        with self._lock:
            if key in self._planned:
                return self._planned[key]
            if key in self._refused:
                raise copy.copy(self._refused[key])
            target = target_of(self._options.target, self._jit_arguments, leaves)
            call, jitted, out_tree, place = self._read(target, leaves, args, kwargs)
            try:
                choice = self._choose(call, target, place)
            except MemoryLimitError as error:
                if error.limit_bytes == self._options.memory_limit:  # what the device has may be more the next time
                    self._refused[key] = copy.copy(error)
                raise
            planned = Planned(
                name=self._wishes.name,
                call=call,
                choice=choice,
                target=target,
                options=self._options,
                jitted=jitted if choice.untouched and target.sharding() is None else None,
                out_tree=out_tree,
                place=place,
            )
            self._planned[key] = planned
            announce(planned.made())
            return planned

    def _read(
        self, target: Target, leaves: Sequence[Any], args: tuple, kwargs: dict[str, Any]
    ) -> tuple[Call, Any, Any, Placement]:
        """Trace a signature; returns the call, its jax.jit function, the tree of its results, and where it runs."""
        leaves, args, kwargs = self._on_target(target, leaves, args, kwargs)
        jitted = jax.jit(_guarded(self._fn), **self._placed_arguments(target, leaves))
        token = tracing.set(True)
        try:
            traced = jitted.trace(*args, **kwargs)
        finally:
            tracing.reset(token)
        infos = jax.tree.leaves(traced.args_info)
        out_tree = jax.tree.structure(traced.out_info)
        mesh = _compat.explicit_mesh()

        def compile_plain() -> Any:
            with _compat.under_mesh(mesh):
                return target.finish(traced.lower(), {})

        said = placement(self._jit_arguments, leaves, self._dynamic(args, kwargs), out_tree)
        place = with_results_typed(said, traced.jaxpr, compile_plain)
        place = replace(place, has_references=_compat.takes_references(traced.jaxpr))
        is_read = place.typed is None and not place.has_references
        with _compat.under_mesh(None):
            program = read(traced.jaxpr, target.platform) if is_read else as_traced(traced.jaxpr)

        def shrink(change: Callable[[Sequence[int]], tuple[int, ...]]) -> Program:
            return self._shrunk(change, leaves, args, kwargs, target.platform)

        call = Call(
            program=program,
            compile_plain=compile_plain,
            donated=tuple(k for k, info in enumerate(infos) if info.donated),
            compiler_options=self._jit_arguments.get("compiler_options") or {},
            arguments=place.planned if place.devices else None,
            results=place.results if place.devices else None,
            devices=max(len(place.devices), _compat.devices_of(program.jaxpr)),
            spread=place.spread,
            shrink=None if place.has_types else shrink,
        )
        return call, jitted, out_tree, place

    def _shrunk(
        self,
        change: Callable[[Sequence[int]], tuple[int, ...]],
        leaves: Sequence[Any],
        args: tuple,
        kwargs: dict[str, Any],
        platform: str,
    ) -> Program:
        """The program of the function at other shapes."""
        structs = [as_struct(_compat.typeof(x)) for x in leaves]
        changed = [jax.ShapeDtypeStruct(change(s.shape), s.dtype, weak_type=s.weak_type) for s in structs]
        return read(self._trace_flat(changed, args, kwargs)[0], platform)

    def _choose(self, call: Call, target: Target, place: Placement) -> Choice:
        with _compat.under_mesh(None):
            if self._saved is not None:
                return self._saved.replayed(call, target, self._options)
            if place.whole_because is not None:
                return whole(call, target, self._options, place)
            return decide(call, target, self._options)

    def _on_target(
        self, target: Target, leaves: Sequence[Any], args: tuple, kwargs: dict[str, Any]
    ) -> tuple[Sequence[Any], tuple, dict[str, Any]]:
        """The call's arguments as ShapeDtypeStructs on a device that is not JAX's default one.

        What lies on a device of another kind is taken for a value that lies nowhere yet (`target_of`).
        """
        said = any(self._jit_arguments.get(name) is not None for name in ("in_shardings", "device", "backend"))
        if said or target.sharding() is None:
            return leaves, args, kwargs
        places = [s if s is not None and all(map(target.has, s.device_set)) else None for s in map(committed, leaves)]
        structs = [as_struct(_compat.typeof(x), place) for x, place in zip(leaves, places, strict=True)]
        placed = place_all(target, structs)
        tree = jax.tree.structure(self._dynamic(args, kwargs))
        given, named = jax.tree.unflatten(tree, placed)
        positions, _ = self._static
        rest = iter(given)
        everything = tuple(args[k] if k in positions else next(rest) for k in range(len(args)))
        return placed, everything, {**kwargs, **named}

    def _placed_arguments(self, target: Target, leaves: Sequence[Any]) -> dict[str, Any]:
        """jax.jit's arguments; a function of no arrays is told by its results where it runs."""
        if leaves or target.sharding() is None or self._jit_arguments.get("out_shardings") is not None:
            return self._jit_arguments
        return {**self._jit_arguments, "out_shardings": target.sharding()}

    def _inside_a_trace(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The call under a transformation; without a limit of its own it is jax.jit's."""
        options = self._options
        if options.memory_limit is None and options.tensor_size_threshold is None and options.tensor_split_size is None:
            return self._plain(*args, **kwargs)
        leaves, key = self._signature(args, kwargs)
        if any(map(_compat.is_reference, leaves)):
            return self._with_references(args, kwargs)
        known = self._traced.get(key)
        if known is None:
            known = self._trace_flat(leaves, args, kwargs)
            if not any(isinstance(c, jax.core.Tracer) for c in known[0].consts):
                self._traced[key] = known
        closed, out_tree = known
        if _compat.takes_references(closed):
            return self._with_references(args, kwargs)
        return jax.tree.unflatten(out_tree, bind(closed, self._wishes, leaves))

    def _with_references(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The call under a transformation, of a function of its caller's references: jax.jit's."""
        warnings.warn(
            f"exla.jit({self._wishes.name}) reads or writes a jax.Ref of its caller's under a transformation: its "
            "memory_limit is not applied. Take and return arrays instead",
            ExlaWarning,
            stacklevel=4,
        )
        return self._plain(*args, **kwargs)

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
        return leaves, (tree, avals, static, _compat.trace_context())


class BoundMethod(functools.partial):  # a partial: the call needs no Python function
    """A method that `exla.jit` wraps, of one instance; what a `JitFunction` offers takes the other arguments."""

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        return self._ask("plan", args, kwargs)

    def space(self, *args: Any, **kwargs: Any) -> Space:
        return self._ask("space", args, kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        return self._ask("explain", args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        return self._ask("trace", args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        return self._ask("lower", args, kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask("eval_shape", args, kwargs)

    def _ask(self, what: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        return getattr(self.func, what)(*self.args, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.func, name)


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    memory_limit: SupportsIndex | str | None = None,
    search: str | None = None,
    target: str | None = None,
    numerics: str | None = None,
    tensor_size_threshold: SupportsIndex | str | None = None,
    tensor_split_size: SupportsIndex | str | None = None,
    records: str | None = None,
    verify: str | None = None,
    learn: str | None = None,
    rules: Sequence[str] | None = None,
    search_seconds: float | None = None,
    search_trials: int | None = None,
    **jit_arguments: Any,
) -> Any:
    """Compile a function so that it runs under a hard memory cap.

    Works as `jax.jit` does, as a decorator too, and takes its arguments (static_argnums, donate_argnums, …).

    Args:
      fn: a function that jax.jit can trace, unchanged.
      memory_limit: cap on arguments + outputs + temporaries - aliased, in bytes or as "512MiB"; None = what the
        device has.
      search: who chooses what is split: "analytic" by prediction, "heuristic" by the paper's rule, "off" for rewrites
        alone; "measured" by running candidates in processes of their own before the first call (also "evolutionary",
        "random", "exhaustive"; CPU only).
      target: what to compile for; None = the default device.
      numerics: "reassociate" may change the order of sums, "exact" may not change values beyond that either, "mixed"
        also lets float32 values wait as bfloat16 (off by at most 2**-8 of each) where nothing else obeys the limit.
      tensor_size_threshold: split values above this although they fit (the paper's knob).
      tensor_split_size: working set that no chunk may exceed (the paper's other knob).
      records: use of the tuning records, "append", "read" or "off".
      verify: what shows that the limit is obeyed: "compile", the compiler's count; "run", a run in a fresh process
        with made-up arguments besides (CPU only).
      learn: "online": what a search that measures finds moves the weights that search="learned" ranks by, on this
        machine; "off": nothing does.
      rules: names of replace rules that are in force only where they are asked for (`exla rules verify` lists them).
      search_seconds: what a search that measures may take, 60 by default.
      search_trials: how many candidates it may try beside the program as it is, 32 by default.
      **jit_arguments: every other argument of jax.jit, with its meaning. Where a call runs on several devices, the
        limit is that of each, and what is chosen has them exchange data no more often than the plain program.

    Returns:
      A function that takes and returns what `fn` does. It raises MemoryLimitError before anything runs where no
      candidate obeys the cap.

    Raises:
      OptionError: for an unknown value or unit.
      TypeError: for an unknown option; the message lists exla's and jax.jit's.

    Source: Artemev et al., Memory Safe Computations with XLA Compiler, NeurIPS 2022.
    """
    check_arguments_of_jit(jit_arguments)
    options = Options.resolve(
        memory_limit=memory_limit,
        search=search,
        target=target,
        numerics=numerics,
        tensor_size_threshold=tensor_size_threshold,
        tensor_split_size=tensor_split_size,
        records=records,
        verify=verify,
        learn=learn,
        rules=rules,
        search_seconds=search_seconds,
        search_trials=search_trials,
    )
    check_names(options.rules)
    if fn is None:
        return lambda f: JitFunction(f, options, jit_arguments)
    return JitFunction(fn, options, jit_arguments)


def check_arguments_of_jit(jit_arguments: dict[str, Any]) -> None:
    """Refuse an argument that neither exla.jit nor jax.jit has."""
    own = [p.name for p in inspect.signature(jit).parameters.values() if p.kind is p.KEYWORD_ONLY]
    of_jax = [p.name for p in inspect.signature(jax.jit).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in jit_arguments:
        if name not in of_jax:
            near = difflib.get_close_matches(name, [*own, *of_jax], n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise TypeError(
                f"exla.jit() got an unexpected keyword argument {name!r}{hint}; its own are {', '.join(own)}; "
                f"those of jax.jit are {', '.join(of_jax)}"
            )


def _guarded(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, refusing to be traced for a signature that nobody has planned."""

    @functools.wraps(fn)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not tracing.get() and not jax.config.jax_disable_jit:
            raise _Unplanned
        return fn(*args, **kwargs)

    return guarded


def _leaf_key(x: Any) -> Any:
    """What of an argument a plan depends on: shape, dtype, weak type, placement where it is committed."""
    return _compat.typeof(x), committed(x)


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
