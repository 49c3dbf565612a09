"""Optimised HLO as text, compared."""

from __future__ import annotations

import hashlib
import re


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
