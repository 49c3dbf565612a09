"""The program: the flat, canonical jaxpr of one call.

`trace` output is nested (a `jnp` function is a jit within the user's), spelled in several ways (`x**2` is
`integer_pow`, `jnp.square` is `square`) and holds dead code. `canonical` flattens all calls, gives one spelling
to one thing and drops what no output needs:

    program = canonical(jax.make_jaxpr(fn)(x))
    program.eqns[3], program.site(3), program.source(3)

Control flow (`scan`, `while`, `cond`) stays one equation, whose bodies are made canonical too. Constants that the
trace captured become leading inputs, so that a program is closed and its constants are counted as arguments.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from exla import _compat
from exla._compat import Literal
from exla.ir.aligned import bind_aligned, find_aligned
from exla.ir.convolutions import in_order
from exla.ir.explicit import forget
from exla.ir.factors import FACTOR_RULES, EquationContext, Factors, parse
from exla.ir.fingerprint import equation_fingerprint
from exla.ir.numbering import numbered, other_name, renamed
from exla.ir.primitives import ELEMENTWISE, STANDING, named

MOST_BODIES = 4096
"""Bodies of control flow of which the programs are kept while a plan is made."""
FAR_SMALLER = 16
"""What is so many times smaller than something that it is made of is kept, where it would be computed again."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place in a program: the equation's position and the fingerprint of the equation there."""

    position: int
    fingerprint: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A flat jaxpr without constants of its own.

    Attributes:
      jaxpr: the equations; its inputs are the captured constants, then the arguments.
      consts: values of the leading inputs.
    """

    jaxpr: Any
    consts: tuple[Any, ...] = ()

    @cached_property
    def eqns(self) -> Sequence[Any]:
        return self.jaxpr.eqns

    @cached_property
    def invars(self) -> Sequence[Any]:
        return self.jaxpr.invars

    @cached_property
    def outvars(self) -> Sequence[Any]:
        return self.jaxpr.outvars

    @cached_property
    def equation_count(self) -> int:
        """How many equations there are, those of bodies included."""
        inner = (program_of(body.jaxpr) for eqn in self.eqns for body in _compat.bodies(eqn))
        return len(self.eqns) + sum(body.equation_count for body in inner)

    @cached_property
    def operands(self) -> Sequence[Sequence[Any]]:
        """Per equation, its operands that are no literals."""
        return [variables(eqn.invars) for eqn in self.eqns]

    @cached_property
    def producers(self) -> dict[Any, int]:
        """Variable -> position of the equation that computes it; inputs are absent."""
        return {v: i for i, eqn in enumerate(self.eqns) for v in eqn.outvars if not _compat.is_drop(v)}

    @cached_property
    def consumers(self) -> dict[Any, list[tuple[int, int]]]:
        """Variable -> (position of equation, position among its operands) of every use."""
        uses: dict[Any, list[tuple[int, int]]] = {}
        for i, eqn in enumerate(self.eqns):
            for k, v in enumerate(eqn.invars):
                if not isinstance(v, Literal):
                    uses.setdefault(v, []).append((i, k))
        return uses

    @cached_property
    def arguments(self) -> Sequence[Any]:
        """The inputs that are read or returned; `jax.jit` drops the others, and none of them is counted."""
        returned = set(variables(self.outvars))
        return [v for v in self.invars if v in self.consumers or v in returned]

    @cached_property
    def known(self) -> dict[Any, Any]:
        """What passes have worked out about this program and ask for again and again."""
        return {}

    @cached_property
    def _contexts(self) -> dict[int, EquationContext]:
        return {}

    def context(self, position: int) -> EquationContext:
        """What a factor rule sees of the equation at `position`."""
        if position not in self._contexts:
            eqn = self.eqns[position]
            self._contexts[position] = EquationContext(
                primitive=eqn.primitive.name,
                params=eqn.params,
                operands=tuple(v.aval for v in eqn.invars),
                results=tuple(v.aval for v in eqn.outvars),
                bind=lambda *operands, **params: _compat.bind(eqn, *operands, **params),
            )
        return self._contexts[position]

    @cached_property
    def _factors(self) -> dict[int, Factors | None]:
        return {}

    def factors(self, position: int) -> Factors | None:
        """The factors of the equation at `position`, or None where its primitive has no rule."""
        if position not in self._factors:
            rule = FACTOR_RULES.find(self.eqns[position].primitive.name)
            if rule is None or self.eqns[position].effects:
                self._factors[position] = None
            else:
                context = self.context(position)
                self._factors[position] = parse(rule(context), context)
        return self._factors[position]

    def site(self, position: int) -> Site:
        """The site of the equation at `position`; decisions about it are offered with it, and replayed by it."""
        key = ("site", position)
        if key not in self.known:
            self.known[key] = Site(position=position, fingerprint=equation_fingerprint(self.eqns[position]))
        return self.known[key]

    def source(self, position: int) -> str:
        """The user's line of the equation at `position`."""
        return _compat.source_line(self.eqns[position])

    def origin(self, var: Any) -> tuple[str, str]:
        """(primitive, user's line) of what first computed a value; ("", "") for an input.

        An equation that stands for others has the origins of its results as a parameter, as a chunk loop has, or a body
        that computes them.
        """
        position = None if isinstance(var, Literal) else self.producers.get(var)
        if position is None:
            return ("", "")
        eqn = self.eqns[position]
        if "origins" in eqn.params:
            primitive, source = eqn.params["origins"][list(eqn.outvars).index(var)]
            return (primitive, source)
        own = (eqn.primitive.name, self.source(position))
        if eqn.primitive.name not in STANDING:
            return own
        (body,) = _compat.bodies(eqn)
        inside = program_of(body.jaxpr).origin(body.jaxpr.outvars[list(eqn.outvars).index(var)])
        return inside if inside[0] else own

    def describe(self, var: Any) -> str:
        """A value in words: its type, and the primitive that made it."""
        primitive, _ = self.origin(var)
        kind = var.aval.str_short(short_dtypes=True)
        given = "constant" if self.captures(var) else "argument"
        return f"{kind} from `{primitive}`" if primitive else f"{kind} {given}"

    def captures(self, var: Any) -> bool:
        """Whether a value is a constant that the function captures."""
        return var in self.invars[: len(self.consts)]


