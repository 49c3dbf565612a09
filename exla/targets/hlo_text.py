"""Optimised HLO as text: compared, and its collectives counted."""

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
