"""The watch probe: silent while nothing changes, and a result with the reason when something does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodegauge_contract import MESSAGE_LIMIT, RepeatedXid, Result, XidCount
from nodegauge_judge import Answer, Severity, judge_health
from nodegauge_probes.watch.schedule import BRAKE_CHANGES
from support.probing import Probe
from support.watch_probe import Watch
from testbed.profiles import Profile

On = Callable[[str | Profile], Watch]


@pytest.fixture
def watch(probe: Callable[[str | Profile], Probe]) -> On:
    """`watch("h100-sxm-8")`: that machine, plugged in, and the watch probe on it."""
    return lambda profile: Watch(probe(profile))


def codes(result: Result | None) -> set[str]:
    """What the judge finds."""
    assert result is not None
    return {finding.code for finding in judge_health(result).findings}


def test_the_first_report_is_a_health_document(watch: On) -> None:
    """At once, under the run's id, and small enough for a kubelet."""
    on = watch("h100-sxm-8")
    first = on.life()
    assert (first.code, first.stderr) == (0, "first\n")
    assert first.result is not None
    assert (first.result.probe, first.result.run, len(first.result.gpus)) == ("health", "run-1", 8)
    assert first.result.problem is None
    assert len(on.probe.termination_log.read_bytes()) <= MESSAGE_LIMIT


@pytest.mark.parametrize(
    "profile",
    [
        "h100-sxm-8",
        "h100-sxm-8-drv580",
        "b200-sxm-8",
        "v100-vm-8",
        "dgx2-v100-16",
        "rtx3060-1",
        "vgpu-2",
        "a100-mig-4",
        "gb200-4",
        "titan-rtx-vfio-4",
    ],
)
def test_a_calm_node_is_left_alone(watch: On, profile: str) -> None:
    """Every signal is read again and again, with and without load, and nothing is said."""
    on = watch(profile)
    assert on.life().stderr == "first\n"
    with on.started() as process:
        on.calm(process, looks=35)
        on.probe.hardware.load(60)
        on.calm(process)


CHANGES: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("h100-sxm-8", "gpu-lost", {"gpu": 3}, "error GPU-3|silent GPUs", "gpu-lost"),
    ("h100-sxm-8", "gpu-lost", {"gpu": 3, "nvml": "absent"}, "GPUs 8 -> 7|silent GPUs", "gpus-not-visible"),
    ("h100-sxm-8", "hot", {"gpu": 3}, "temperature GPU-3 33 °C -> 95 °C", ""),
    ("b200-sxm-8", "hot", {"gpu": 3}, "GPU-3", ""),
    ("h100-sxm-8", "hot-memory", {"gpu": 2}, "memory temperature GPU-2", ""),
    ("h100-sxm-8", "ecc-uncorrectable", {"gpu": 1}, "uncorrectable ECC GPU-1 0 -> 1", "ecc"),
    ("h100-sxm-8", "row-remap", {"gpu": 1}, "remapped rows GPU-1", "row-remap"),
    ("v100-vm-8", "page-pending", {"gpu": 1}, "(retired pages|pages pending) GPU-1", "row-remap"),
    ("h100-sxm-8", "link-down", {"gpu": 1}, "links GPU-", "nvlink-degraded"),
    ("v100-vm-8", "p2p-refused", {"gpu": 1}, "P2P GPU-", "p2p-refused"),
    ("h100-sxm-8", "fabric-failed", {}, "fabric GPU-", "p2p-refused"),
    ("h100-sxm-8-drv580", "recovery-action", {"gpu": 5}, "recovery action GPU-5 0 -> 1", "recovery-action"),
    ("h100-sxm-8-drv580", "sram-threshold", {"gpu": 5}, "SRAM threshold GPU-5", "row-remap"),
    ("h100-sxm-8-drv580", "power-brake", {"gpu": 5}, "GPU-5", ""),
    ("h100-sxm-8", "hw-slowdown", {"gpu": 5}, "throttle reasons GPU-5", ""),
    ("h100-sxm-8", "undersized-power-source", {"gpu": 5}, "power source GPU-5", ""),
    ("h100-sxm-8", "nic-down", {"nic": 0}, "port ", ""),
    ("rtx3090-nv4-2", "pcie-width-halved", {"gpu": 1}, "PCIe width GPU-1", ""),
]


