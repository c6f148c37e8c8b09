"""What NCCL says about its choices, from lines that it printed and from formats of its releases."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from nodegauge_contract import NOT_READ
from nodegauge_contract.nccl_tests.choices import Choices
from nodegauge_probes.nccl import debuglog

RECORDED = Path(__file__).parent.parent / "fixtures/nccl-debug-info_lines_nccl-docs.txt"
HEAD = "node-01:7:7 [0] NCCL INFO "


def parse(lines: Iterable[str]) -> Choices:
    choices = Choices()
    for line in lines:
        choices.feed(line)
    return choices


def choices_of(*lines: str) -> Choices:
    return parse(HEAD + line for line in lines)


def test_the_recorded_lines_are_understood() -> None:
    choices = parse(RECORDED.read_text().splitlines())
    assert choices.transport == "NET/Socket+P2P/CUMEM+SHM/direct/direct"
    assert choices.host_buffers == "/dev/shm"
    assert (choices.init_s, choices.kernels_s) == (0.37, 0.28)
    assert choices.chosen("all_reduce", 33_554_432, ranks=8) == ("RING", "SIMPLE")
    assert choices.nvls is True
    assert choices.warning == "Failed to initialize any NET plugin"


@pytest.mark.parametrize(
    ("via", "transport"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer", "P2P/direct"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read", "P2P/direct"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/2[2]", "P2P/indirect"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM/direct/direct"),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0", "NET/Socket"),
        ("Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0", "NET/Socket"),
    ],
)
def test_transports_by_their_kind(via: str, transport: str) -> None:
    assert choices_of(via, via).transport == transport


@pytest.mark.parametrize(
    "line",
    [
        "AllReduce: 65536 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}",
        "AllReduce: 65536 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15} cgaClusterSize 4",
        "AllReduce: 65536 Bytes -> Algo Ring proto LL128 channel{Lo..Hi}={0..15} comm 0x55a7",
        "AllReduce: 65536 Bytes -> Algo 1 proto 1 time 29.4",
    ],
)
def test_choices_of_every_release(line: str) -> None:
    assert choices_of(line).chosen("all_reduce", 65536, ranks=8) == ("RING", "LL128")


def test_gathered_bytes_are_those_of_one_rank() -> None:
    """The size counts all ranks, NCCL's line one; what does not divide is rounded down."""
    choices = choices_of(
        "AllGather: 153391680 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}",
        "ReduceScatter: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
    )
    assert choices.chosen("all_gather", 1 << 30, ranks=7) == ("NVLS", "SIMPLE")
    assert choices.chosen("reduce_scatter", 65536, ranks=8) == ("RING", "LL")


def test_a_size_that_nobody_saw_has_no_choice() -> None:
    choices = choices_of("AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}")
    assert choices.chosen("all_reduce", 8, ranks=8) == ("TREE", "LL")
    assert choices.chosen("all_reduce", 4096, ranks=8) == (NOT_READ, NOT_READ)
    assert choices.chosen("all_gather", 8, ranks=8) == (NOT_READ, NOT_READ)


SUPPORTED = "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p", (16, False)),
        (
            "comm 0x55, 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32",
            (24, True),
        ),
        ("24 coll channels, 8 nvls channels, 32 p2p channels, 32 p2p channels per peer", (24, True)),
        ("nothing of channels", (NOT_READ, NOT_READ)),
    ],
)
def test_nvls_is_on_where_channels_of_it_were_made(line: str, expected: tuple[object, object]) -> None:
    choices = choices_of(SUPPORTED, line)
    assert (choices.channels, choices.nvls, choices.multicast) == (*expected, True)
    without = choices_of(SUPPORTED.replace("available on dev 0", "not available on dev 3"), line)
    assert (without.channels, without.nvls, without.multicast) == (*expected, False)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("MMAP allocated shareable host buffer /dev/shm/nccl-Qd size 4096", {"host_buffers": "/dev/shm"}),
        ("CUMEM allocated shareable buffer 0x7f83 size 4096", {"host_buffers": "cuMem"}),
        ("NCCL version 2.32.3+cuda12.9", {"version": "2.32.3", "cuda": "12.9"}),
    ],
    ids=["without SYS_NICE, charged to the pod", "cuMem", "NCCL, and the CUDA that it was built with"],
)
def test_host_memory_and_versions(line: str, expected: dict[str, str]) -> None:
    choices = choices_of(line)
    assert {name: getattr(choices, name) for name in expected} == expected


def test_the_telling_warning_stays() -> None:
    warn = "node-01:7:7 [2] graph/paths.cc:421 NCCL WARN "
    lines = ["Could not find plugin", "P2P is disabled between NVLINK connected GPUs 2 and 3.", "aborting"]
    assert parse(warn + line for line in lines).warning == lines[1]


def test_nothing_said_is_nothing_read() -> None:
    for choices in (parse([]), parse(["hello", "", "via", "\0" * 50])):
        assert (choices.transport, choices.nvls, choices.channels) == (NOT_READ, NOT_READ, NOT_READ)
        assert (choices.host_buffers, choices.version, choices.warning) == (NOT_READ, NOT_READ, "")


def test_the_logs_of_a_folder_are_read_together(tmp_path: Path) -> None:
    (tmp_path / "nccl.node.1.log").write_bytes(
        b"\xff\xfe\n" + b"x" * 100_000 + b"\nNCCL INFO 2 coll channels, 0 nvls channels\n"
    )
    (tmp_path / "nccl.node.2.log").write_text("NCCL INFO NCCL version 2.32.3+cuda12.9\n")
    (tmp_path / "other.log").write_text("NCCL INFO 9 coll channels, 9 nvls channels\n")
    choices = debuglog.read(tmp_path)
    assert (choices.channels, choices.nvls, choices.version) == (2, False, "2.32.3")
    assert debuglog.read(tmp_path / "nowhere").channels == NOT_READ


def test_a_log_without_end_is_left_after_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL writes a line per call."""
    monkeypatch.setattr(debuglog, "MAX_BYTES", 1000)
    line = "NCCL INFO AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}\n"
    (tmp_path / "nccl.node.1.log").write_text(line * 100 + "NCCL INFO 2 coll channels, 2 nvls channels\n")
    choices = debuglog.read(tmp_path)
    assert choices.chosen("all_reduce", 8, ranks=2) == ("TREE", "LL")
    assert choices.channels == NOT_READ
