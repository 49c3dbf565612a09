"""Rules that were discovered: read from `discovered.json`, which `exla rules discover` writes.

Each is two small graphs (`exla.rules.graphs`), and is checked before it is used. Most stay data: a "contraction", a
sum of products in another order, is what the reorder pass finds by itself, with the sizes at hand; a "degenerate"
pattern is one that programs hardly hold; and a pattern of more than three equations costs time in every compilation
and adds little.

All are used only where they are asked for, by name or as "discovered_*": equal over the integers is not equal in
floating point. (a + c) b is small where a is near -c, and a b + c b is then the difference of two large numbers;
e^a e^b can overflow where e^(a + b) does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exla.ir.rewrites import REPLACE_RULES, Example, ReplaceRule
from exla.rules.graphs import Graph, as_function

PATH = Path(__file__).with_suffix(".json")
SCHEMA_VERSION = 1
FAMILIES = ("contraction", "degenerate", "other")
REGISTERED = "other"
MOST_EQUATIONS = 3
SOURCE = "exla rules discover, after Jia et al., TASO, SOSP 2019"
NAMES = "abcdefgh"
EXAMPLE_SIZES = (6, 4, 5, 3, 2, 7)


def read(path: Path = PATH, *, whole: bool = False) -> dict[str, ReplaceRule]:
    """The rules of a file that the engine uses, by name; these are checked.

    Args:
      path: what `exla rules discover` wrote.
      whole: whether the graphs of all others are checked too; it takes ten times as long.

    Raises:
      ValueError: if the file is damaged; the message names it and what is wrong.
    """
    try:
        data = json.loads(path.read_text())
        return _rules(data, whole)
    except (OSError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; make it again with `exla rules discover`") from error


def _rules(data: Any, whole: bool) -> dict[str, ReplaceRule]:
    if not isinstance(data, Mapping) or not isinstance(data.get("rules"), list):
        raise ValueError("it is not an object with a list of rules")
    if data.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"its schema_version is {data.get('schema_version')!r}, not {SCHEMA_VERSION}")
    rules: dict[str, ReplaceRule] = {}
    for number, row in enumerate(data["rules"], 1):
        if not isinstance(row, Mapping):
            raise ValueError(f"rule {number} is not an object")
        name = row.get("name")
        if name != f"discovered_{number}":
            raise ValueError(f"rule {number} is named {name!r}, not 'discovered_{number}'")
        if row.get("family") not in FAMILIES:
            raise ValueError(f"{name}: family {row.get('family')!r} is none of {', '.join(FAMILIES)}")
        if row["family"] != REGISTERED and not whole:
            continue
        try:
            before, after = _sides(row)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        if row["family"] == REGISTERED and len(before.equations) <= MOST_EQUATIONS:
            rules[name] = _rule(before, after)
    return rules


def _sides(row: Mapping[str, Any]) -> tuple[Graph, Graph]:
    before, after = _side(row, "pattern"), _side(row, "replacement")
    if after.inputs != before.inputs:
        raise ValueError(f"the pattern has the inputs {before.inputs}, the replacement {after.inputs}")
    if after.output != before.output:
        raise ValueError(f"the pattern has the result axes {before.output!r}, the replacement {after.output!r}")
    return before, after


def _rule(before: Graph, after: Graph) -> ReplaceRule:
    pattern = as_function(before)
    sizes = dict(zip(before.sizes, EXAMPLE_SIZES, strict=False))
    return ReplaceRule(
        rewrite=f"{before} -> {after}",
        source=SOURCE,
        arguments={name: " ".join(axes) for name, axes in zip(NAMES, before.inputs, strict=False)},
        patterns=(pattern,),
        replacement=as_function(after),
        reassociates=True,
        opt_in=True,
        examples=(Example(fn=pattern, arguments=tuple(" ".join(str(sizes[a]) for a in x) for x in before.inputs)),),
    )


def _side(row: Mapping[str, Any], name: str) -> Graph:
    try:
        return Graph.from_json(row.get(name))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


for _name, _found in read().items():
    REPLACE_RULES.register(_name)(_found)