@pytest.mark.parametrize(("profile", "fault", "parameters", "why", "code"), CHANGES)
def test_a_change_is_reported(
    watch: On, profile: str, fault: str, parameters: dict[str, Any], why: str, code: str
) -> None:
    """With its reason, and as a document in which the judge finds it where one run is enough.

    A fault may change two values; the reason is the one that the look in progress reads first.
    """
    on = watch(profile)
    on.life()
    ended = on.after(lambda: on.probe.hardware.fault(fault, **parameters))
    assert ended.why.startswith("changed: ")
    assert re.search(why, ended.why), ended.why
    assert ended.code == 0
    assert not code or code in codes(ended.result)


def test_a_slowdown_without_a_counter_is_judged_as_by_a_health_pod(watch: On) -> None:
    """The umbrella bit fails only over two seconds (`bitFailSeconds`): the reading goes on for as long."""
    on = watch("h100-sxm-8")
    on.probe.hardware.load(100)
    on.life()
    on.probe.hardware.fault("hw-slowdown", gpu=5)
    window = ("--hz", "4", "--window", "1", "--slowed-window", "3")
    ended = on.life(*window)
    assert "throttle reasons GPU-5" in ended.why
    assert ended.result is not None
    judgement = judge_health(ended.result)
    assert judgement.answers["hw-slowdown"] is Answer.BAD
    assert "hw-slowdown" in {f.code for f in judgement.findings if f.severity is Severity.FAIL}


def test_the_end_of_a_fault_is_reported(watch: On) -> None:
    """Also of one that ended the GPU's session: its handle is asked for again."""
    on = watch("h100-sxm-8")
    on.life()
    for fault in ("hot", "gpu-lost"):
        on.probe.hardware.fault(fault, gpu=3)
        assert "GPU-3" in on.life().why
        ended = on.after(on.probe.hardware.heal)
        assert ended.result is not None
        if fault == "gpu-lost" and on.probe.hardware.profile.gpus[3].address in ended.why:
            if ended.result.gpus[3].error is not None:
                ended = on.life()  # the bus had it back before the driver
        else:
            assert "GPU-3" in ended.why
        assert ended.result is not None
        assert ended.result.gpus[3].error is None


def test_a_temperature_at_the_edge_is_reported_once(watch: On) -> None:
    """Up at the threshold, and down only below the hysteresis."""
    on = watch("h100-sxm-8")
    on.life()
    on.probe.hardware.fault("hot", gpu=3, celsius=84)
    assert "temperature GPU-3" in on.life().why
    with on.started() as process:
        for celsius in (83, 84, 80):
            on.probe.hardware.fault("hot", gpu=3, celsius=celsius)
            on.calm(process, looks=7)
        on.probe.hardware.heal()
        assert "temperature GPU-3" in on.ended(process).why


def test_an_xid_is_seen_at_once(watch: On) -> None:
    """It ends the wait for the next look, and the document and the judge have it."""
    on = watch("h100-sxm-8")
    on.life()
    with on.started("--poll", "60") as process:
        on.calm(process, looks=1)
        on.probe.hardware.fault("xid", gpu=3, number=79)
        ended = on.ended(process)
    assert on.looks == 1
    assert "Xid 79 GPU-3" in ended.why
    assert ended.result is not None
    assert [gpu.xids.seen for gpu in ended.result.gpus] == [[]] * 3 + [[79]] + [[]] * 4
    assert "xid" in codes(ended.result)


def test_an_xid_that_was_not_reported_survives_a_restart(watch: On) -> None:
    """The next life reports it, once."""
    on = watch("h100-sxm-8")
    on.life()
    stored = on.stored()
    stored["xids"] = [{"gpu": 2, "code": 48, "count": 3, "first": 1.0, "last": 2.5}]
    on.state.write_text(json.dumps(stored))
    ended = on.life()
    assert ended.why == "changed: Xid 48 GPU-2, 3 times"
    assert ended.result is not None
    assert ended.result.gpus[2].xids.seen == [48]
    assert ended.result.gpus[2].xids.counts == [XidCount(count=3, first=1, last=2)]
    assert on.stored()["xids"] == []