def value_bytes(var: Any) -> int:
    """Bytes of device memory that a value takes; abstract tokens have none, and what is in the host's memory."""
    aval = var.aval
    if not hasattr(aval, "shape") or _compat.is_on_host(aval):
        return 0
    return aval_bytes(aval)


def aval_bytes(aval: Any) -> int:
    """Bytes of an array that an abstract value describes."""
    return math.prod(aval.shape) * _compat.item_bytes(aval.dtype)


def is_complex(var: Any) -> bool:
    """Whether a value is of complex numbers."""
    return getattr(var.aval.dtype, "kind", "") == "c"


def trace_function(fn: Callable[..., Any], avals: Sequence[Any], consts: Sequence[Any] = ()) -> Program:
    """Trace a function of flat arguments into a program.

    Args:
      fn: takes one array per abstract value and returns a sequence of arrays.
      avals: abstract values of its arguments.
      consts: values of its first arguments, where they are constants of the program.

    Returns:
      The program; array constants that the trace captured come before `consts`.
    """
    jaxpr, captured = _compat.trace_flat(fn, avals)
    if jaxpr.constvars:
        jaxpr = _compat.constants_as_inputs(jaxpr)
    return Program(jaxpr=jaxpr, consts=(*captured, *consts))


def equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr and of every body in it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in _compat.inner_jaxprs(eqn):
            yield from equations(inner)


def as_struct(aval: Any, sharding: Any = None) -> jax.ShapeDtypeStruct:
    """The ShapeDtypeStruct of an abstract value, weak type kept."""
    weak_type = getattr(aval, "weak_type", False)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak_type, sharding=sharding)


def canonical(closed: Any, platform: str | None = None) -> Program:
    """Flatten and canonicalise a traced function.

    Args:
      closed: a ClosedJaxpr, as `jax.make_jaxpr` or `jax.jit(f).trace(x).jaxpr` gives.
      platform: JAX's name of what it will run on ("cpu", "cuda", "tpu"); None = the default device's.

    Returns:
      The program.
    """
    jaxpr = closed.jaxpr
    if _is_canonical(jaxpr) and _compat.is_under_no_mesh():
        inputs = _compat.constants_as_inputs(jaxpr)
        return live(_once(batched(Program(jaxpr=inputs, consts=tuple(closed.consts)))))
    inline = functools.partial(_inline, platform=platform or _compat.default_platform())

    def flat(*values: Any) -> list[Any]:
        return evaluate(jaxpr, values, inline)

    avals = [v.aval for v in (*jaxpr.constvars, *jaxpr.invars)]
    made = batched(trace_function(flat, avals, closed.consts))
    made = live(made if _compat.computes_again(jaxpr) else _once(made))
    return Program(jaxpr=_compat.without_dead_results(made.jaxpr), consts=made.consts)


