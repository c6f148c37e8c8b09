"""The watch probe: silent while nothing changes, and a result with the reason when something does.

Also under a driver that hangs, or that refuses some calls and answers others.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodegauge_contract import MESSAGE_LIMIT, RepeatedXid
from nodegauge_judge import Answer, Severity, judge_health
from nodegauge_probes.watch.schedule import BRAKE_CHANGES
from support.machines import SECOND
from support.probing import Probe
from support.watch_probe import Watch
from testbed.hardware import Hardware
from testbed.hardware.fault import FAULTS, Fault
from testbed.hardware.machine import Machine
from testbed.hardware.plugged import boottime_ns
from testbed.wait import DEADLINE_SECONDS, wait_for

pytestmark = pytest.mark.slow

On = Callable[[str], Watch]
UNKNOWN, RESET_REQUIRED = 999, 16
READINGS = (
    "nvmlDeviceGetTemperatureV nvmlDeviceGetFieldValues nvmlDeviceGetTotalEccErrors nvmlDeviceGetNvLinkState"
    " nvmlDeviceGetRemappedRows nvmlDeviceGetMigMode nvmlDeviceGetPowerSource nvmlDeviceGetEnforcedPowerLimit"
    " nvmlDeviceGetCurrPcieLinkWidth nvmlDeviceGetGpuFabricInfoV nvmlDeviceGetP2PStatus"
)


def refused(machine: Machine, *, calls: str = "", gpu: int = 1, code: int = UNKNOWN) -> None:
    """A GPU answers some calls with an error, and all others."""
    for call in calls.split():
        machine.calls[gpu, call] = code


@pytest.fixture
def fresh(probe: Callable[[str], Probe], monkeypatch: pytest.MonkeyPatch) -> On:
    """`fresh("h100-sxm-8")`: that machine, plugged in, and the watch probe on it."""
    monkeypatch.setitem(FAULTS, "refused", Fault(name="refused", does="", apply=refused))
    return lambda profile: Watch(probe(profile))


@pytest.fixture
def watch(fresh: On) -> On:
    """The same, after its first report."""

    def on(profile: str) -> Watch:
        made = fresh(profile)
        assert made.life().stderr == "first\n"
        return made

    return on


@pytest.fixture
def two(watch: On) -> Watch:
    """Two bridged GPUs, after the first report."""
    return watch("titan-rtx-nv2")


def test_the_first_report_is_a_health_document(fresh: On) -> None:
    """At once, under the run's id, and small enough for a kubelet."""
    on = fresh("h100-sxm-8")
    first = on.life()
    assert (first.code, first.stderr) == (0, "first\n")
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
    with on.started() as process:
        on.calm(process, looks=35)
        on.hardware.load(60)
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
    ended = on.after(lambda: on.hardware.fault(fault, **parameters))
    assert ended.why.startswith("changed: ")
    assert re.search(why, ended.why), ended.why
    assert ended.code == 0
    assert not code or code in ended.codes


def test_a_slowdown_without_a_counter_is_judged_as_by_a_health_pod(fresh: On) -> None:
    """The umbrella bit fails only over two seconds (`bitFailSeconds`): the reading goes on for as long."""
    on = fresh("h100-sxm-8")
    on.hardware.load(100)
    on.life()
    on.hardware.fault("hw-slowdown", gpu=5)
    ended = on.life("--hz", "4", "--window", "1", "--slowed-window", "3")
    assert "throttle reasons GPU-5" in ended.why
    judgement = judge_health(ended.result)
    assert judgement.answers["hw-slowdown"] is Answer.BAD
    assert "hw-slowdown" in {f.code for f in judgement.findings if f.severity is Severity.FAIL}


def test_the_end_of_a_fault_is_reported(watch: On) -> None:
    """Also of one that ended the GPU's session: its handle is asked for again."""
    on = watch("h100-sxm-8")
    for fault in ("hot", "gpu-lost"):
        on.hardware.fault(fault, gpu=3)
        assert "GPU-3" in on.life().why
        ended = on.after(on.hardware.heal)
        if fault == "gpu-lost" and on.hardware.profile.gpus[3].address in ended.why:
            if ended.result.gpus[3].error is not None:
                ended = on.life()  # the bus had it back before the driver
        else:
            assert "GPU-3" in ended.why
        assert ended.result.gpus[3].error is None


def test_an_xid_is_seen_at_once(watch: On) -> None:
    """It ends the wait for the next look, and the document and the judge have it."""
    on = watch("h100-sxm-8")
    with on.started("--poll", "60") as process:
        on.calm(process, looks=1)
        on.hardware.fault("xid", gpu=3, number=79)
        ended = on.ended(process)
    assert on.looks == 1
    assert "Xid 79 GPU-3" in ended.why
    assert ended.xids == [[]] * 3 + [[79]] + [[]] * 4
    assert "xid" in ended.codes


