"""Say what can be done to a function under a limit: how many candidates there are, and which, in words.

  exla search space kernels:smooth --shapes "f32[2000,16] f32[2000,16] f32[2000]" --memory-limit 4MiB --show 20

Nothing is compiled. Candidates come in the order of the walk: by rewrites, then the largest value, its longest axis,
and the largest chunks. A space of many candidates is not counted but estimated from random walks.

PROGRAM, --shapes and the options are those of `exla plan`.
"""

from __future__ import annotations

import argparse
import itertools
import json

from exla import api
from exla.commands.flags import add_program_arguments, at_least
from exla.commands.planning import quiet, tell
from exla.commands.program import is_script, read_subject, surroundings
from exla.failure import UsageError
from exla.passes.decisions import to_json
from exla.report.words import in_words
from exla.units import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_program_arguments(parser, script=False)
    add = parser.add_argument
    add("--show", type=at_least(0), default=10, metavar="COUNT", help="candidates to show (default: 10)")
    add("--count", type=at_least(1), default=1000, help="count one by one up to this many (default: 1000)")


def run(arguments: argparse.Namespace) -> int:
    """Print the space; the exit code."""
    return show(arguments, shown=arguments.show, counted=arguments.count)


def show(arguments: argparse.Namespace, *, shown: int, counted: int) -> int:
    """Print the size of the space and its first candidates; the exit code."""
    try:
        if is_script(arguments.program):
            raise UsageError(f"a space is of one function: write {arguments.program}:function, and --shapes")
        with surroundings(arguments), quiet(arguments.json):
            subject = read_subject(arguments)
            function = api.jit(subject.function, **subject.options)
            space = function.space(*subject.arguments.positional, **subject.arguments.keywords)
            size = space.size(counted)
            candidates = list(itertools.islice(space.all(), shown))
    except Exception as error:
        return tell(error, arguments)
    if arguments.json:
        print(json.dumps({"candidates": size.candidates, "exact": size.exact, "goal_bytes": space.goal.bytes}))
        for candidate in candidates:
            numbers = {"projected_bytes": candidate.peak.bytes, "predicted_s": candidate.seconds}
            print(json.dumps({"decisions": [to_json(d) for d in candidate.all_decisions], **numbers}))
        return 0
    print(f"{size} candidates within {format_bytes(space.goal.bytes)}, chunk sizes a factor of {space.ratio:g} apart")
    if candidates:
        print(f"the first {len(candidates)} of the walk, not the best:")
    for candidate, words in zip(candidates, in_words([c.all_decisions for c in candidates]), strict=True):
        said = "; ".join(words)
        print(f"  {format_bytes(candidate.peak.bytes):>10}  {candidate.seconds * 1e3:9.3g} ms predicted  {said}")
    return 0