def live(program: Program) -> Program:
    """A program without the equations that no output or effect needs."""
    needed = live_equations(program)
    if len(needed) == len(program.eqns):
        return program
    kept = program.jaxpr.replace(eqns=[program.eqns[i] for i in sorted(needed)])
    return Program(jaxpr=kept, consts=program.consts)


def _once(program: Program) -> Program:
    """A program that computes once what is far smaller than what it is made of.

    What is large is computed again for each that reads it, as loops of their own may be what makes it small; but the
    bandwidth that three passes of a smoother find among all distances takes no memory to keep. What `jax.checkpoint`
    computes again may be small beside what it is made of, and large all the same where many layers keep it.
    """
    first, _ = numbered(program)
    names: dict[Any, Any] = {}
    most: dict[Any, int] = {}  # bytes of the largest value that another is made of, of those that are computed again
    for eqn in program.eqns if first else ():
        again = [v for v in variables(eqn.invars) if v in first]
        largest = max((max(value_bytes(v), most.get(v, 0)) for v in again), default=0)
        made = [v for v in eqn.outvars if v in first]
        most.update(dict.fromkeys(made, largest))
        names.update((v, first[v]) for v in made if FAR_SMALLER * value_bytes(v) <= largest)
    if not names:
        return program
    eqns, outvars = [renamed(e, names) for e in program.eqns], [other_name(v, names) for v in program.outvars]
    jaxpr = _compat.with_equations(program.jaxpr, invars=program.jaxpr.invars, eqns=eqns, outvars=outvars)
    return Program(jaxpr=jaxpr, consts=program.consts)


def batched(program: Program) -> Program:
    """A program whose gathers and scatters are batched along what their indices count along."""
    known = {v: c for v, c in zip(program.invars, program.consts, strict=False) if _is_at_hand(c)}
    aligned = find_aligned(program.jaxpr, known)
    if not aligned:
        return program
    parts: dict[Any, list[Any]] = {}

    def step(eqn: Any, operands: list[Any]) -> list[Any]:
        found = aligned.get(id(eqn))
        if found is not None:
            return bind_aligned(eqn, operands, found, parts[eqn.invars[1]])
        if eqn.primitive.name == "concatenate":
            parts[eqn.outvars[0]] = operands
        return interpret(eqn, operands, step) if _compat.bodies(eqn) else as_it_is(eqn, operands)

    avals = [v.aval for v in program.invars]
    return trace_function(lambda *values: evaluate(program.jaxpr, values, step), avals, program.consts)


def _is_at_hand(constant: Any) -> bool:
    """Whether this process can read a constant's values."""
    return not isinstance(constant, jax.Array) or (
        not isinstance(constant, jax.core.Tracer) and constant.is_fully_addressable
    )


def body_program(closed: Any) -> Program | None:
    """The program of a control-flow body; None where it holds arrays of its own."""
    return None if closed.consts or closed.jaxpr.constvars else program_of(closed.jaxpr)


@functools.lru_cache(maxsize=MOST_BODIES)
def program_of(body: Any) -> Program:
    """The program of a body's jaxpr: the same for the same one, with what is known about it.

    Candidates share the bodies that none of their decisions has changed. `program_of.cache_clear()` lets go of them.
    """
    return Program(jaxpr=body)


def retrace(
    closed: Any,
    step: Callable[[Any, list[Any]], list[Any]] | None = None,
    *,
    avals: Sequence[Any] | None = None,
    before: Callable[[list[Any]], list[Any]] = list,
    after: Callable[[list[Any]], list[Any]] = list,
) -> Any:
    """The closed jaxpr that interpreting another one makes.

    Args:
      closed: the other one.
      step: evaluates one equation; None = as it is.
      avals: abstract values of the inputs, where they are others.
      before: inputs -> those of the other one.
      after: its results -> results.
    """

    def run(*values: Any) -> list[Any]:
        return after(evaluate(closed.jaxpr, [*closed.consts, *before(list(values))], step or as_it_is))

    given = [v.aval for v in closed.jaxpr.invars] if avals is None else avals
    return _compat.closed(*_compat.trace_flat(run, given))


