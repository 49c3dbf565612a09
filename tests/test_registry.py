"""Registries that load their package when they are first asked."""

import sys
import threading

import pytest


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of two slow modules that register themselves."""
    folder = tmp_path / "slow_entries"
    folder.mkdir()
    (folder / "__init__.py").write_text("from exla.registry import Registry\nFOUND = Registry('thing', __name__)\n")
    for name in ("one", "two"):
        text = f"import time\ntime.sleep(0.1)\nfrom slow_entries import FOUND\nFOUND.register('{name}')('{name}')\n"
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [m for m in sys.modules if m.partition(".")[0] == "slow_entries"]:
        del sys.modules[name]


def test_threads_that_ask_at_once_all_see_every_entry(package):
    import slow_entries

    seen = []
    threads = [threading.Thread(target=lambda: seen.append(list(slow_entries.FOUND))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [["one", "two"]] * 4


def test_a_module_that_fails_to_load_is_an_error_each_time(package):
    (package / "zero.py").write_text("raise ImportError('no such library')")
    import slow_entries

    for _ in range(2):
        with pytest.raises(ImportError, match="no such library"):
            slow_entries.FOUND.find("one")


def test_a_rare_module_is_imported_when_one_of_its_names_or_all_names_are_asked_for(package):
    import slow_entries

    from exla.registry import Registry

    def found():
        return "slow_entries.one" in sys.modules

    slow_entries.FOUND = Registry("thing", "slow_entries", rare=["one"])
    assert slow_entries.FOUND.find("two") == "two" and slow_entries.FOUND.in_order(rare=False) == ["two"]
    assert not found()
    assert slow_entries.FOUND.find("one") == "one" and found()
    assert slow_entries.FOUND.in_order() == ["two", "one"]
