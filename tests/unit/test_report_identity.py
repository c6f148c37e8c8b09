"""Report and events name a broken GPU so that it can be replaced, and cut no command in two."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Bus, Repair, Result
from nodegauge_judge import CATALOGUE, GpuIdentity
from nodegauge_operator.api.report import Outcome
from nodegauge_operator.core import events, report_size
from nodegauge_operator.core.pod_outcome import RunEnd
from support.objects import INTERVAL, NOW, AReport, make_node, make_report
from support.properties import tried

NODE = make_node()
WHOLE = made.with_bus(
    replace(made.h100(), gpus=[replace(gpu, serial=f"16549{gpu.index:04d}") for gpu in made.h100().gpus])
)
LOST = replace(WHOLE, gpus=WHOLE.gpus[:7], bus=Bus(gpus=[made.pci(n) for n in range(7)]))
SEVENTH = GpuIdentity(index=7, uuid=made.uuid(7), serial="165490007", pci=made.pci(7))


def read(report: AReport, *results: Result) -> AReport:
    """The report after these runs, one each interval."""
    for number, result in enumerate(results):
        run = made.later(result, seconds=900 * number)
        end = RunEnd(outcome=Outcome.READ, reason="Read", result=run)
        report = report.after(end, node=NODE, at=NOW + number * INTERVAL)
    return report


def test_a_report_lists_the_serial_numbers() -> None:
    """All eight, with UUID and address."""
    items = read(make_report(), WHOLE).status.gpus.items
    assert [(gpu.serial, gpu.uuid, gpu.pci) for gpu in items] == [
        (f"16549{n:04d}", made.uuid(n), made.pci(n)) for n in range(8)
    ]


def test_a_lost_gpu_stays_known_until_it_is_back() -> None:
    """However many runs do without it; index, address, UUID and serial number."""
    lost = read(make_report(), WHOLE, LOST, LOST, LOST)
    assert lost.status.gpus.missing == [SEVENTH]
    assert next(f for f in lost.status.probes[0].findings if f.code == "gpu-lost").gpus == [SEVENTH]
    assert read(make_report(), WHOLE, LOST, WHOLE).status.gpus.missing == []


@pytest.mark.parametrize(
    ("sick", "serial"),
    [(LOST, "165490007"), (made.with_gpu(WHOLE, 3, repair=Repair(action=1)), "165490003")],
)
def test_the_event_of_a_taint_gives_the_serial_number(sick: Result, serial: str) -> None:
    """Whoever gets the event orders the board with it."""
    change = read(make_report(), WHOLE, sick).status.change
    assert change is not None
    assert "tainted unhealthy=" in change.message
    assert f", serial {serial}: " in change.message


@given(
    text=st.lists(st.sampled_from(["look", "`nvidia-smi -q -i 3`", "größer", "`systemctl status x`", "a. "]))
    .map(" ".join)
    .filter(bool),
    most=st.integers(4, 200),
)
@tried(200)
def test_no_command_is_cut_in_two(text: str, most: int) -> None:
    """It stays whole or goes, in report, condition and event alike."""
    cut = report_size.cut(text, most)
    assert cut.count("`") % 2 == 0
    assert cut == text or cut.endswith("...")
    assert len(cut.encode()) <= most
    assert events.bounded(text * 60).count("`") % 2 == 0


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_a_report_under_pressure_holds_whole_commands_only(code: str) -> None:
    """The next step of every rule, cut to every length that the report cuts to."""
    message = f"Something was measured. Next: {CATALOGUE[code].next_step}"
    for most in (400, 250, 160, 120, 60, 40):
        assert report_size.cut(message, most).count("`") % 2 == 0
