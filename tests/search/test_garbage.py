"""Planning does not look for garbage, and leaves the collector as it was."""

import gc
import threading

import pytest

from exla.search.garbage import uncollected
from exla.search.strategy import Session


@pytest.fixture(params=[True, False], ids=["on", "off"])
def before(request):
    """Whether the user's collector is on."""
    was = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was else gc.disable)()


def test_it_is_off_within_and_as_before_after(before):
    with uncollected(), uncollected():
        assert not gc.isenabled()
    assert gc.isenabled() == before


def test_after_an_error_too(before):
    with pytest.raises(KeyError), uncollected():
        raise KeyError
    assert gc.isenabled() == before


def test_the_last_thread_to_leave_restores_it(before):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with uncollected():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(10)
    with uncollected():
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled() == before


def test_strategies_propose_without_it(before):
    seen = []

    def steps():
        for _ in range(2):
            seen.append(gc.isenabled())
            yield None

    session = Session(steps())
    session.ask()
    seen.append(gc.isenabled())
    session.tell(None)
    assert seen == [False, before, False]
