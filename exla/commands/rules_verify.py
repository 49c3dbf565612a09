"""Check what every replace rule owes, and print the table.

Each rule is looked for in its examples, plain and vmapped, and in its lookalikes; the rewritten examples are compared
with the plain ones on small integers in float64, on random numbers in float32, and with infinities and NaN among them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from exla.commands.flags import at_least
from exla.console import to_output
from exla.failure import UsageError, not_done

KINDS = ("found", "equal", "not finite", "idempotent", "lookalike")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="rules to check (default: all)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the random arguments (default: 0)")
    parser.add_argument("--json", action="store_true", help="print the obligations as JSON, one line each")


def run(arguments: argparse.Namespace) -> int:
    """Verify the rules; 0 if all obligations are kept."""
    from exla.ir.rewrites import REPLACE_RULES
    from exla.passes.obligations import verify
    from exla.rules.replace import discovered

    with not_done(ValueError):
        discovered.read(whole=True)
    unknown = [n for n in arguments.names if n not in REPLACE_RULES]
    if unknown:
        raise UsageError(f"no replace rule named {', '.join(unknown)}; there are: {', '.join(REPLACE_RULES)}")
    names = arguments.names or REPLACE_RULES.in_order()
    errors = Console(stderr=True)
    table = Table(title="What the replace rules owe: kept of all", title_justify="left")
    for column in ("rule", "rewrite", *KINDS, "seconds"):
        table.add_column(column, overflow="fold")
    broken = []
    for name in track(names, "verifying", console=errors, disable=not errors.is_terminal):
        start = time.perf_counter()
        found = verify(name, arguments.seed)
        broken += [o for o in found if not o.holds]
        if arguments.json:
            for obligation in found:
                print(json.dumps(asdict(obligation)))
            continue
        counts = []
        for kind in KINDS:
            all_of_kind = [o.holds for o in found if o.kind == kind]
            counts.append(f"{sum(all_of_kind)}/{len(all_of_kind)}" if all_of_kind else "")
        rule = REPLACE_RULES.get(name)
        label = f"{name} (opt-in)" if rule.opt_in else name
        table.add_row(label, escape(rule.rewrite), *counts, f"{time.perf_counter() - start:.1f}")
    if not arguments.json:
        to_output().print(table)
    for o in broken:
        print(f"BROKEN {o.rule}: {o.kind}, {o.about} {o.detail}", file=sys.stderr)
    return 1 if broken else 0
