"""Small graphs as data: what a discovered rule is kept as, and how it becomes a JAX function.

A graph is a few equations over arrays whose axes have names of one letter. `(A @ B) @ v` is

    Graph(
        inputs=("ij", "jk", "k"),
        equations=(
            Equation(op="dot", operands=(0, 1), axes="j"),
            Equation(op="dot", operands=(3, 2), axes="k"),
        ),
    )

Values are numbered: the inputs, then one per equation; the last is the output. Axes with one name are one axis, so that
an equation says by names what JAX says by position: `add` and `multiply` broadcast, `dot` multiplies and sums over
`axes`, and a transposition is a matter of the order in which the names are written. `output` is that order for the
result.

A graph checks itself, so that one which was read from a file is as good as one that was written here; nothing that is
read is executed. What it cannot say: diagonals, constants, axes of a size that no input has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

OPERANDS = {"add": 2, "multiply": 2, "dot": 2, "sum": 1, "broadcast": 1, "exp": 1, "log": 1}
"""Operation -> how many operands it has."""

WITH_AXES = ("dot", "sum", "broadcast")
"""Operations that name axes: those that are summed over, or those that are added."""

MOST_INPUTS = 8
MOST_EQUATIONS = 16
MOST_AXES = 6


@dataclass(frozen=True, kw_only=True)
class Equation:
    """One operation.

    Attributes:
      op: one of OPERANDS.
      operands: numbers of the values it reads.
      axes: names of the axes that it sums over or adds, in alphabetical order.
    """

    op: str
    operands: tuple[int, ...]
    axes: str = ""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A function of arrays, as data.

    Attributes:
      inputs: axes of each input, as "ij".
      equations: in the order in which they are evaluated.
      output: the axes of the result, in order.

    Raises:
      ValueError: if it is not a graph; the message names what is wrong.
    """

    inputs: tuple[str, ...]
    equations: tuple[Equation, ...]
    output: str

    def __post_init__(self) -> None:
        _check_types(self)
        if not 1 <= len(self.inputs) <= MOST_INPUTS:
            raise ValueError(f"a graph has 1 to {MOST_INPUTS} inputs, not {len(self.inputs)}")
        if not 1 <= len(self.equations) <= MOST_EQUATIONS:
            raise ValueError(f"a graph has 1 to {MOST_EQUATIONS} equations, not {len(self.equations)}")
        for n, axes in enumerate(self.inputs):
            if len(set(axes)) < len(axes) or not all("a" <= a <= "z" for a in axes):
                raise ValueError(f"input {n} has the axes {axes!r}; they must be different letters from a to z")
        if len(self.sizes) > MOST_AXES:
            raise ValueError(f"a graph has at most {MOST_AXES} axes, not {len(self.sizes)}: {self.sizes}")
        result = self.axes[-1]
        if sorted(self.output) != sorted(result):
            raise ValueError(f"output={self.output!r} is no order of the result's axes {result!r}")
        read = {k for equation in self.equations for k in equation.operands}
        for k in range(len(self.inputs), len(self.inputs) + len(self.equations) - 1):
            if k not in read:
                raise ValueError(f"value {k} (equation {k - len(self.inputs)}) is read by nothing")

    @property
    def sizes(self) -> str:
        """Names of all axes, in alphabetical order."""
        return "".join(sorted({a for axes in self.inputs for a in axes}))

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The axes of every value; those of a computed value in alphabetical order."""
        known = list(self.inputs)
        for position, equation in enumerate(self.equations):
            try:
                known.append(_result_axes(equation, known, self.sizes))
            except ValueError as error:
                raise ValueError(f"equation {position}: {error}") from None
        return tuple(known)

    def to_json(self) -> dict[str, Any]:
        """The graph as plain data."""
        equations = [[e.op, list(e.operands), e.axes] for e in self.equations]
        return {"inputs": list(self.inputs), "equations": equations, "output": self.output}

    @classmethod
    def from_json(cls, data: Any) -> Graph:
        """Read what `to_json` wrote.

        Raises:
          ValueError: if it is not a graph; the message names what is wrong.
        """
        if not isinstance(data, Mapping) or set(data) != {"inputs", "equations", "output"}:
            raise ValueError(f"a graph is an object of inputs, equations and output, not {_short(data)}")
        for name in ("inputs", "equations"):
            if not isinstance(data[name], list):
                raise ValueError(f"{name} must be a list, not {_short(data[name])}")
        equations = []
        for position, row in enumerate(data["equations"]):
            if not (isinstance(row, list) and len(row) == 3 and isinstance(row[1], list)):
                raise ValueError(f"equation {position} must be [op, [operands], axes], not {_short(row)}")
            equations.append(Equation(op=row[0], operands=tuple(row[1]), axes=row[2]))
        return cls(inputs=tuple(data["inputs"]), equations=tuple(equations), output=data["output"])

    def __str__(self) -> str:
        names = "ABCDEFGH"
        texts = [f"{names[n]}[{axes}]" if axes else names[n] for n, axes in enumerate(self.inputs)]
        for equation in self.equations:
            parts = [texts[k] for k in equation.operands]
            signs = {"add": " + ", "multiply": " * ", "dot": " * "}
            inner = signs.get(equation.op, "").join(parts)
            if equation.op in ("sum", "dot"):
                texts.append(f"sum_{equation.axes}({inner})")
            elif equation.op == "broadcast":
                texts.append(f"broadcast_{equation.axes}({inner})")
            else:
                texts.append(f"{equation.op}({inner})" if equation.op in ("exp", "log") else f"({inner})")
        return texts[-1]


def as_function(graph: Graph) -> Callable[..., Any]:
    """The JAX function that a graph stands for: one array per input, their axes in the graph's order."""

    def function(*arrays: Any) -> Any:
        sizes = sizes_of(graph.inputs, [x.shape for x in arrays])
        values = [(x, axes) for x, axes in zip(arrays, graph.inputs, strict=True)]
        for equation in graph.equations:
            values.append(_apply(equation, [values[k] for k in equation.operands], sizes))
        return _ordered(*values[-1], graph.output)

    return function


