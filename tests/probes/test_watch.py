"""The watch probe: silent while nothing changes, and a reading with the reason when something does.

Also under a driver that hangs, or that refuses some calls and answers others: the probe stays.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

import pytest
import trustme

from nodegauge_contract import RepeatedXid, Unavailable, decode, text
from nodegauge_contract.reading import PART_BYTES
from nodegauge_judge import Answer, Severity, judge_health
from nodegauge_probes.alive import is_young
from nodegauge_probes.watch.state import load
from support.probing import Probe
from support.readings_api import ReadingsApi, serving
from support.watch_probe import Watch
from testbed.hardware import Hardware
from testbed.hardware.fault import FAULTS, Fault
from testbed.hardware.machine import Machine
from testbed.hardware.plugged import boottime_ns
from testbed.wait import DEADLINE_SECONDS, wait_for

pytestmark = pytest.mark.slow

On = Callable[[str], Watch]
UNKNOWN, RESET_REQUIRED = 999, 16
SECOND = 10**9


def refused(machine: Machine, *, calls: str = "", gpu: int = 1, code: int = UNKNOWN) -> None:
    for call in calls.split():
        machine.calls[gpu, call] = code


@pytest.fixture
def fresh(probe: Callable[[str], Probe], monkeypatch: pytest.MonkeyPatch) -> On:
    """`fresh("h100-sxm-8")`: that machine, plugged in, and the watch probe on it."""
    monkeypatch.setitem(FAULTS, "refused", Fault(name="refused", does="", apply=refused))
    return lambda profile: Watch(probe(profile))


@pytest.fixture
def watch(fresh: On) -> On:
    def on(profile: str) -> Watch:
        made = fresh(profile)
        assert made.life().why == "first"
        return made

    return on


@pytest.fixture
def two(watch: On) -> Watch:
    return watch("titan-rtx-nv2")


def test_the_first_reading_is_a_health_document(fresh: On) -> None:
    on = fresh("h100-sxm-8")
    first = on.life()
    assert first.why == "first"
    assert (first.result.probe, first.result.run, len(first.result.gpus)) == ("health", "run-1", 8)
    assert first.result.problem is None
    assert len(text(first.result).encode()) <= PART_BYTES["health"]
    assert not on.probe.termination_log.exists()


def test_a_library_that_a_claim_should_bring_in_is_looked_for_there(fresh: On, tmp_path: Path) -> None:
    on = fresh("titan-rtx-nv2")
    on.probe.environment |= {"LD_LIBRARY_PATH": str(tmp_path), "NODEGAUGE_DRIVER_ACCESS": "DRA"}
    problem = on.life().result.problem
    assert "kubelet plugin" in problem.message


CALM = "h100-sxm-8-drv580 b200-sxm-8 v100-vm-8 vgpu-2 a100-mig-4 gb200-4 titan-rtx-vfio-4"


@pytest.mark.parametrize("profile", CALM.split())
def test_a_calm_node_is_left_alone(watch: On, profile: str) -> None:
    on = watch(profile)
    with on.started() as life:
        life.calm(looks=35)
        on.hardware.load(60)
        life.calm()


CHANGES: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("h100-sxm-8", "gpu-lost", {"gpu": 3}, "error GPU-3|silent GPUs", "gpu-lost"),
    ("h100-sxm-8", "gpu-lost", {"gpu": 3, "nvml": "absent"}, "GPUs 8 -> 7|silent GPUs", "gpus-not-visible"),
    ("h100-sxm-8", "hot", {"gpu": 3}, "temperature GPU-3 33 °C -> 95 °C", ""),
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
    ("h100-sxm-8", "undersized-power-source", {"gpu": 5}, "power source GPU-5", ""),
    ("h100-sxm-8", "nic-down", {"nic": 0}, "port ", ""),
    ("rtx3090-nv4-2", "pcie-width-halved", {"gpu": 1}, "PCIe width GPU-1", ""),
]


@pytest.mark.parametrize(("profile", "fault", "parameters", "why", "code"), CHANGES)
def test_a_change_is_told(
    watch: On, profile: str, fault: str, parameters: dict[str, Any], why: str, code: str
) -> None:
    """With its reason, and so that the judge finds it where one run is enough.  Of two values that a fault
    changes, the reason is the one that is read first; the other brings the next reading."""
    on = watch(profile)
    with on.started() as life:
        life.calm()
        on.hardware.fault(fault, **parameters)
        reading = life.next_reading()
        assert reading.why.startswith("changed: ")
        assert re.search(why, reading.why), reading.why
        if code and code not in reading.codes:
            life.until(lambda later: code in later.codes, what=code)


def test_a_slowdown_without_a_counter_is_judged_as_by_a_health_pod(fresh: On) -> None:
    """The umbrella bit fails only over two seconds (`bitFailSeconds`): the reading goes on for as long."""
    on = fresh("h100-sxm-8")
    on.hardware.load(100)
    on.life()
    on.hardware.fault("hw-slowdown", gpu=5)
    reading = on.life("--hz", "4", "--window", "1", "--slowed-window", "3")
    assert "throttle reasons GPU-5" in reading.why
    judgement = judge_health(reading.result)
    assert judgement.answers["hw-slowdown"] is Answer.BAD
    assert "hw-slowdown" in {f.code for f in judgement.findings if f.severity is Severity.FAIL}


@pytest.mark.parametrize("fault", ["hot", "gpu-lost"])
def test_the_end_of_a_fault_is_told(watch: On, fault: str) -> None:
    on = watch("h100-sxm-8")
    with on.started() as life:
        life.calm()
        on.hardware.fault(fault, gpu=3)
        life.until(lambda reading: "GPU-3" in reading.why, what="the fault")
        on.hardware.heal()
        reading = life.until(
            lambda reading: "GPU-3" in reading.why and reading.result.gpus[3].error is None, what="its end"
        )
        assert "gpu-lost" not in reading.codes


def test_an_xid_is_told_at_once(watch: On) -> None:
    on = watch("h100-sxm-8")
    with on.started("--poll", "60") as life:
        life.looks_once()
        on.hardware.fault("xid", gpu=3, number=79)
        reading = life.next_reading()
        assert life.looks <= 2, "none but the one after the reading"
    assert "Xid 79 GPU-3" in reading.why
    assert reading.xids == [[]] * 3 + [[79]] + [[]] * 4
    assert "xid" in reading.codes


def test_the_kernels_log_is_followed_without_what_nvml_told(fresh: On) -> None:
    """A new life goes on where the last one ended, and the driver's own line about an Xid is no event."""
    on = fresh("titan-rtx-nv2")
    log, option = on.probe.folder / "kern.log", ("--kernel-log", str(on.probe.folder / "kern.log"))
    now = boottime_ns() / 1e9

    def append(sentence: str) -> None:
        with log.open("a") as file:
            file.write(f"n kernel: [{now:.6f}] {sentence}\n")

    def switch(code: int) -> None:
        append(f"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {code}, Non-fatal, Link 32 egress")

    append("EXT4-fs: mounted")
    assert on.life(*option).result.kernel_log.events == []
    changed = on.after(partial(switch, 12028), *option)
    assert changed.why.startswith("changed: kernel log 0 events -> 1 events")
    assert "kernel-log" in changed.codes
    with on.started(*option) as life:
        life.calm()
        on.hardware.fault("xid", gpu=1, number=48, per_second=0)
        assert life.next_reading().xids[1] == [48]
        append(f"NVRM: Xid (PCI:{changed.result.gpus[1].pci.rpartition('.')[0]}): 48, pid=1")
        switch(12029)
        read = life.next_reading().result.kernel_log.events
    assert [(event.code, event.count) for event in read] == [(12028, 1), (12029, 1)]


