"""Reading HLO modules: bytes or text in, a checked proto out.

    lowered = jax.jit(f).lower(x)
    module = parse_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    module.computations[-1].instructions[-1].opcode        # "add"

A module is a list of computations, callees before callers; a computation is a list of instructions, operands before
users. `--xla_dump_to` writes an `HloProto`, which holds a module; that is read too, and so is HLO text, which XLA's own
parser reads. Nothing is executed. Only what `hlo.proto` names is kept: no literals, no shardings.

A module that comes from here is whole: it has an entry computation, every computation has its root, and every operand
and called computation that is referred to is there. Anything else is an `HloError`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import DecodeError

from exla.cost_model.hlo_pb2 import HloComputationProto, HloModuleProto, HloProto
from exla.errors import HloError


def read_module(path: str | os.PathLike[str]) -> HloModuleProto:
    """Read a file that holds a serialised HloModuleProto or HloProto, or HLO text.

    Raises:
      HloError: if it holds none of them.
      OSError: if it cannot be read.
    """
    return parse_module(Path(path).read_bytes(), source=str(path))


def parse_module(data: bytes, *, source: str = "what was given") -> HloModuleProto:
    """Parse a serialised HloModuleProto or HloProto, or HLO text.

    Args:
      data: the bytes.
      source: what the bytes are called in an error.

    Raises:
      HloError: if they are none of these, or the module is not whole; the message says what is wrong.
    """
    wrong = []
    for parse in (HloModuleProto.FromString, _wrapped):
        try:
            module = parse(data)
        except DecodeError:
            continue
        faults = next(_faults(module), None)
        if faults is None:
            return module
        wrong.append((len(module.computations), faults))
    text = _as_text(data)
    if text is not None:
        return _parse_text(text, source)
    if not data:
        raise HloError(source, "it is empty")
    # Of the two readings, the one that found more is what was meant.
    raise HloError(source, max(wrong, key=lambda w: w[0])[1] if wrong else "it is neither a proto nor HLO text")


def entry_computation(module: HloModuleProto) -> HloComputationProto | None:
    """The computation where a module starts; None where it names none. Old modules name it, newer ones have its id."""
    for computation in module.computations:
        if module.entry_computation_id and computation.id == module.entry_computation_id:
            return computation
        if not module.entry_computation_id and computation.name and computation.name == module.entry_computation_name:
            return computation
    return None


def _wrapped(data: bytes) -> HloModuleProto:
    return HloProto.FromString(data).hlo_module


def _as_text(data: bytes) -> str | None:
    """The text of HLO text; None where this is something else."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.lstrip().startswith(("HloModule", "//")) and "ROOT" in text else None


def _parse_text(text: str, source: str) -> HloModuleProto:
    from exla import _compat  # a proto is read without JAX

    try:
        data = _compat.hlo_text_to_proto(text)
    except (RuntimeError, ValueError) as error:
        raise HloError(source, f"XLA cannot parse its text: {str(error).strip()}") from error
    return HloModuleProto.FromString(data)


def _faults(module: HloModuleProto) -> Iterator[str]:
    """What keeps a module from being whole."""
    if not module.computations:
        yield "it holds no computation"
        return
    if entry_computation(module) is None:
        yield f"its entry computation ({module.entry_computation_name or module.entry_computation_id!r}) is not in it"
    computations = {c.id for c in module.computations}
    if len(computations) != len(module.computations):
        yield "two of its computations have one id"
    for computation in module.computations:
        ids = {i.id for i in computation.instructions}
        where = f"computation {computation.name!r}"
        if len(ids) != len(computation.instructions):
            yield f"two instructions of {where} have one id"
        if computation.root_id not in ids:
            yield f"{where} has no root"
        for instruction in computation.instructions:
            what = f"instruction {instruction.name!r} of {where}"
            if not instruction.opcode:
                yield f"{what} has no opcode"
            if not ids.issuperset(instruction.operand_ids):
                yield f"an operand of {what} is not in it"
            if not computations.issuperset(instruction.called_computation_ids):
                yield f"{what} calls a computation that is not in the module"
