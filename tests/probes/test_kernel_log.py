"""The kernel's log: bounded, neither lost nor doubled over a restart, and without what NVML told."""

import os
from collections.abc import Callable
from copy import copy
from pathlib import Path

import pytest

from nodegauge_contract import KernelEvent
from nodegauge_probes.host import kernel_events, kernel_log
from nodegauge_probes.host.kernel_events import MOST_LINES, HeardXid, Log
from nodegauge_probes.host.kernel_log import BACKLOG_BYTES, CHUNK_BYTES, Clocks, KernelLog, Line, Position

NOW, EPOCH = 5000.0, 1_800_000_000.0
CLOCKS = Clocks(since_boot=lambda: NOW, wall=lambda: EPOCH + NOW)
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
SXID = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress"


def text(at: float, sentence: str) -> str:
    return f"Nov 27 10:00:00 n kernel: [{at:12.6f}] {sentence}\n"


def record(number: int, sentence: str = "x", *, at: int = 1_000_000) -> str:
    return f"6,{number},{at},-;{sentence}\n SUBSYSTEM=pci\n"


def reader(path: Path, position: Position | None = None) -> KernelLog:
    return KernelLog(path, position or Position(), clocks=CLOCKS)


def sentences(lines: list[Line]) -> list[str]:
    return [line.text.rpartition("] ")[2] for line in lines]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "kern.log").write_text(text(1, "a"))
    return tmp_path / "kern.log"


def add(file: Path, *lines: str) -> None:
    with file.open("a") as log:
        log.write("".join(lines))


def rotate(file: Path) -> None:
    file.rename(file.with_name("kern.log.1"))
    file.write_text(text(4, "c"))


@pytest.mark.parametrize("restarts", [False, True])
def test_a_text_file_is_read_once_and_over_its_rotation(file: Path, restarts: bool) -> None:
    """Half a line waits for its end."""
    log = reader(file)
    assert sentences(log.read()) == ["a"]
    add(file, text(2, "b"), "half of a")
    if restarts:
        log = reader(file, copy(log.position))
    assert sentences(log.read()) == ["b"]
    add(file, " line\n")
    assert sentences(log.read()) == ["half of a line"]
    rotate(file)
    assert sentences(log.read() + log.read()) == ["c"]
    assert log.position.lost == 0


def test_what_a_restart_over_a_rotation_missed_is_counted(file: Path) -> None:
    position = Position()
    reader(file, position).read()
    add(file, missed := text(2, "b"))
    rotate(file)
    assert sentences((log := reader(file, position)).read()) == ["c"]
    assert log.position.lost == len(missed)


def test_a_flood_costs_no_more_than_its_bound_and_is_counted(file: Path) -> None:
    log = reader(file)
    log.read()
    add(file, *[text(2, "x" * 100)] * (2 * CHUNK_BYTES // len(text(2, "x" * 100))))
    assert sum(len(line.text) for line in log.read()) <= CHUNK_BYTES
    log.read()
    size = file.stat().st_size
    with file.open("ab") as grown:
        grown.write(b"y" * (BACKLOG_BYTES + CHUNK_BYTES) + b"\n")
    log.read()
    assert 0 < log.position.lost <= file.stat().st_size - size - CHUNK_BYTES


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([text(9, "old"), text(0, "Linux version 6.8"), text(2, "new")], ["Linux version 6.8", "new"]),
        ([text(NOW + 61, "old"), text(NOW + 59, "new")], ["new"]),
        (["2027-01-15T08:00:00.5+00:00 n kernel: new\n"], ["2027-01-15T08:00:00.5+00:00 n kernel: new"]),
        (["2027-01-15T07:58:59+00:00 n kernel: old\n"], []),
        (["2027-13-45T07:58:59+00:00 n kernel: odd\n"], ["2027-13-45T07:58:59+00:00 n kernel: odd"]),
    ],
    ids=["a start", "an uptime ahead of this one", "a date of this boot", "a date before it", "no date"],
)
def test_lines_of_an_earlier_boot_are_left_out(file: Path, lines: list[str], expected: list[str]) -> None:
    file.write_text("".join(lines))
    assert sentences(reader(file).read()) == expected


@pytest.fixture
def device(tmp_path: Path) -> Callable[[str], Path]:
    """A FIFO that holds these records, as /dev/kmsg does for each that opens it."""

    def holding(records: str) -> Path:
        path = tmp_path / f"kmsg{len(list(tmp_path.iterdir()))}"
        os.mkfifo(path)
        end = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        os.write(end, records.encode())
        return path

    return holding