def sizes_of(inputs: Sequence[str], shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Axis name -> size.

    Raises:
      ValueError: if the shapes are not those of such inputs, or give one axis two sizes.
    """
    sizes: dict[str, int] = {}
    for axes, shape in zip(inputs, shapes, strict=True):
        if len(axes) != len(shape):
            raise ValueError(f"an input of axes {axes!r} has the shape {tuple(shape)}")
        for name, size in zip(axes, shape, strict=True):
            if sizes.setdefault(name, size) != size:
                raise ValueError(f"axis {name} has the sizes {sizes[name]} and {size}")
    return sizes


def _apply(equation: Equation, operands: Sequence[tuple[Any, str]], sizes: Mapping[str, int]) -> tuple[Any, str]:
    x, axes = operands[0]
    if equation.op in ("exp", "log"):
        return (jnp.exp(x) if equation.op == "exp" else jnp.log(x)), axes
    if equation.op == "sum":
        positions = tuple(axes.index(a) for a in equation.axes)
        return jnp.sum(x, axis=positions), "".join(a for a in axes if a not in equation.axes)
    if equation.op == "broadcast":
        wanted = "".join(sorted({*axes, *equation.axes}))
        return _broadcast(x, axes, wanted, sizes), wanted
    y, others = operands[1]
    if equation.op == "dot":
        return _dot(x, axes, y, others, equation.axes)
    wide, narrow = (axes, others) if len(axes) >= len(others) else (others, axes)
    wanted = wide + "".join(a for a in narrow if a not in wide)
    x, y = _broadcast(x, axes, wanted, sizes), _broadcast(y, others, wanted, sizes)
    return (jnp.add(x, y) if equation.op == "add" else jnp.multiply(x, y)), wanted


def _dot(x: Any, axes: str, y: Any, others: str, summed: str) -> tuple[Any, str]:
    batch = [a for a in axes if a in others and a not in summed]
    contract = tuple(tuple(names.index(a) for a in summed) for names in (axes, others))
    batches = tuple(tuple(names.index(a) for a in batch) for names in (axes, others))
    free = [a for names in (axes, others) for a in names if a not in batch and a not in summed]
    return lax.dot_general(x, y, (contract, batches)), "".join([*batch, *free])


def _broadcast(x: Any, axes: str, wanted: str, sizes: Mapping[str, int]) -> Any:
    if axes == wanted:
        return x
    present = [a for a in wanted if a in axes]
    x = _ordered(x, axes, "".join(present))
    return lax.broadcast_in_dim(x, [sizes[a] for a in wanted], [wanted.index(a) for a in present])


def _ordered(x: Any, axes: str, wanted: str) -> Any:
    return x if axes == wanted else jax.lax.transpose(x, [axes.index(a) for a in wanted])


def _result_axes(equation: Equation, known: Sequence[str], sizes: str) -> str:
    op, named = equation.op, equation.axes
    if op not in OPERANDS:
        raise ValueError(f"unknown operation {op!r}; there are: {', '.join(OPERANDS)}")
    if len(equation.operands) != OPERANDS[op]:
        raise ValueError(f"{op} has {OPERANDS[op]} operands, not {len(equation.operands)}")
    for k in equation.operands:
        if not 0 <= k < len(known):
            raise ValueError(f"operand {k} is out of range: {len(known)} values come before it")
    if (op in WITH_AXES) != bool(named):
        raise ValueError(f"{op} {'names no axes' if op in WITH_AXES else 'takes no axes, but names ' + repr(named)}")
    if list(named) != sorted(set(named)):
        raise ValueError(f"the axes {named!r} of {op} are not different and in alphabetical order")
    operands = [set(known[k]) for k in equation.operands]
    axes = set.union(*operands)
    if op == "broadcast":
        if not set(named) <= set(sizes) - axes:
            raise ValueError(f"broadcast adds {named!r} to {sorted(axes)}; they must be new, and some input's")
        return "".join(sorted(axes | set(named)))
    if not set(named) <= set.intersection(*operands):
        raise ValueError(f"{op} sums over {named!r}, which not every operand has")
    return "".join(sorted(axes - set(named)))


def _check_types(graph: Graph) -> None:
    if not all(isinstance(axes, str) for axes in (*graph.inputs, graph.output)):
        raise ValueError("the axes of inputs and of the output must be texts")
    for position, equation in enumerate(graph.equations):
        if not (isinstance(equation.op, str) and isinstance(equation.axes, str)):
            raise ValueError(f"equation {position}: the operation and its axes must be texts")
        if not all(isinstance(k, int) and not isinstance(k, bool) for k in equation.operands):
            raise ValueError(f"equation {position}: operands must be numbers of values")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