def test_what_was_reported_is_repeated_and_is_no_reason_for_a_report(two: Watch) -> None:
    """A report may never arrive: the next ones have its Xids as well, apart from new ones and with the times
    of then."""
    first = two.after(lambda: two.hardware.fault("xid", gpu=1, number=79)).result
    two.hardware.heal()
    ended = two.after(lambda: two.hardware.fault("xid", gpu=0, number=48))
    two.hardware.heal()
    [came] = first.gpus[1].xids.counts
    assert (first.watch.repeated, first.watch.at >= came.last) == ([], True)
    assert ended.xids == [[48], []]
    repeated = RepeatedXid(gpu=1, code=79, count=came.count, first=came.first, last=came.last)
    assert ended.result.watch.repeated == [repeated]
    with two.started() as process:
        two.calm(process)


def test_xids_are_counted_once_and_with_their_times(two: Watch) -> None:
    """Twenty a second, also while the reading at the end listens for itself for two seconds; none is of the
    future, by the document's own clock."""
    with two.started("--window", "2") as process:
        two.calm(process)
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        two.hardware.fault("xid", gpu=1, number=13, per_second=20)
        ended = two.ended(process)
    passed = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot
    [xid] = ended.result.gpus[1].xids.counts
    assert 20 <= xid.count <= 20 * passed + 2
    assert int(since_boot) <= xid.first < xid.last <= ended.result.host.boottime_ms // 1000 + 1


def test_the_xid_of_a_job_that_fails_again_and_again_hides_no_other(two: Watch) -> None:
    """It ends the container a few times; then that stays, counts it, and sees what is new at once."""
    two.hardware.fault("xid", gpu=1, number=31, per_second=10)
    while len(two.stored()["changes"].get("Xid 31 GPU-1", [])) < BRAKE_CHANGES:
        assert "Xid 31 GPU-1" in two.life().why
    ended = two.after(lambda: two.hardware.fault("xid", gpu=0, number=79), looks=60)
    assert "Xid 79 GPU-0" in ended.why
    assert ended.xids == [[79], [31]]
    assert ended.result.gpus[1].xids.counts[0].count > 5


def test_a_standing_fault_is_confirmed_and_then_left(fresh: On) -> None:
    """Two more reports, and silence."""
    on, often = fresh("titan-rtx-nv2"), ("--confirm", "0.1,0.2")
    reasons = [on.life(*often).why for _ in range(3)]
    on.hardware.fault("hot", gpu=1)
    reasons += [on.life(*often).why.partition(":")[0] for _ in range(3)]
    assert reasons[:3] == ["first", "confirmed: 1 of 2", "confirmed: 2 of 2"]
    assert reasons[3:] == ["changed", "confirmed", "confirmed"]
    assert on.stored()["reports"] == 3
    with on.started(*often) as process:
        on.calm(process)


def test_a_report_is_due_after_the_interval(two: Watch) -> None:
    """Though nothing has changed."""
    two.pass_time(3900)
    assert two.life("--interval", "3600").why == "due"


def test_sigterm_ends_it_at_once(watch: On) -> None:
    """Without another look or a reading: its node is about to be drained, or its driver to be unloaded."""
    on = watch("h100-sxm-8")
    with on.started("--poll", "60", "--window", "20") as process:
        on.calm(process, looks=1)
        process.terminate()
        ended = on.ended(process)
    assert (ended.code, on.looks) == (0, 1)
    assert (ended.result.problem.kind, ended.result.gpus) == ("terminated", [])


def test_a_driver_that_goes_away_is_reported(two: Watch) -> None:
    """Once, as the health probe does; then it waits for the driver to come back."""
    state = two.hardware.directory / "driver.state"
    away = state.with_name("away")
    ended = two.after(lambda: state.rename(away))
    assert "NVML" in ended.why
    assert ended.result.problem.kind == "driver-not-loaded"
    back = two.after(lambda: away.rename(state))
    assert "driver-not-loaded" in back.why
    assert back.result.problem is None


def test_a_call_that_never_returns_is_reported(two: Watch) -> None:
    """By its name, though the wait itself may last for hours."""
    call = "nvmlDeviceGetTotalEccErrors"
    ended = two.after(lambda: two.hardware.fault("hung-call", call=call), "--deadline", "6")
    assert (ended.result.problem.kind, ended.result.problem.call) == ("call-hung", call)


def test_a_wait_longer_than_the_deadline_is_none(watch: On) -> None:
    """The deadline is that of a look and of a reading, and waiting for an event is no call that hangs."""
    on = watch("rtx3060-1")
    with on.started("--deadline", "3", "--poll", "4") as process:
        on.calm(process, looks=2)


