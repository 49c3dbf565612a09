"""Plans on disk: what was decided for one signature, as JSON, to be replayed on another machine.

    exla.save(compiled, "attention.plan.json")
    compiled = exla.load("attention.plan.json", attention, arguments)

A plan holds decisions and what they were made for, nothing that runs. Loading one traces the function again, replays
the decisions, compiles, and counts: a plan that does not fit the program, or does not obey the limit there, is an
error. A file is trusted with nothing else, unless the caller vouches for the executable beside it (`exla.executable`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from exla.errors import PlanError
from exla.executable import Executable, file_of, read_executable, with_executable, write_executable
from exla.observe import Made
from exla.options import Options
from exla.passes.decisions import Decision, from_json
from exla.planned import Compiled
from exla.search.choice import Call, Choice, describe
from exla.search.driver import follow
from exla.search.plan_file import FORMAT, KEPT, weak_types, write_plan
from exla.targets.base import Target
from exla.targets.hlo_text import hlo_hash

MUST_AGREE = ("program", "arguments")
"""Parts of a plan's origin without which its decisions mean nothing."""
MOST_NAMED = 3
"""Arguments that an error names."""
MOST_SHOWN = 200
"""Characters of one, or of all where they cannot be told one by one."""


@dataclass(frozen=True, kw_only=True)
class SavedPlan:
    """A plan as it was read.

    Attributes:
      decisions: what to replay.
      options: exla's options under which it was made.
      origin: what it was made for, by name: program, arguments, target, device, versions.
      weak_types: which inputs of the program were weakly typed; None where the plan does not say.
      hlo_hash: of the optimised HLO, without source lines.
      path: where it was read.
      executable: what it says of the executable beside it; None where it was saved without.
      trusted: whether that executable may run.
    """

    decisions: tuple[Decision, ...]
    options: Mapping[str, Any]
    origin: Mapping[str, str]
    weak_types: Sequence[int] | None
    hlo_hash: str
    path: str
    executable: Executable | None = None
    trusted: bool = False

    def replayed(self, call: Call, target: Target, options: Options) -> Choice:
        """Compile what was decided, or take the executable beside it where that is trusted, and count it.

        Raises:
          PlanError: if it is of other arguments or another program.
          ReplayMiss, MemoryLimitError: as `exla.search.driver.follow`.
        """
        self.check(call, target)

        def compile_anew() -> Choice:
            return follow(call, target, options, self.decisions)

        if not self.trusted:
            return compile_anew()
        found = describe(call, target)
        differs = {k: (self.origin.get(k, ""), v) for k, v in found.items() if self.origin.get(k) != v}
        return with_executable(self.executable, Path(self.path), differs, compile_anew)

    def check(self, call: Call, target: Target) -> None:
        """Compare what the plan was made for with what it was loaded for.

        Raises:
          PlanError: if it is of other arguments or another program.
        """
        found = describe(call, target)
        if any(self.origin[name] != found[name] for name in MUST_AGREE):
            differs = self._other_arguments(call, found["arguments"])
            if differs:
                raise PlanError(f"{self.path} was made for other arguments: {differs}; plan anew with exla.compile")
            raise PlanError(
                f"{self.path} was made for another program: its equations are not those of this function; plan anew "
                "with exla.compile"
            )

    def _other_arguments(self, call: Call, here: str) -> str:
        """Which arguments differ, counted from 0 as they are flattened, and how; "" where none does."""
        there, now, first = self.origin["arguments"], weak_types(call), len(call.program.consts)
        before, after = _types(there, now if self.weak_types is None else self.weak_types), _types(here, now)
        pairs = zip(before, after, strict=True) if len(before) == len(after) == len(call.program.invars) else ()
        differ = [
            f"{'argument' if k >= first else 'constant'} {k - first if k >= first else k} is {a} there, {b} here"
            for k, (a, b) in enumerate(pairs)
            if a != b
        ]
        if not differ and there != here:
            return f"{there[:MOST_SHOWN]} there, {here[:MOST_SHOWN]} here"
        more = [f"and {len(differ) - MOST_NAMED} more"] if differ[MOST_NAMED:] else []
        return "; ".join([*differ[:MOST_NAMED], *more])


