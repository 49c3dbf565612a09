"""The house: which package may import which, and what only one file may do."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("exla", "exla/cost_model", "exla/datasets", "exla/training")  # `rglob` follows no links
SOURCES = sorted({path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")})

ALLOWED = {
    "exla._compat": set(),
    "exla.errors": set(),
    "exla.units": {"exla.errors"},
    "exla.version": set(),
    "exla.console": set(),
    "exla.failure": {"exla.errors"},
    "exla.strict": {"exla.errors"},
    "exla.registry": set(),
    "exla.options": {"exla.errors", "exla.targets", "exla.units"},
    "exla.scratch": set(),
    "exla.ir": {"exla._compat", "exla.errors", "exla.registry", "exla.scratch"},
    "exla.rules": {"exla._compat", "exla.errors", "exla.registry", "exla.ir"},
    "exla.passes": {"exla._compat", "exla.errors", "exla.registry", "exla.ir", "exla.rules"},
    "exla.targets": {"exla._compat", "exla.errors", "exla.registry", "exla.scratch"},
    "exla.search": {
        *("exla._compat", "exla.errors", "exla.registry", "exla.version", "exla.options", "exla.strict", "exla.units"),
        *("exla.ir", "exla.passes", "exla.targets"),
    },
    "exla.observe": {"exla.options", "exla.search", "exla.targets"},
    "exla.ahead": {"exla.api", "exla.errors", "exla.options", "exla.passes", "exla.planned", "exla.saved"},
    "exla.call": {
        *("exla._compat", "exla.errors", "exla.observe", "exla.options", "exla.strict"),
        *("exla.ir", "exla.passes", "exla.targets", "exla.search"),
    },
    "exla.placement": {"exla.errors", "exla.options", "exla.units", "exla.ir", "exla.search", "exla.targets"},
    "exla.overrun": {"exla.errors", "exla.strict", "exla.units"},
    "exla.planned": {
        *("exla._compat", "exla.errors", "exla.observe", "exla.options", "exla.overrun", "exla.placement"),
        *("exla.strict", "exla.units", "exla.report", "exla.search", "exla.targets"),
    },
    "exla.executable": {"exla._compat", "exla.errors", "exla.observe", "exla.search"},
    "exla.saved": {
        *("exla.errors", "exla.executable", "exla.observe", "exla.options", "exla.planned", "exla.version"),
        *("exla.passes", "exla.search", "exla.targets"),
    },
    "exla.report": {
        "exla._compat",
        "exla.errors",
        "exla.units",
        "exla.ir",
        "exla.passes",
        "exla.search",
        "exla.targets",
    },
    "exla.doctor": {
        *("exla._compat", "exla.errors", "exla.options", "exla.units", "exla.version"),
        *("exla.passes", "exla.search", "exla.targets"),
    },
    "exla.cost_model": {
        *("exla._compat", "exla.errors", "exla.registry", "exla.ir", "exla.passes", "exla.search", "exla.targets"),
    },
    "exla.datasets": {
        *("exla.errors", "exla.registry", "exla.cost_model", "exla.call", "exla.options", "exla.version"),
        *("exla.ir", "exla.passes", "exla.search", "exla.targets"),
    },
    "exla.training": {
        *("exla.console", "exla.errors", "exla.failure", "exla.registry", "exla.strict", "exla.cost_model"),
        "exla.datasets",
        *("exla.ir", "exla.passes", "exla.search"),
    },
    "exla.commands": {
        *("exla.cost_model", "exla.datasets", "exla.training"),
        *("exla.console", "exla.errors", "exla.failure", "exla.observe", "exla.options", "exla.strict", "exla.units"),
        *("exla.version", "exla.ir", "exla.passes", "exla.rules", "exla.search", "exla.targets"),
        *("exla.ahead", "exla.api", "exla.saved", "exla.report", "exla.doctor"),
    },
    "exla.__main__": {"exla.cli"},
    "exla.cli": {"exla.commands", "exla.failure", "exla.strict", "exla.version"},
}
"""Package -> what it may import besides itself; one way only. `exla.api` and `exla` may import everything."""


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__")


def imported(path):
    """Dotted names of everything a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{a.name}" for a in node.names)


def is_within(name, package):
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_dependencies_run_one_way(path):
    name = module_name(path)
    package = next((p for p in ALLOWED if is_within(name, p)), None)
    if package is None:
        assert name in ("exla", "exla.api"), f"{name} is in no package that ALLOWED knows"
        return
    for other in imported(path):
        known = next((p for p in ALLOWED if is_within(other, p)), None)
        if is_within(other, "exla") and not is_within(other, package):
            allowed = any(is_within(other, p) for p in ALLOWED[package])
            assert allowed or (other == "exla" or known is None and is_within("exla._compat", other)), (
                f"{name}: {other}"
            )


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_only_one_file_touches_what_jax_changes_between_releases(path):
    if path.name == "_compat.py":
        return
    for other in imported(path):
        assert "_src" not in other and not other.startswith("jax.extend"), f"{module_name(path)} imports {other}"


def test_every_folder_of_modules_is_a_package_that_is_installed():
    for folder in {path.parent for path in SOURCES}:
        assert (folder / "__init__.py").exists(), f"setuptools finds no package in {folder.relative_to(ROOT)}"


def test_nothing_that_is_read_is_unpickled_or_executed():
    for path in SOURCES:
        names = set(imported(path))
        assert not names & {"pickle", "dill", "cloudpickle", "marshal", "shelve"}, path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), f"{path}: {node.func.id}"


def test_the_public_names_are_few_and_all_there():
    import exla

    assert {"jit", "Plan", "Options", "MemoryLimitError", "ExlaError"} <= set(exla.__all__)
    assert all(hasattr(exla, name) for name in exla.__all__)
