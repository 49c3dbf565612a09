"""The table of docs/rules.md: every replace rule, made from the registry.

python -m exla.report.rules > docs/rules.md
"""

from __future__ import annotations

from exla.ir.rewrites import REPLACE_RULES

HEADER = """\
# Replace rules

Made by `python -m exla.report.rules > docs/rules.md`; a test compares the two. `exla rules verify` checks what each
rule owes and prints the result.

A rule is looked for where a program exceeds its limit, and applied where it pays: a smaller projected peak, or less
predicted time. *Checked* rules compute at run time whether their cheap form may be used, and evaluate the original
equations where not. *Opt-in* rules change values by more than the order of sums, or can, and are used only where they
are asked for: `exla.jit(fn, rules=["softmax_by_hand"])`.

"""


def page() -> str:
    """The page as Markdown."""
    rows = ["| rule | rewrite | when | source |", "|---|---|---|---|"]
    discovered = []
    for name in REPLACE_RULES.in_order():
        rule = REPLACE_RULES.get(name)
        if name.startswith("discovered_"):
            discovered.append(f"- `{name}`: `{rule.rewrite}`")
            continue
        when = "opt-in" if rule.opt_in else "checked" if rule.checked else "always right"
        exact = ", keeps every bit" if rule.exact else ""
        where = {True: ", on CPUs", False: ", on GPUs and TPUs", None: ""}[rule.slow_top_k]
        rewrite = rule.rewrite.replace("|", "\\|")
        rows.append(f"| `{name}` | `{rewrite}` | {when}{exact}{where} | {rule.source} |")
    intro = "By `exla rules discover`; opt-in, by name or as `discovered_*`."
    return HEADER + "\n".join([*rows, "", "## Discovered", "", intro, "", *discovered, ""])


if __name__ == "__main__":
    print(page(), end="")
