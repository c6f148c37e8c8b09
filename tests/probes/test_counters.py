"""Which field ids the throttle counters have, by driver, and what to do where both or neither answer."""

from __future__ import annotations

import pytest

from nodegauge_contract import Unavailable
from nodegauge_probes.counters import choose

NO = Unavailable("NVML_ERROR_NOT_SUPPORTED")
SILENT = [NO, NO, NO]
OLD, NEW = [1, 2, 3], [11, 12, 13]


@pytest.mark.parametrize(
    ("driver", "old", "new", "trio", "values"),
    [
        ("595.84", SILENT, NEW, "269-271", NEW),
        ("595.84", OLD, NEW, "269-271", NEW),
        ("590.44.01", OLD, [11, NO, 13], "269-271", [11, NO, 13]),
        ("580.82.07", SILENT, NEW, "269-271", NEW),
        ("580.65.06", OLD, SILENT, "251-253", OLD),
        ("580.65.06", OLD, [0, NO, 0], "251-253", OLD),
        ("575.57.08", OLD, SILENT, "251-253", OLD),
    ],
)
def test_the_trio_follows_the_driver(
    driver: str, old: list[int], new: list[int], trio: str, values: list[int]
) -> None:
    """Past 580 the new ids; from 575 to 580 the set of ids that answers where the other does not."""
    assert choose(driver, old=old, new=new) == (trio, values)


@pytest.mark.parametrize(
    ("driver", "old", "new"),
    [
        ("570.124.06", OLD, NEW),
        ("418.87", SILENT, SILENT),
        ("580.65.06", OLD, NEW),
        ("575.57.08", SILENT, SILENT),
        (Unavailable("NVML_ERROR_UNKNOWN"), OLD, NEW),
        ("unknown", OLD, NEW),
    ],
)
def test_what_cannot_be_told_is_not_a_number(driver: str, old: list[int], new: list[int]) -> None:
    """Older drivers, unknown drivers, and both or neither set answering give a reason in all four places."""
    trio, values = choose(driver, old=old, new=new)
    assert isinstance(trio, Unavailable)
    assert values == [trio] * 3


def test_a_number_of_another_type_does_not_pass_for_a_counter() -> None:
    """In the drivers in doubt, one odd value rules its set out."""
    trio, values = choose("580.65.06", old=[1, 2, 3], new=[0.5, 1, 2])
    assert (trio, values) == ("251-253", [1, 2, 3])