def interpret(
    eqn: Any,
    operands: Sequence[Any],
    step: Callable[[Any, list[Any]], list[Any]],
    source: Any = None,
    hoists: bool = True,
) -> list[Any]:
    """Evaluate a control-flow equation whose bodies are interpreted with `step`.

    Args:
      eqn: the equation.
      operands: its operands.
      step: evaluates one equation.
      source: replaces its source line, where it is not None.
      hoists: whether the compiler may compute before a loop what is the same on all its turns.
    """
    bodies = _compat.bodies(eqn)
    if eqn.primitive.name == "shard_map":
        return _compat.map_over_shards(
            eqn, operands, lambda *shards: evaluate(bodies[0].jaxpr, shards, step), source=source
        )
    changed = [retrace(body, step) for body in bodies]
    given, params = _compat.with_constants_as_operands(eqn, changed, operands)
    return _compat.bind(eqn, *given, source=source, hoists=hoists, **params)


def live_equations(program: Program) -> set[int]:
    """Positions of the equations that an output or an effect needs."""
    needed = {v for v in program.outvars if not isinstance(v, Literal)}
    live = set()
    for i in range(len(program.eqns) - 1, -1, -1):
        eqn = program.eqns[i]
        if eqn.effects or any(v in needed for v in eqn.outvars):
            live.add(i)
            needed.update(v for v in eqn.invars if not isinstance(v, Literal))
    return live


def is_zero(program: Program, var: Any) -> bool:
    """Whether a value is zero everywhere."""
    while not isinstance(var, Literal):
        position = program.producers.get(var)
        if position is None or program.eqns[position].primitive.name not in (
            "broadcast_in_dim",
            "convert_element_type",
        ):
            return False
        var = program.eqns[position].invars[0]
    return bool(np.all(np.asarray(var.val) == 0))


def read_by(program: Program, positions: Iterable[int]) -> list[Any]:
    """What some equations read and do not compute themselves."""
    positions = list(positions)
    made = {v for at in positions for v in program.eqns[at].outvars}
    return list(dict.fromkeys(v for at in positions for v in program.operands[at] if v not in made))


def variables(atoms: Iterable[Any]) -> list[Any]:
    """Those of some operands or results that are no literals."""
    return [v for v in atoms if not isinstance(v, Literal)]