def _types(arguments: str, weak: Sequence[int]) -> list[str]:
    """The type of each argument in a description of all, with what that does not say."""
    types = [t[:MOST_SHOWN] for t in arguments.partition(" donated ")[0].split(" ")]
    return [f"{t} (weakly typed, as Python numbers are)" if k in weak else t for k, t in enumerate(types)]


def save(compiled: Compiled, path: str | os.PathLike[str], *, executable: bool = False) -> None:
    """Write what was decided for a compiled function, to be loaded by `exla.load`.

    Args:
      compiled: what `exla.compile(...)` or `exla.jit(f).lower(...).compile()` returned.
      path: the file, which is written whole or not at all.
      executable: whether to keep, in a file beside it, what the compiler made, too: it is compiled once more for that.

    Raises:
      ExlaError: if there is no executable to keep: of a device that is not attached, or of a function that calls back
        into Python.
    """
    if not isinstance(compiled, Compiled):
        raise TypeError(
            "exla.save(compiled, path) takes what exla.compile(...) or exla.jit(f).lower(...).compile() returned, "
            f"not {type(compiled).__name__}"
        )
    save_made(compiled.planned.made(), path, executable=executable)


def save_made(made: Made, path: str | os.PathLike[str], *, executable: bool = False) -> Mapping[str, Path]:
    """Write a plan that was announced (`exla.observe`); only that of a call can be loaded, not a derived one.

    Args:
      made: the plan.
      path: the file, which is written whole or not at all.
      executable: as for `save`.

    Returns:
      What was written: the file of the "plan", and of the "executable" where there is one.

    Raises:
      ExlaError: as `save`.
    """
    file = Path(path)
    if not file.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(file.parent)!r} to write {file.name!r} into")
    choice = made.choice
    beside = {"executable": asdict(write_executable(made, file))} if executable else {}
    write_plan(
        file,
        call=made.call,
        target=made.target,
        options=made.options,
        limit_bytes=choice.limit_bytes,
        decisions=choice.decisions,
        projected_bytes=choice.peak.bytes,
        compiled_bytes=choice.compiled_bytes.total,
        hlo_hash=hlo_hash(choice.compiled.as_text()),
        **beside,
    )
    return {"plan": file, **({"executable": file_of(file)} if executable else {})}


def read_plan(path: str | os.PathLike[str], *, trusted: bool = False) -> SavedPlan:
    """Read a plan.

    Args:
      path: what `save` wrote.
      trusted: whether the executable beside it may run.

    Raises:
      PlanError: if it is not there, not JSON, of another format, or lacks something.
    """
    try:
        row = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PlanError(f"{path} cannot be read as a plan: {error}") from error
    if not isinstance(row, dict) or row.get("exla_plan") != FORMAT:
        found = row.get("exla_plan") if isinstance(row, dict) else None
        raise PlanError(f"{path} is no plan of format {FORMAT} (its format: {found!r}); exla.save writes one")
    origin, options, decisions = row.get("origin"), row.get("options"), row.get("decisions")
    if not (
        isinstance(origin, dict)
        and all(isinstance(origin.get(name), str) for name in MUST_AGREE)
        and isinstance(options, dict)
        and set(options) == set(KEPT)
        and isinstance(decisions, list)
    ):
        raise PlanError(f"{path} is incomplete: it needs origin, options ({', '.join(KEPT)}) and decisions")
    try:
        replayed = tuple(from_json(d) for d in decisions)
    except ValueError as error:
        raise PlanError(f"{path} holds what is no decision: {error}") from error
    weak = row.get("weak_types")
    return SavedPlan(
        decisions=replayed,
        options=options,
        origin=origin,
        weak_types=weak if isinstance(weak, list) and all(type(k) is int for k in weak) else None,
        hlo_hash=str(row.get("hlo_hash", "")),
        path=str(path),
        executable=read_executable(row.get("executable")),
        trusted=trusted,
    )
