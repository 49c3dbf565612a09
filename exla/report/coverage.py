"""The table of docs/coverage.md: what exla knows about each primitive, made from the registries.

python -m exla.report.coverage > docs/coverage.md
"""

from __future__ import annotations

import inspect

from exla._compat import INLINED_CALLS
from exla.ir.factors import BARRIERS, FACTOR_RULES

HEADER = """\
# Coverage

Made by `python -m exla.report.coverage > docs/coverage.md`; a test compares the two.

A primitive with a factor rule can be cut along the axes that its rule names. Axes are written as in `einsum`: one name
per axis, `_` for an axis that stays whole, `(a b)` for an axis that is made of two. Values are not split across a
barrier. A primitive in neither table is a barrier as well.

"""


def coverage() -> str:
    """The page as Markdown."""
    rules: dict[str, list[str]] = {}
    for name in FACTOR_RULES:
        rule = FACTOR_RULES.get(name)
        module = inspect.getmodule(rule)
        family = module.__name__.rpartition(".")[2] if module else ""
        first = (inspect.getdoc(rule) or "").partition("\n")[0].replace("|", "\\|")
        rules.setdefault(f"{family} | {first}", []).append(name)
    barriers: dict[str, list[str]] = {}
    for name in BARRIERS:
        barriers.setdefault(BARRIERS.get(name), []).append(name)
    lines = [f"## Factor rules ({len(FACTOR_RULES)} primitives)", "", "| family | rule | primitives |", "|---|---|---|"]
    lines += [f"| {rule} | {_listed(names)} |" for rule, names in sorted(rules.items())]
    lines += ["", f"## Barriers ({len(BARRIERS)} primitives)", "", "| why | primitives |", "|---|---|"]
    lines += [f"| {why} | {_listed(names)} |" for why, names in sorted(barriers.items())]
    lines += ["", "## Flattened before anything is decided", "", _listed(sorted(INLINED_CALLS)), ""]
    return HEADER + "\n".join(lines)


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(coverage(), end="")