def test_what_was_told_is_repeated_and_is_no_reason_for_a_reading(two: Watch) -> None:
    """A reading may be overwritten before anybody saw it: the next ones have its Xids as well, apart from new
    ones and with the times of then."""
    first = two.after(lambda: two.hardware.fault("xid", gpu=1, number=79, per_second=0)).result
    reading = two.after(lambda: two.hardware.fault("xid", gpu=0, number=48, per_second=0))
    [came] = first.gpus[1].xids.counts
    assert (first.watch.repeated, first.watch.at >= came.last) == ([], True)
    assert reading.xids == [[48], []]
    repeated = RepeatedXid(gpu=1, code=79, count=came.count, first=came.first, last=came.last)
    assert reading.result.watch.repeated == [repeated]
    with two.started() as life:
        life.calm()


def test_xids_half_a_second_apart_are_all_told_and_each_once(two: Watch) -> None:
    codes = list(range(100, 112))
    counts: dict[int, int] = {}
    with two.started("--window", "1") as life:
        life.calm()
        now = boottime_ns()
        for at, code in enumerate(codes, start=1):
            hardware = Hardware(two.hardware.directory, clock=partial(add, now, at * SECOND // 2))
            hardware.fault("xid", gpu=1, number=code, per_second=0)
        while set(counts) != set(codes):
            xids = life.next_reading().result.gpus[1].xids
            for code, heard in zip(xids.seen, xids.counts, strict=True):
                counts[code] = counts.get(code, 0) + heard.count
        life.calm(looks=60)
    assert counts == dict.fromkeys(codes, 1)


def test_sigterm_ends_it_without_another_look_or_reading(watch: On) -> None:
    """Its node is about to be drained, or its driver to be unloaded."""
    on = watch("h100-sxm-8")
    with on.started("--poll", "60", "--window", "20") as life:
        life.looks_once()
        assert (life.end(), life.looks) == (0, 1)
        assert (life.errors, life.readings) == (["SIGTERM: ends"], [])


def test_a_driver_that_goes_away_is_told(two: Watch) -> None:
    state = two.hardware.directory / "driver.state"
    away = state.with_name("away")
    with two.started() as life:
        life.calm()
        state.rename(away)
        reading = life.next_reading()
        assert "NVML" in reading.why
        assert reading.result.problem.kind == "driver-not-loaded"
        life.calm()
        away.rename(state)
        back = life.next_reading()
        assert "driver-not-loaded" in back.why
        assert back.result.problem is None


ECC = "nvmlDeviceGetTotalEccErrors"
HANGS = ("--deadline", "6")


@pytest.mark.parametrize("call", [ECC, "nvmlDeviceGetPowerUsage", "nvmlDeviceGetUUID"])
def test_a_call_that_hangs_is_told_and_the_other_gpus_go_on_being_read(two: Watch, call: str) -> None:
    with two.started(*HANGS) as life:
        life.calm()
        two.hardware.fault("hung-call", call=call, gpu=1)
        hung = life.until(lambda reading: reading.why.startswith("hung"), what="the hang")
        assert hung.why == f"hung: {call}"
        problem = hung.result.problem
        assert (problem.kind, problem.call, "GPU 1" in problem.message) == ("call-hung", call, True)
        assert "call-hung" in hung.codes
        life.until(lambda reading: "GPU-1 none -> call-hung" in reading.why, what="the GPU's own error")
        two.hardware.fault("hot", gpu=0)
        reading = life.until(lambda reading: "temperature GPU-0" in reading.why, what="the other GPU")
        well, hanging = reading.result.gpus
        assert (well.error, hanging.error.kind, hanging.error.call) == (None, "call-hung", call)
        assert not isinstance(well.power.usage_mw, Unavailable)
        assert reading.result.problem.call == call


@pytest.mark.parametrize(
    ("function", "call", "gpus"),
    [("nvmlInitWithFlags", "nvmlInit", 0), ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetPowerUsage", 2)],
    ids=["in a look", "in a reading"],
)
def test_a_driver_that_hangs_at_once_is_told(fresh: On, function: str, call: str, gpus: int) -> None:
    on = fresh("titan-rtx-nv2")
    on.hardware.fault("hung-call", call=function)
    with on.started("--deadline", "3") as life:
        reading = life.next_reading()
        seen = (reading.why, len(reading.result.gpus), reading.result.problem.kind)
        assert seen == (f"hung: {call}", gpus, "call-hung")


ROUND = """
import os
from pathlib import Path
from nodegauge_probes import health
from nodegauge_probes.result_builder import ResultBuilder
from nodegauge_probes.settings import parse
from nodegauge_probes.watch.host import Host
from nodegauge_probes.watch.reader import Reader

class Calls(set):
    def enter(self, call, subject):
        self.add((call, subject))

    def leave(self):
        pass

settings = parse(["watch", "--window", "0.1"], os.environ, probes=["watch"], engines=["nccl4py"])
looked, read = Calls(), Calls()
host = Host(sysfs=Path("/none"), procfs=Path("/none"), every=1)
reader = Reader(watch=looked, options=settings.watch, host=host, values={})
reader.look()
looked.clear()
for _ in range(16 * len(reader.identified()) + 1):
    reader.look()
reader.wait(0)
health.measure(ResultBuilder(probe="", run="", node=""), watch=read, settings=health.settings_of(settings))
print(sorted(read - looked))
"""


@pytest.mark.parametrize("profile", ["titan-rtx-nv2", "b200-sxm-8"])
def test_a_round_of_looks_makes_every_call_of_a_reading(fresh: On, profile: str) -> None:
    """So that none of them can hang for hours unseen; sixteen looks for each GPU are a round."""
    environment = fresh(profile).probe.env()
    command = [sys.executable, "-c", ROUND]
    assert subprocess.check_output(command, env=environment, text=True) == "[]\n"


def test_a_wait_longer_than_the_deadline_is_none(watch: On) -> None:
    """The deadline is that of a look and of a reading, and waiting for an event is no call that hangs."""
    on = watch("rtx3060-1")
    with on.started("--deadline", "3", "--poll", "4") as life:
        life.calm(looks=2)


def test_it_is_small(watch: On) -> None:
    """The memory of the container on eight H100."""
    on = watch("h100-sxm-8")
    with on.started(start=subprocess.Popen) as life:
        life.calm()
        status = Path(f"/proc/{life.process.pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert int(peak[1]) < 40 * 1024


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 2}', '{"boot_id": "\udcff"}'])
def test_a_state_that_cannot_be_used_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "watch.json").write_text(content, errors="surrogateescape")
    assert load(tmp_path / "watch.json", boot_id="boot-1") is None


def test_numbers_of_readings_go_on_where_the_container_before_ended(two: Watch) -> None:
    first = two.stored()["sequence"]
    two.after(lambda: two.hardware.fault("hot", gpu=1))
    assert two.stored()["sequence"] == first + 1
    two.state.unlink()
    assert two.life().why == "first"
    assert two.stored()["sequence"] > first + 1
    two.hardware.reboot()
    assert two.life().why == "first", "a state of another boot is none"


def test_a_state_that_cannot_be_written_is_said(fresh: On) -> None:
    with fresh("rtx3060-1").started("--state", "/proc/watch.json", "--confirm", "0.1") as life:
        assert [life.next_reading().why, life.next_reading().why] == ["first", "confirmed: 1 of 1"]
        assert life.errors[0].startswith("state /proc/watch.json: ")


@pytest.mark.parametrize("call", ["nvmlDeviceGetCount_v2", "nvmlDeviceGetTemperature"])
def test_an_xid_is_told_that_comes_while_a_look_hangs(two: Watch, call: str) -> None:
    """As when a GPU falls off the bus: the call under way does not return, and then comes the Xid."""

    def fails() -> None:
        two.hardware.fault("hung-call", call=call)
        later = Hardware(two.hardware.directory, clock=lambda: boottime_ns() + SECOND)
        later.fault("xid", gpu=1, number=79, per_second=0)

    reading = two.after(fails, *HANGS)
    assert (reading.result.problem.call, reading.xids) == (call.removesuffix("_v2"), [[], [79]])
    assert {"xid", "call-hung"} <= reading.codes
    assert two.life(*HANGS).result.gpus == []


def test_an_xid_waits_for_the_next_life_if_the_container_is_asked_to_end(two: Watch) -> None:
    with two.started("--window", "30", "--deadline", "60") as life:
        life.calm()
        two.hardware.fault("xid", gpu=1, number=79, per_second=0)
        wait_for(lambda: two.stored()["xids"], what="the Xid in the state")
        assert (life.end(), life.readings) == (0, [])
        assert "ended before anybody was told of 1 Xids" in life.errors
    reading = two.life()
    assert "Xid 79 GPU-1" in reading.why
    assert (reading.xids, two.stored()["xids"]) == ([[], [79]], [])


def test_a_gpu_that_must_be_reset_is_one_reading_though_most_calls_answer(two: Watch) -> None:
    """Also where only a call says so that is made now and then: a new handle is asked everything at once."""
    two.hardware.fault("refused", calls="nvmlDeviceGetRetiredPages", code=RESET_REQUIRED)
    assert two.reports(looks=75) == ["changed: error GPU-1 none -> reset-required"]


@pytest.fixture
def api(two: Watch) -> Iterator[ReadingsApi]:
    with serving(two.probe.folder / "pod", trustme.CA()) as api:
        two.probe.environment |= {
            "KUBERNETES_SERVICE_HOST": api.server.host,
            "KUBERNETES_SERVICE_PORT": str(api.server.port),
            "NODEGAUGE_TOKEN_FOLDER": str(api.server.folder),
        }
        yield api


def test_windows_of_feed_are_written_into_a_part_of_their_own(two: Watch, api: ReadingsApi) -> None:
    two.hardware.load(100, gpu=1)
    with two.started("--feed-window=0.5") as life:
        wait_for(lambda: any("feed" in request.body for request in api.requests), what="a window")
        assert life.end() == 0
    part = next(request.body["feed"] for request in api.requests if "feed" in request.body)
    window = decode(part["reading"])
    assert (window.probe, part["reason"], part["podUID"]) == ("feed", "first", "pod-uid")
    assert [gpu.utilization for gpu in window.feed.gpus] == [0, 100]
    assert [gpu.uuid for gpu in window.gpus] == [gpu.uuid for gpu in two.probe.result().gpus]


def test_in_a_cluster_each_reading_is_written_into_the_nodes_object(two: Watch, api: ReadingsApi) -> None:
    """An API server that refuses ends nothing: the container is ready once a reading is written."""
    two.state.unlink()
    ready = two.probe.folder / "ready"
    api.refuses(503, "not now")
    with two.started() as life:
        life.next_reading()
        wait_for(lambda: any("answered 503: not now" in line for line in life.errors), what="the refusal")
        assert not ready.exists()
        two.hardware.fault("hot", gpu=1)
        newest = life.next_reading()
        wait_for(lambda: api.requests[-1].body["health"]["reason"] == newest.why, what="the newest reading")
        wait_for(ready.exists, what="a write")
        assert is_young(two.probe.folder / "alive", DEADLINE_SECONDS)
        os.utime(ready, (0, 0))
        wait_for(lambda: is_young(ready, DEADLINE_SECONDS), what="a container that stays ready")
        assert life.end() == 0
    part = api.requests[-1].body["health"]
    assert decode(part["reading"]) == newest.result
    assert (part["podUID"], part["nodeUID"]) == ("pod-uid", "node-uid")
    assert part["sequence"] == api.requests[0].body["health"]["sequence"] + 1