def test_what_was_reported_is_repeated_until_it_is_old(watch: On) -> None:
    """A report may never arrive: the next ones have its Xids as well, apart from new ones and with the times
    of then, and it is no reason for a report."""
    on = watch("titan-rtx-nv2")
    on.life()
    first = on.after(lambda: on.probe.hardware.fault("xid", gpu=1, number=79)).result
    on.probe.hardware.heal()
    second = on.after(lambda: on.probe.hardware.fault("xid", gpu=0, number=48)).result
    on.probe.hardware.heal()
    assert first is not None
    assert second is not None
    [came] = first.gpus[1].xids.counts
    assert first.watch is not None
    assert (first.watch.repeated, first.watch.at >= came.last) == ([], True)
    assert [gpu.xids.seen for gpu in second.gpus] == [[48], []]
    assert second.watch is not None
    assert second.watch.repeated == [
        RepeatedXid(gpu=1, code=79, count=came.count, first=came.first, last=came.last)
    ]
    with on.started() as process:
        on.calm(process)
    stored = on.stored()
    stored["reported"] -= 3900
    stored["reported_xids"][0]["last"] -= 5 * 3600
    on.state.write_text(json.dumps(stored))
    due = on.life("--interval", "3600")
    assert due.why == "due"
    assert due.result is not None
    assert due.result.watch is not None
    assert [(one.gpu, one.code) for one in due.result.watch.repeated] == [(0, 48)]


def test_xids_are_counted_once_and_with_their_times(watch: On) -> None:
    """Twenty a second, also while the reading at the end listens for itself for two seconds; none is of the
    future, by the document's own clock."""
    on = watch("titan-rtx-nv2")
    on.life()
    with on.started("--window", "2") as process:
        on.calm(process)
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        on.probe.hardware.fault("xid", gpu=1, number=13, per_second=20)
        ended = on.ended(process)
    passed = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot
    assert ended.result is not None
    [xid] = ended.result.gpus[1].xids.counts
    assert 20 <= xid.count <= 20 * passed + 2
    assert int(since_boot) <= xid.first < xid.last <= ended.result.host.boottime_ms // 1000 + 1


def test_the_xid_of_a_job_that_fails_again_and_again_hides_no_other(watch: On) -> None:
    """It ends the container a few times; then that stays, counts it, and sees what is new at once."""
    on = watch("titan-rtx-nv2")
    on.life()
    on.probe.hardware.fault("xid", gpu=1, number=31, per_second=10)
    while len(on.stored()["changes"].get("Xid 31 GPU-1", [])) < BRAKE_CHANGES:
        assert "Xid 31 GPU-1" in on.life().why
    ended = on.after(lambda: on.probe.hardware.fault("xid", gpu=0, number=79), looks=60)
    assert "Xid 79 GPU-0" in ended.why
    assert ended.result is not None
    assert [gpu.xids.seen for gpu in ended.result.gpus] == [[79], [31]]
    assert ended.result.gpus[1].xids.counts[0].count > 5


def test_a_standing_fault_is_confirmed_and_then_left(watch: On) -> None:
    """Two more reports, and silence."""
    on = watch("titan-rtx-nv2")
    often = ("--confirm", "0.1,0.2")
    reasons = [on.life(*often).why for _ in range(3)]
    on.probe.hardware.fault("hot", gpu=1)
    reasons += [on.life(*often).why.partition(":")[0] for _ in range(3)]
    assert reasons[:3] == ["first", "confirmed: 1 of 2", "confirmed: 2 of 2"]
    assert reasons[3:] == ["changed", "confirmed", "confirmed"]
    assert on.stored()["reports"] == 3
    with on.started(*often) as process:
        on.calm(process)


def test_a_report_is_due_after_the_interval(watch: On) -> None:
    """Though nothing has changed."""
    on = watch("rtx3060-1")
    on.life()
    stored = on.stored()
    stored["reported"] -= 3900
    on.state.write_text(json.dumps(stored))
    assert on.life("--interval", "3600").why == "due"