def as_it_is(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Evaluate an equation: the step of `evaluate` that changes nothing."""
    return _compat.bind(eqn, *operands)


def evaluate(
    jaxpr: Any,
    values: Sequence[Any],
    step: Callable[[Any, list[Any]], list[Any]],
) -> list[Any]:
    """Interpret a jaxpr.

    Args:
      jaxpr: the equations.
      values: one per constvar and invar.
      step: evaluates one equation on its operands.

    Returns:
      One value per output.
    """
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True))
    last = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if not isinstance(v, Literal)}
    keep = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    for i, eqn in enumerate(jaxpr.eqns):
        results = step(eqn, [v.val if isinstance(v, Literal) else env[v] for v in eqn.invars])
        env.update(zip(eqn.outvars, results, strict=True))
        for v in eqn.invars:
            if not isinstance(v, Literal) and last[v] == i and v not in keep:
                env.pop(v, None)
    return [v.val if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]


_FLAT = (ELEMENTWISE - {"integer_pow", "stop_gradient"}) | named("""
    reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin dot_general top_k gather iota
    broadcast_in_dim reshape squeeze transpose pad slice concatenate exla_unless
""")
"""Primitives that `_inline` binds again as they are, but for views that change nothing and for shardings."""


def _is_canonical(jaxpr: Any) -> bool:
    """Whether `_inline` would bind every equation as it is, so that nothing need be traced again.

    That is what a replacement is that was written with primitives. False where it is not seen at once.
    """
    return all(
        eqn.primitive.name in _FLAT
        and not eqn.effects
        and not any(name.endswith("sharding") and said is not None for name, said in eqn.params.items())
        and not (eqn.primitive.name in ("broadcast_in_dim", "reshape") and _is_same_shape(eqn))
        and not (eqn.primitive.name == "pad" and not any(map(any, eqn.params["padding_config"])))
        and not (eqn.primitive.name == "concatenate" and len(_parts(eqn, eqn.invars)) < max(len(eqn.invars), 2))
        and not (eqn.primitive.name == "reshape" and eqn.params["dimensions"] is not None)
        and all(not body.consts and _is_canonical(body.jaxpr) for body in _compat.bodies(eqn))
        for eqn in jaxpr.eqns
    ) and not _compat.has_meshes(jaxpr)


def _is_same_shape(eqn: Any) -> bool:
    return tuple(eqn.invars[0].aval.shape) == tuple(eqn.outvars[0].aval.shape)


def _parts(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Those operands of a concatenation that hold something of what it makes."""
    axis = eqn.params["dimension"]
    return [x for x, v in zip(operands, eqn.invars, strict=True) if v.aval.shape[axis] or not eqn.outvars[0].aval.size]


def _slice_from(x: Any, starts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """What a dynamic slice takes from a place that is known, moved inside."""
    firsts = [min(max(int(s), 0), n - size) for s, n, size in zip(starts, np.shape(x), sizes, strict=True)]
    return jax.lax.slice(x, firsts, [first + size for first, size in zip(firsts, sizes, strict=True)])


def _inline(eqn: Any, operands: list[Any], source: Any = None, platform: str = "cpu", varies: bool = True) -> list[Any]:
    """Evaluate one equation, calls flattened and spellings made canonical.

    Args:
      eqn: the equation.
      operands: its operands.
      source: replaces its source line, where it is not None.
      platform: JAX's name of what it will run on.
      varies: whether types say which axes of a mesh values vary over.
    """
    eqn, operands = _compat.over_auto_axes(eqn), [_compat.without_mesh(x) for x in operands]
    called = _compat.called_jaxpr(eqn)
    if called is not None:
        jaxpr, consts, positions = called
        if source is None and _compat.is_library_call(eqn):
            source = eqn.source_info
        with _compat.equation_context(eqn, source):
            values = [*consts, *(operands[k] for k in positions)]
            return evaluate(jaxpr, values, functools.partial(_inline, source=source, platform=platform, varies=varies))
    inline = functools.partial(_inline, source=source, platform=platform, varies=varies)
    if (computed := _compat.opened(eqn)) is not None:
        inside = functools.partial(_inline, source=source or eqn.source_info, platform=platform, varies=varies)
        with _compat.equation_context(eqn, source):
            return evaluate(computed.jaxpr, [*computed.consts, *operands], inside)
    branch = _compat.platform_branch(eqn, platform)
    if branch is not None:
        with _compat.equation_context(eqn, source):
            return evaluate(branch.jaxpr, [*branch.consts, *operands[1:]], inline)
    if eqn.primitive.name == "integer_pow" and eqn.params["y"] == 2:
        with _compat.equation_context(eqn, source):
            return [jax.lax.square(operands[0])]
    if eqn.primitive.name == "stop_gradient":
        return operands
    if not varies and (said := _compat.without_varying(eqn, operands)) is not None:
        return said
    if _compat.can_forget_varying(eqn):
        inside = functools.partial(inline, varies=False)
        return _compat.map_over_shards(
            eqn, operands, lambda *shards: evaluate(eqn.params["jaxpr"], shards, inside), source=source
        )
    if _compat.bodies(eqn):
        return interpret(eqn, operands, inline, source)
    if eqn.primitive.name == "reshape" and eqn.params.get("dimensions") is not None:
        with _compat.equation_context(eqn, source):
            return [jax.lax.transpose(operands[0], eqn.params["dimensions"]).reshape(eqn.outvars[0].aval.shape)]
    is_shape_change = eqn.primitive.name in ("broadcast_in_dim", "reshape") and eqn.params.get("dimensions") is None
    if is_shape_change and np.shape(operands[0]) == tuple(eqn.outvars[0].aval.shape):
        return operands
    if eqn.primitive.name == "pad" and not any(map(any, eqn.params["padding_config"])):
        return operands[:1]
    if eqn.primitive.name == "concatenate" and len(parts := _parts(eqn, operands)) < max(len(operands), 2):
        with _compat.equation_context(eqn, source):
            whole = jax.lax.concatenate(parts, eqn.params["dimension"]) if parts[1:] else parts[0]
            return [_compat.as_weak_as(whole, eqn.outvars[0].aval)]
    if eqn.primitive.name == "dynamic_slice" and all(isinstance(v, Literal) for v in eqn.invars[1:]):
        with _compat.equation_context(eqn, source):
            return [_slice_from(operands[0], [v.val for v in eqn.invars[1:]], eqn.params["slice_sizes"])]
    if (forgotten := forget(eqn, operands, source)) is not None:
        return forgotten
    if platform == "cpu" and (ordered := in_order(eqn, operands, source)) is not None:
        return ordered
    return _compat.bind(eqn, *operands, source=source, **_compat.without_shardings(eqn))
