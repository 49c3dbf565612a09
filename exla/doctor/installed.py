"""What is installed, and whether it fits together.

What exla needs is read from pyproject.toml where it runs from its source, else from the metadata of the installed
distribution; what an extra such as `jax[tpu]` means, from the metadata of that package.
"""

from __future__ import annotations

import importlib.metadata
import platform
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from exla.doctor.finding import NOTE, OK, PROBLEM, Finding
from exla.version import __version__

EXTRAS = {
    "tpu": "run on TPUs",
    "cuda": "run on NVIDIA GPUs",
    "compilers": 'compile for TPUs and GPUs without one (target="tpu:v5e")',
    "campaign": "profile on many machines",
    "report": "plots",
    "train": "train and evaluate cost models",
    "completion": "shell completion (exla completion bash)",
    "demo": "the data of make demo",
    "dev": "run exla's own tests",
}
"""What each extra is for."""
PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def versions() -> Sequence[Finding]:
    """exla, Python and JAX; that JAX can be imported."""
    import jax
    import jaxlib

    place = Path(__file__).resolve().parents[1]
    needed, python = _declared()[0], platform.python_version()
    fits = needed.contains(python, prereleases=True)
    return (
        Finding(name="exla", status=OK, found=f"{__version__}, in {place}"),
        Finding(
            name="Python",
            status=OK if fits else PROBLEM,
            found=f"{python}, {platform.platform()}",
            next_step="" if fits else f"exla needs Python {needed}",
        ),
        Finding(name="JAX", status=OK, found=f"jax {jax.__version__}, jaxlib {jaxlib.__version__}"),
    )


def requirements() -> Sequence[Finding]:
    """Whether everything that exla cannot do without is there, in versions that fit."""
    _, needed, _ = _declared()
    of_jax = [Requirement(text) for text in _requires("jax")]
    absent, unfit = _amiss([*needed, *of_jax])
    if not absent and not unfit:
        return (
            Finding(name="requirements", status=OK, found=f"all {len(needed)} are installed, in versions that fit"),
        )
    return (
        Finding(
            name="requirements",
            status=PROBLEM,
            found="; ".join([*(f"{r} is not installed" for r in absent), *unfit]),
            next_step="pip install --upgrade " + " ".join(f'"{r}"' for r in needed if _amiss([r]) != ([], []))
            if _amiss(needed) != ([], [])
            else "pip install --upgrade jax",
        ),
    )


def extras() -> Sequence[Finding]:
    """Each optional extra: whether it is installed, and what it is for."""
    _, _, optional = _declared()
    return [_extra(name, needed) for name, needed in optional.items()]


def _extra(name: str, needed: Sequence[Requirement]) -> Finding:
    absent, unfit = _amiss(needed)
    label, use = f"extra {name}", EXTRAS.get(name, "")
    install = f'pip install "exla[{name}]"'
    if unfit:
        return Finding(
            name=label, status=PROBLEM, found="; ".join(unfit), next_step=f"pip install --upgrade: {install}"
        )
    if absent:
        listed = ", ".join(r.name for r in absent[:4]) + (f" and {len(absent) - 4} more" if len(absent) > 4 else "")
        return Finding(name=label, status=NOTE, found=f"missing {listed}: {use}", next_step=install)
    return Finding(name=label, status=OK, found=f"installed: {use}")


def _declared() -> tuple[SpecifierSet, list[Requirement], dict[str, list[Requirement]]]:
    """The Python that exla needs, its requirements, and those of each extra."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8")).get("project", {}) if PYPROJECT.is_file() else {}
    if project.get("name") == "exla":  # it may be that of a project which exla lies in
        optional = {k: [*map(Requirement, v)] for k, v in project["optional-dependencies"].items()}
        return SpecifierSet(project["requires-python"]), [*map(Requirement, project["dependencies"])], optional
    metadata = importlib.metadata.metadata("exla")
    found = [Requirement(text) for text in _requires("exla")]
    optional = {name: [*_of_extra(found, name)] for name in metadata.get_all("Provides-Extra") or ()}
    return SpecifierSet(metadata["Requires-Python"]), [r for r in found if _applies(r)], optional


def _amiss(needed: Sequence[Requirement]) -> tuple[list[Requirement], list[str]]:
    """What is not installed, and in words what is and does not fit; extras of a requirement are followed."""
    absent: list[Requirement] = []
    unfit: list[str] = []
    for requirement in (r for r in needed if _applies(r)):
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            absent.append(requirement)
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            unfit.append(f"{requirement.name} {version} is installed, and {requirement.specifier} is needed")
        below = [Requirement(text) for text in _requires(requirement.name)] if requirement.extras else []
        for extra in sorted(requirement.extras):
            more_absent, more_unfit = _amiss([*_of_extra(below, extra)])
            absent += more_absent
            unfit += more_unfit
    return absent, unfit


def _of_extra(found: Sequence[Requirement], extra: str) -> Iterator[Requirement]:
    """What an extra adds, without the marker that says so."""
    for requirement in found:
        if (
            requirement.marker is not None
            and not _applies(requirement)
            and requirement.marker.evaluate({"extra": extra})
        ):
            without = Requirement(str(requirement))
            without.marker = None
            yield without


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _requires(distribution: str) -> Sequence[str]:
    try:
        return importlib.metadata.requires(distribution) or ()
    except importlib.metadata.PackageNotFoundError:
        return ()
