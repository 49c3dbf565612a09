"""Candidates in words, each told from the others that it is listed with.

    in_words([(Split(..., chunk=8),), (Split(..., chunk=4),)])  ->  [["split axis ... of 8"], ["split axis ... of 4"]]

A decision says what a reader needs (`str`). Where candidates of one list read the same and are not, say in how small
the values are that stay whole, the decisions that differ name what differs, and no more of it than is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from exla.passes.decisions import Decision, to_json
from exla.search.choice import PLAIN

SAID = {
    "growth.small_bytes": "values up to {} bytes stay whole",
    "small_bytes": "values up to {} bytes are computed before",
    "result": "result {}",
    "early": "the first {} readers read it as it was computed",
}
"""Field of a decision -> how its value is said; another field is said by its name."""
_LAST = "fingerprint"


def in_words(candidates: Sequence[Sequence[Decision]]) -> list[list[str]]:
    """Candidates in words.

    Args:
      candidates: those that are listed together.

    Returns:
      For each candidate a text for each decision, or PLAIN alone; those of different candidates differ.
    """
    texts = [[str(d) for d in decisions] or [PLAIN] for decisions in candidates]
    return told_apart(texts, [[to_json(d) for d in decisions] for decisions in candidates])


def told_apart(texts: Sequence[Sequence[str]], candidates: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[str]]:
    """Texts of candidates with what tells those apart that read the same.

    Args:
      texts: of each candidate, one for each decision.
      candidates: their decisions as plain data.
    """
    told = [list(words) for words in texts]
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, words in enumerate(told):
        alike[tuple(words)].append(index)
    for group in alike.values():
        flat = {i: [dict(_fields(decision)) for decision in candidates[i]] for i in group}
        different = {repr(fields) for fields in flat.values()}
        for place, name in _differing(list(flat.values())):
            if len({tuple(told[i]) for i in group}) == len(different):
                break
            for i in group:
                told[i][place] += f" ({_said(name, flat[i][place].get(name))})"
    return told


def numbered(words: Sequence[str]) -> str:
    """The decisions of one candidate for a cell of a table, a line for each."""
    return "\n".join(words if len(words) == 1 else (f"{k}. {text}" for k, text in enumerate(words, start=1)))


def _differing(group: Sequence[Sequence[Mapping[str, Any]]]) -> list[tuple[int, str]]:
    """(which decision, field) of what is not the same in all of a group; hashes last."""
    found = []
    for place, decisions in enumerate(zip(*group, strict=False)):
        names = dict.fromkeys(name for fields in decisions for name in fields)
        found += [(place, name) for name in names if len({repr(fields.get(name)) for fields in decisions}) > 1]
    return sorted(found, key=lambda at: at[1].endswith(_LAST))


def _fields(data: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers and texts of a decision, each with the names on the way to it."""
    if not isinstance(data, Mapping):
        yield name, data
        return
    for key, value in data.items():
        yield from _fields(value, f"{name}.{key}" if name else str(key))


def _said(name: str, value: Any) -> str:
    number = f"{value:,}" if type(value) is int else str(value)
    return SAID[name].format(number) if name in SAID else f"{name} {number}"
