"""Optimised HLO as text: compared as a whole or in parts, and its collectives counted."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_COLLECTIVE = re.compile(
    r" (?:all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast)"
    r"(?:-start)?\("
)
_CALLED = re.compile(r"(?:body|condition|calls|to_apply|branch_computations)=\{?((?:%?[\w.\-]+(?:, )?)+)\}?")
_SEALED = re.compile(
    r" = \(?\w+\[([\d,]*)\][^()]*\)? conditional\(.*branch_computations=\{([^}]*)\}"
    r".*op_name=\"[^\"]*exla_sealed\.(\d+)\.([\dx]*)/"
)
_LOOP = re.compile(r" while\(.*?(?:body|condition)=%?([\w.\-]+), (?:body|condition)=%?([\w.\-]+)")


@dataclass(frozen=True, kw_only=True)
class Collectives:
    """How many operations of a program exchange data between devices.

    Attributes:
      total: all of them.
      in_loops: those that run on every trip of a loop.
    """

    total: int
    in_loops: int


def collectives(text: str) -> Collectives:
    """Count the collectives of optimised HLO.

    Args:
      text: of one program.
    """
    counts: dict[str, int] = {}
    called: dict[str, set[str]] = {}
    looped: set[str] = set()
    name = ""
    for line in text.splitlines():
        opened = _COMPUTATION.match(line)
        if opened is not None:
            name = opened[1]
        counts[name] = counts.get(name, 0) + bool(_COLLECTIVE.search(line))
        names = {n.strip("% ") for group in _CALLED.findall(line) for n in group.split(",")}
        called.setdefault(name, set()).update(names)
        looped.update(n for pair in _LOOP.findall(line) for n in pair)
    reached, todo = set[str](), [n for n in looped if n in counts]
    while todo:
        one = todo.pop()
        if one not in reached:
            reached.add(one)
            todo += called.get(one, ())
    return Collectives(total=sum(counts.values()), in_loops=sum(counts.get(n, 0) for n in reached))


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
            groups = [group for line in bodies[one] for group in _CALLED.findall(line)]
            todo += [n.strip("% ") for group in reversed(groups) for n in group.split(",")]
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
