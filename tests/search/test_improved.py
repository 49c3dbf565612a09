"""What obeys is left for what is predicted to be faster; what computes as the program does, for a sure gain only."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from exla.search.driver import _improved


@dataclass
class Choice:
    of: object
    tried: tuple = ()


@dataclass
class Asking:
    """A session that asks for candidates one by one, and an attempt to which all of them obey."""

    candidates: list
    asked: list = field(default_factory=list)
    tried: tuple = ()
    wrong: object = field(default_factory=lambda: SimpleNamespace(has=lambda decisions: False))

    def tell(self, outcome):
        pass

    def outcome(self):
        return None

    def ask(self):
        return self.candidates.pop(0) if self.candidates else None

    def candidate(self, candidate):
        self.asked.append(candidate)
        return Choice(candidate)


@pytest.mark.parametrize(("decisions", "least"), [((), 0.5), (("split",), 0.95)], ids=["as it is", "split"])
@pytest.mark.parametrize("predicted", [0.4, 0.6, 0.9, 0.99])
def test_a_program_without_changes_is_left_for_a_sure_gain_only(decisions, least, predicted):
    """Twice as fast is sure; what is split already is left for anything that is worth compiling."""
    first = SimpleNamespace(seconds=1.0, decisions=decisions)
    other = SimpleNamespace(seconds=predicted, decisions=("split finer",))
    asking = Asking([other])
    candidate, choice = _improved(asking, asking, first, Choice(first), 2.0)
    expected = other if predicted < least else first
    assert candidate is expected and choice.of is expected
    assert asking.asked == ([other] if expected is other else [])
