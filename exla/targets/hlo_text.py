"""Optimised HLO as text: compared as a whole or in parts, and how often its collectives run."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_COLLECTIVE = re.compile(
    r" (?:all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast)"
    r"(?:-start)?\("
)
_CALLED = re.compile(
    r"(?:body|condition|calls|to_apply|(?:branch|called|true|false)_computations?)=(?:\{([^}]*)\}|(%?[\w.\-]+))"
)
_SEALED = re.compile(
    r" = \(?\w+\[([\d,]*)\][^()]*\)? conditional\(.*branch_computations=\{([^}]*)\}"
    r".*op_name=\"[^\"]*exla_sealed\.(\d+)\.([\dx]*)/"
)
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_LOOP = re.compile(r" while\(.*?([\w.\-]+)\), condition=%?([\w.\-]+), body=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_BELOW = re.compile(r"^\s+ROOT .* compare\(%?([\w.\-]+), %?([\w.\-]+)\), direction=LT")
_ELEMENT = re.compile(r" get-tuple-element\(.*\), index=(\d+)")
_CONSTANT = re.compile(r" = [su]\d+\[\]\S* constant\((-?\d+)\)")
_COPIED = re.compile(r" (?:copy|bitcast|copy-start|copy-done)\(%?([\w.\-]+)\)")


@dataclass(frozen=True, kw_only=True)
class Collectives:
    """How often a program has its devices exchange data.

    Loops whose number of trips cannot be read count as one trip, and every branch of a conditional counts.

    Attributes:
      total: how often an operation exchanges something.
      in_loops: those of them on trips of loops.
      untold: those inside at least one loop whose number of trips cannot be read, at least two such loops, and so on.
    """

    total: int
    in_loops: int
    untold: tuple[int, ...] = ()

    def exceed(self, other: Collectives) -> bool:
        """Whether there are more of them than another program has, of any kind."""
        mine, others = ((c.total, c.in_loops, *c.untold) for c in (self, other))
        return any(a > b for a, b in itertools.zip_longest(mine, others, fillvalue=0))

    def __str__(self) -> str:
        untold = f", {self.untold[0]} on every trip of a loop of unknown length" if self.untold else ""
        return f"{self.total} times, {self.in_loops} of them in loops{untold}"


def collectives(text: str) -> Collectives:
    """Count how often the collectives of optimised HLO run: each as often as the loops around it turn.

    Args:
      text: of one program.
    """
    if not _COLLECTIVE.search(text):
        return Collectives(total=0, in_loops=0)
    found = _computations(text)
    names = {name: [_called(line) for line in lines.values()] for name, lines in found.items()}

    @cache
    def runs(name: str) -> Counter[tuple[bool, int]]:
        """(in a loop, in so many of unknown length) -> how often, for one run of a computation."""
        counts: Counter[tuple[bool, int]] = Counter()
        for line, called in zip(found[name].values(), names[name], strict=True):
            counts[False, 0] += bool(_COLLECTIVE.search(line))
            loops = " while(" in line
            trips = _trips(line, found[name], found) if loops else 1
            for (is_inside, untold), count in itertools.chain.from_iterable(
                runs(n).items() for n in called if n in found
            ):
                counts[is_inside or loops, untold + (trips is None)] += count * (1 if trips is None else trips)
        return counts

    below = {n for called in names.values() for group in called for n in group}
    counts: Counter[tuple[bool, int]] = sum((runs(n) for n in found if n not in below), Counter())
    deepest = max((untold for _, untold in counts), default=0)
    return Collectives(
        total=counts.total(),
        in_loops=sum(n for (is_inside, _), n in counts.items() if is_inside),
        untold=tuple(sum(n for (_, k), n in counts.items() if k >= least) for least in range(1, deepest + 1)),
    )


def _computations(text: str) -> dict[str, dict[str, str]]:
    """Name of a computation -> name of an instruction -> its line."""
    found: dict[str, dict[str, str]] = {}
    name = ""
    for line in text.splitlines():
        opened = _COMPUTATION.match(line)
        if opened is not None:
            name = opened[1]
            found[name] = {}
        instruction = _INSTRUCTION.match(line)
        if instruction is not None and name in found:
            found[name][instruction[1]] = line
    return found


def _called(line: str) -> list[str]:
    """The computations that an instruction runs."""
    if " async-done(" in line or " async-update(" in line:  # what async-start has begun
        return []
    return [n.strip("% ") for several, one in _CALLED.findall(line) for n in (several or one).split(",")]


def _trips(line: str, beside: dict[str, str], computations: dict[str, dict[str, str]]) -> int | None:
    """How often a loop turns: the compiler's word, else how far it counts, one by one; None where neither is there.

    Args:
      line: the loop's.
      beside: the instructions of its computation.
      computations: all of them.
    """
    said, loop = _TRIPS.search(line), _LOOP.search(line)
    if said is not None or loop is None:
        return int(said[1]) if said is not None else None
    condition = computations.get(loop[2], {})
    below = next(filter(None, map(_BELOW.match, condition.values())), None)
    counter, bound = (condition.get(name, "") for name in below.groups()) if below else ("", "")
    element, end = _ELEMENT.search(counter), _CONSTANT.search(bound)
    if element is None or end is None:
        return None
    _, _, operands = beside.get(loop[1], "").partition(" tuple(")
    first = dict(enumerate(re.findall(r"%([\w.\-]+)", operands.partition(")")[0]))).get(int(element[1]), "")
    while (copied := _COPIED.search(beside.get(first, ""))) is not None:
        first = copied[1]
    begin = _CONSTANT.search(beside.get(first, ""))
    return max(int(end[1]) - (int(begin[1]) if begin else 0), 0)


def sealed_alike(text: str) -> bool:
    """Whether optimised HLO computes each sealed value (`exla.passes.seal`) by the same code wherever it is cut alike.

    It does not where nothing of the kind is found, and where a compiler has moved something else into the branch.

    Args:
      text: of one program.
    """
    bodies: dict[str, list[str]] = {}
    found: dict[tuple[str, str], list[list[str]]] = {}
    name = ""
    for line in text.splitlines():
        opened = _COMPUTATION.match(line)
        if opened is not None:
            name = opened[1]
        bodies.setdefault(name, []).append(line)
        for result, called, number, shape in _SEALED.findall(line):
            if result.replace(",", "x") != shape:
                return False
            found.setdefault((number, shape), []).append([n.strip("% ") for n in called.split(",")])
    codes = [{tuple(_with_called(n, bodies) for n in called) for called in places} for places in found.values()]
    return bool(codes) and all(len(code) == 1 for code in codes)


def _with_called(name: str, bodies: dict[str, list[str]]) -> str:
    """The comparable text of a computation and of what it calls, in the order of the calls."""
    order, todo = list[str](), [name]
    while todo:
        one = todo.pop()
        if one in bodies and one not in order:
            order.append(one)
            todo += reversed([n for line in bodies[one] for n in _called(line)])
    return comparable("\n".join(line for one in order for line in bodies[one]))


def comparable(text: str) -> str:
    """HLO text without names: instructions are numbered as they appear, and where they came from is left out."""
    text = re.sub(r"^HloModule [^,\s]+", "HloModule", text)
    text = re.sub(r",? (metadata|frontend_attributes)=\{(?:[^{}\"]|\"(?:[^\"\\]|\\.)*\"|\{[^{}]*\})*\}", "", text)
    text = re.sub(r",? stack_frame_id=\d+", "", text)
    text = re.sub(r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d+ .*\n)*", "", text, flags=re.MULTILINE)
    text = re.sub(r"^((?:ENTRY )?%\S+) \(.*\) -> (.*) \{$", r"\1 -> \2 {", text, flags=re.MULTILINE)
    numbers: dict[str, int] = {}
    text = re.sub(r"%[\w.\-]+", lambda match: f"%{numbers.setdefault(match[0], len(numbers))}", text)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def hlo_hash(text: str) -> str:
    """A hash of what `comparable` leaves of optimised HLO: the same in every process and wherever the source lies."""
    return hashlib.sha256(comparable(text).encode()).hexdigest()
