"""The fuzzers find what is planted, and a short run of each finds nothing else."""

import random

import pytest

from fuzz import checks
from fuzz.targets import TARGETS
from nodegauge_operator.core import events, report_size

pytestmark = pytest.mark.slow

INPUTS = {"document": 3_000, "readings": 400, "policies": 600, "reports": 600, "chassis": 600, "texts": 300}
ALPHABET = "aé\x1b\n 0-/.%\U0001f600\u202e"


class Drawn:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def ConsumeIntInRange(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def ConsumeUnicodeNoSurrogates(self, count: int) -> str:
        return "".join(self._random.choices(ALPHABET, k=self._random.randint(0, min(count, 60))))

    def ConsumeRegularFloat(self) -> float:
        return self._random.choice([0.0, 1.5, -3e300, 1e-9, self._random.uniform(0, 1e6)])


def play(name: str) -> None:
    for seed in range(INPUTS[name]):
        TARGETS[name](Drawn(seed))


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_promise(name: str) -> None:
    play(name)


def test_control_characters_in_a_condition_or_event_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edited report holds them; without the cut that takes them out they would reach a terminal."""
    monkeypatch.setattr(report_size, "printable", lambda text: text)
    monkeypatch.setattr(events, "postable", lambda change: change)
    with pytest.raises(checks.Broken) as caught:
        play("reports")
    assert "control characters in the" in str(caught.value)