def test_it_is_small(watch: On) -> None:
    """Under 40 MiB while it waits."""
    on = watch("h100-sxm-8")
    with on.started(start=subprocess.Popen) as process:
        on.calm(process)
        status = Path(f"/proc/{process.pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert int(peak[1]) < 40 * 1024


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 2}', '{"boot_id": "\udcff"}'])
def test_a_state_that_cannot_be_used_is_none(fresh: On, content: str) -> None:
    """Broken, or of another version."""
    on = fresh("rtx3060-1")
    on.state.write_text(content, errors="surrogateescape")
    assert on.life().stderr == "first\n"
    assert on.stored()["reports"] == 1


def test_a_reboot_is_reported(two: Watch) -> None:
    """A state of another boot is none."""
    two.hardware.reboot()
    assert two.life().why == "first"


def test_a_state_that_cannot_be_written_is_said(fresh: On) -> None:
    """The report is there all the same."""
    ended = fresh("rtx3060-1").life("--state", "/proc/watch.json")
    assert (ended.code, ended.result.problem) == (0, None)
    assert ended.stderr.startswith("first\nstate /proc/watch.json: ")


def test_every_option_is_refused_by_its_name(fresh: On) -> None:
    """All of them in one error."""
    ended = fresh("rtx3060-1").life("--interval", "0", "--confirm", "1,x", "--margin", "-1")
    assert ended.code == 2
    assert all(name in ended.stderr for name in ("--interval", "--confirm", "--margin"))


def test_an_xid_is_reported_though_the_reading_hangs(two: Watch) -> None:
    """Once, with what was read: a GPU with a fatal Xid is the one whose calls hang."""

    def fails() -> None:
        two.hardware.fault("hung-call", call="nvmlDeviceGetPowerUsage")
        two.hardware.fault("xid", gpu=1, number=79)

    ended = two.after(fails, "--deadline", "6")
    assert "Xid 79 GPU-1" in ended.why
    assert (ended.result.problem.kind, ended.xids) == ("call-hung", [[], [79]])
    assert {"xid", "call-hung"} <= ended.codes
    stored = two.stored()
    assert (stored["xids"], [one["code"] for one in stored["reported_xids"]]) == ([], [79])


@pytest.mark.parametrize("call", ["nvmlDeviceGetCount_v2", "nvmlDeviceGetTemperature"])
def test_an_xid_is_reported_that_comes_while_a_look_hangs(two: Watch, call: str) -> None:
    """As when a GPU falls off the bus: the call under way does not return, and then comes the Xid."""

    def fails() -> None:
        two.hardware.fault("hung-call", call=call)
        later = Hardware(two.hardware.directory, clock=lambda: boottime_ns() + SECOND)
        later.fault("xid", gpu=1, number=79)

    ended = two.after(fails, "--deadline", "6")
    assert (ended.result.problem.call, ended.xids) == (call.removesuffix("_v2"), [[], [79]])
    assert {"xid", "call-hung"} <= ended.codes
    assert two.life("--deadline", "6").result.gpus == []


def test_an_xid_waits_for_the_next_life_if_the_container_is_asked_to_end(two: Watch) -> None:
    """Nobody reads the document that SIGTERM leaves."""
    with two.started("--window", "30", "--deadline", "60") as process:
        two.calm(process)
        two.hardware.fault("xid", gpu=1, number=79, per_second=1)
        wait_for(lambda: two.stored()["xids"], what="the Xid in the state")
        process.terminate()
        process.wait(timeout=DEADLINE_SECONDS)
    two.hardware.heal()
    ended = two.life()
    assert "Xid 79 GPU-1" in ended.why
    assert (ended.xids, two.stored()["xids"]) == ([[], [79]], [])


def test_a_gpu_that_becomes_unreadable_is_reported_twice_at_most(watch: On) -> None:
    """Its quantities change together, and not one per life of the container."""
    on = watch("h100-sxm-8")
    ended = on.after(lambda: on.hardware.fault("refused", calls=READINGS))
    assert "GPU-1" in ended.why
    assert len(on.reports(looks=100)) <= 1
    ended = on.after(on.hardware.heal)
    assert "GPU-1" in ended.why


def test_a_gpu_that_must_be_reset_is_one_report_though_most_calls_answer(two: Watch) -> None:
    """Also where only a call says so that is made now and then: a new handle is asked everything at once."""
    two.hardware.fault("refused", calls="nvmlDeviceGetRetiredPages", code=RESET_REQUIRED)
    assert two.reports(looks=75) == ["changed: error GPU-1 none -> reset-required"]


def test_the_loss_of_a_gpu_is_no_news_of_its_peers(two: Watch) -> None:
    """Its own error says it all; its links are down for both ends."""
    two.hardware.fault("gpu-lost", gpu=1)
    first, *more = two.reports()
    assert "error GPU-1 none -> gpu-lost" in first
    assert "P2P" not in " ".join([first, *more])