def test_sigterm_ends_it_at_once(watch: On) -> None:
    """Without another look or a reading: its node is about to be drained, or its driver to be unloaded."""
    on = watch("h100-sxm-8")
    on.life()
    with on.started("--poll", "60", "--window", "20") as process:
        on.calm(process, looks=1)
        process.terminate()
        ended = on.ended(process)
    assert (ended.code, on.looks) == (0, 1)
    assert ended.result is not None
    assert (ended.result.problem and ended.result.problem.kind, ended.result.gpus) == ("terminated", [])


def test_a_driver_that_goes_away_is_reported(watch: On) -> None:
    """Once, as the health probe does; then it waits for the driver to come back."""
    on = watch("titan-rtx-nv2")
    on.life()
    machine = on.probe.hardware.directory
    state = machine / "driver.state"
    ended = on.after(lambda: state.rename(machine / "away"))
    assert "NVML" in ended.why
    assert ended.result is not None
    assert ended.result.problem is not None
    assert ended.result.problem.kind == "driver-not-loaded"
    back = on.after(lambda: (machine / "away").rename(state))
    assert "driver-not-loaded" in back.why
    assert back.result is not None
    assert back.result.problem is None


def test_a_call_that_never_returns_is_reported(watch: On) -> None:
    """By its name, though the wait itself may last for hours."""
    on = watch("titan-rtx-nv2")
    on.life()
    call = "nvmlDeviceGetTotalEccErrors"
    ended = on.after(lambda: on.probe.hardware.fault("hung-call", call=call), "--deadline", "6")
    assert ended.result is not None
    assert ended.result.problem is not None
    assert (ended.result.problem.kind, ended.result.problem.call) == ("call-hung", call)


def test_a_wait_longer_than_the_deadline_is_none(watch: On) -> None:
    """The deadline is that of a look and of a reading, and waiting for an event is no call that hangs."""
    on = watch("rtx3060-1")
    on.life()
    with on.started("--deadline", "3", "--poll", "4") as process:
        on.calm(process, looks=2)


def test_its_cost_is_measured() -> None:
    """`python -m fleet.load.watch_probe` says what it costs, and what of that is spent in the driver."""
    command = [sys.executable, "-m", "fleet.load.watch_probe", "--seconds", "1", "--profile", "titan-rtx-nv2"]
    folder = Path(__file__).parents[1]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    *_, last = run.stdout.splitlines()
    calls = re.search(r"m in (\d+) NVML calls a second", last)
    assert calls is not None
    assert int(calls[1]) > 0


def test_it_is_small(watch: On) -> None:
    """Under 40 MiB while it waits."""
    on = watch("h100-sxm-8")
    on.life()
    with on.started(start=subprocess.Popen) as process:
        on.calm(process)
        status = Path(f"/proc/{process.pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak is not None
    assert int(peak[1]) < 40 * 1024


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"version": 2}', '{"version": 1, "boot_id": "other"}', '{"boot_id": "\udcff"}'],
)
def test_a_state_that_cannot_be_used_is_none(watch: On, content: str) -> None:
    """Broken, of another version, or of another boot."""
    on = watch("rtx3060-1")
    on.state.write_text(content, errors="surrogateescape")
    assert on.life().stderr == "first\n"
    assert on.stored()["reports"] == 1


def test_a_reboot_is_reported(watch: On) -> None:
    """A state of another boot is none."""
    on = watch("rtx3060-1")
    on.life()
    on.probe.hardware.reboot()
    assert on.life().why == "first"


def test_a_state_that_cannot_be_written_is_said(watch: On) -> None:
    """The report is there all the same."""
    on = watch("rtx3060-1")
    ended = on.life("--state", "/proc/watch.json")
    assert ended.code == 0
    assert ended.stderr.startswith("first\nstate /proc/watch.json: ")
    assert ended.result is not None
    assert ended.result.problem is None


def test_every_option_is_refused_by_its_name(watch: On) -> None:
    """All of them in one error."""
    on = watch("rtx3060-1")
    ended = on.life("--interval", "0", "--confirm", "1,x", "--margin", "-1")
    assert ended.code == 2
    assert all(name in ended.stderr for name in ("--interval", "--confirm", "--margin"))