def test_records_are_told_by_their_numbers(device: Callable[[str], Path]) -> None:
    """A new reader meets all that the kernel kept again; what it overwrote before is counted."""
    log = reader(device(record(3) + record(4, "a;b", at=7_500_000)))
    assert log.read() == [Line(1.0, "x"), Line(7.5, "a;b")]
    again = reader(device(record(4) + record(8, "y")), log.position)
    assert (again.read(), again.position.lost, again.position.sequence) == ([Line(1.0, "y")], 3, 8)
    assert again.read() == []


def test_a_log_that_cannot_be_read_is_said_and_tried_again(tmp_path: Path) -> None:
    log = reader(tmp_path / "none")
    assert kernel_log.look(log) == ("No such file or directory", [])
    (tmp_path / "none").write_text(text(1, "a"))
    unread, lines = kernel_log.look(log)
    assert (unread, sentences(lines)) == ("", ["a"])


def seen(*lines: Line, xid: HeardXid | None = None, began: float = 0.0) -> Log:
    log = Log(position=Position(), began=began)
    kernel_events.add(log, lines, heard=[xid] if xid else [], now=NOW)
    return log


@pytest.mark.parametrize(
    ("xid", "is_left"),
    [
        (HeardXid("0000:3b:00.0", 79, 100, 100), False),
        (HeardXid("0000:3b:00.0", 79, 80, 89), True),
        (HeardXid("0000:3b:00.0", 79, 80, 90), False),
        (HeardXid("0000:3c:00.0", 79, 100, 100), True),
        (HeardXid("0000:3b:00.0", 48, 100, 100), True),
    ],
)
@pytest.mark.parametrize("line", [XID, "NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus."])
def test_what_nvml_told_is_not_told_again(line: str, xid: HeardXid, is_left: bool) -> None:
    """The same Xid of the same GPU within ten seconds; another GPU, code or time is news."""
    assert len(seen(Line(100.0, line), xid=xid).events) == is_left


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (XID, "xid"),
        (SXID, "sxid"),
        (SXID.replace("Non-fatal", "Fatal"), "sxid-fatal"),
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "fallen-off"),
        ("NVRM: nvCheckOk: NV_ERR_RESET_REQUIRED", "reset-required"),
        ("NVRM: NVLink: fatal error detected on link 3", "nvlink-fatal"),
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0x56:1474)", "init-failed"),
        ("NVRM: The NVIDIA probe routine failed for 1 device(s).", "init-failed"),
        ("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:", "bar-invalid"),
        ("NVRM: Cannot initialize GSP firmware RM", "gsp-failed"),
        ("NVRM: None of the NVIDIA devices were initialized.", "no-devices"),
        ("NVRM: knvlink: NV_ERR_FABRIC_STATE_OUT_OF_SYNC", "fabric-lost"),
        ("NVRM: API mismatch: the client has the version 550", ""),
        ("nvidia: loading out-of-tree module taints kernel.", ""),
        ("nvme nvme0: fatal error", ""),
    ],
)
def test_a_line_of_the_driver_is_one_event_or_none(line: str, kind: str) -> None:
    assert [event.kind for event in seen(Line(10.0, line)).events] == [kind] * bool(kind)


def test_a_storm_of_xids_is_parsed_to_a_bound() -> None:
    log = seen(*[Line(10.0, XID)] * (MOST_LINES + 7))
    assert (log.events[0].count, log.dropped) == (MOST_LINES, 7)


def test_equal_lines_are_one_event() -> None:
    log = seen(Line(10.0, SXID), Line(20.0, "eth0: link up"), Line(30.0, SXID), began=25.0)
    [event] = log.events
    assert event == KernelEvent(
        kind="sxid", subject="nvidia-nvswitch3", code=12028, count=2, first=10, last=30, text=event.text
    )
    assert log.news == 1
    kernel_events.add(log, [Line(3631.0, SXID)], heard=[], now=NOW)
    assert (log.news, log.events[0].count) == (2, 3)


@pytest.mark.parametrize(("began", "dropped"), [(-1.0, 1), (0.0, 0)])
def test_a_line_without_a_time_counts_only_while_the_log_is_followed(began: float, dropped: int) -> None:
    log = seen(Line(None, SXID), began=began)
    assert (log.dropped, len(log.events)) == (dropped, 1 - dropped)


def test_events_are_bounded_and_the_newest_stay() -> None:
    log = seen(*(Line(float(n), SXID.replace("12028", str(11000 + n))) for n in range(30)))
    assert (len(log.events), log.dropped, log.events[-1].code) == (24, 6, 11029)
