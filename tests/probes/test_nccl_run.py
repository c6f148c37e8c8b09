"""The benchmark as a whole on simulated machines, with a child of the test's own or the project's engines."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodegauge_contract import Unavailable, decode
from nodegauge_contract.nvlink import lanes
from support.nccl_probe import NcclOn, NcclRun
from support.nccltests import installed
from testbed.wait import wait_for

pytestmark = pytest.mark.slow

SAVE_INPUT = """
with open({path!r} + "/" + arm, "w") as file:
    json.dump({{"order": order, "environment": dict(os.environ)}}, file)
"""


@pytest.fixture
def two(nccl_on: NcclOn) -> NcclRun:
    return nccl_on("titan-rtx-nv2")


def well(run: NcclRun, before: str = "") -> NcclRun:
    return run.child(before + SAVE_INPUT.format(path=str(run.folder)) + "all_well()", arm="all")


def child_input(run: NcclRun, arm: str) -> Any:
    return json.loads((run.folder / arm).read_text())


@pytest.mark.parametrize("profile", ["h100-sxm-8", "vm-hidden-pci-8"])
def test_the_same_document_holds_what_nvml_says(nccl_on: NcclOn, profile: str) -> None:
    run = well(nccl_on(profile))
    result = run.result()
    health = run.result("--window", "0.1", probe="health")
    assert result.nccl.uuids == [gpu.uuid for gpu in health.gpus]
    assert (result.system, result.pairs, result.bus) == (health.system, health.pairs, health.bus)
    assert lanes(result) == lanes(health)
    for mine, theirs in zip(result.gpus, health.gpus, strict=True):
        for name in ("uuid", "name", "pci", "mig", "links", "switch_links", "fabric", "numa_node"):
            assert getattr(mine, name) == getattr(theirs, name), name
        links = [(gpu.pcie.max_generation, gpu.pcie.max_width) for gpu in (mine, theirs)]
        assert links[0] == links[1]


def test_children_are_told_who_and_what(two: NcclRun) -> None:
    two.environment |= {"NCCL_ALGO": "Tree", "NCCL_SHM_DISABLE": "1"}
    nccl = well(two).nccl("--environment", '{"NCCL_MIN_CTAS": "4"}')
    given = child_input(two, "p2p-off")
    environment = given["environment"]
    assert environment["CUDA_VISIBLE_DEVICES"] == ",".join(nccl.uuids)
    assert given["order"]["uuids"] == nccl.uuids
    assert environment["NCCL_MIN_CTAS"] == "4"
    assert not {"NCCL_ALGO", "NCCL_SHM_DISABLE"} & environment.keys()
    assert (environment["NCCL_P2P_DISABLE"], environment["NCCL_NVLS_ENABLE"]) == ("1", "0")


def test_every_arm_is_a_process_of_its_own_in_a_session_of_its_own(two: NcclRun) -> None:
    body = "os.environ |= {'PID': str(os.getpid()), 'SID': str(os.getsid(0)), 'GROUP': str(os.getpgrp())}\n"
    well(two, body).nccl()
    one, other = (child_input(two, arm)["environment"] for arm in ("default", "p2p-off"))
    assert one["PID"] == one["SID"] == one["GROUP"] != other["PID"]
    logs = [Path(environment["NCCL_DEBUG_FILE"]).parent for environment in (one, other)]
    assert logs[0] != logs[1]
    assert not any(folder.exists() for folder in logs)


CLOSING = """
import sys
import pynvml
from nodegauge_probes.cli import main

shutdown, path = pynvml.nvmlShutdown, sys.argv.pop(1)

def closing():
    shutdown()
    open(path, "w").close()

pynvml.nvmlShutdown = closing
sys.exit(main())
"""


def test_nvml_is_closed_before_a_child_starts(two: NcclRun) -> None:
    """An open client is one more process on every GPU, and keeps a driver from being unloaded."""
    closed = two.folder / "closed"
    body = f"sys.exit(7) if not os.path.exists({str(closed)!r}) else all_well()"
    command = [sys.executable, "-c", CLOSING, str(closed), "nccl"]
    ran = subprocess.run(command, env=two.child(body, arm="all").env(), capture_output=True, check=False)
    nccl = decode(ran.stdout.decode()).nccl
    assert [arm.outcome for arm in nccl.arms] == ["done", "done"]


@pytest.mark.parametrize(
    ("profile", "skip"), [("t4-1", "single-gpu"), ("a100-mig-4", "mig"), ("h100-sxm-8", "shared")]
)
def test_no_child_starts_on_a_node_that_is_skipped(nccl_on: NcclOn, profile: str, skip: str) -> None:
    run = well(nccl_on(profile))
    if skip == "shared":
        run.environment["NODEGAUGE_SHARED"] = "mps"
    nccl = run.nccl()
    assert (nccl.skipped, nccl.arms, nccl.ranks) == (skip, [], 0)
    assert nccl.message
    assert not (run.folder / "default").exists()


THROTTLED = """
path = {path!r}
count = int(open(path).read().split()[1])
open(path, "w").write(f"nr_throttled {{count + 3}}")
all_well()
"""


def test_throttling_while_measuring_is_counted(two: NcclRun) -> None:
    stat = two.folder / "machine/sys/fs/cgroup/cpu.stat"
    stat.parent.mkdir(parents=True)
    stat.write_text("nr_throttled 40")
    assert two.child(THROTTLED.format(path=str(stat)), arm="all").nccl().throttled_periods == 6


LOGGED = """
path = os.environ["NCCL_DEBUG_FILE"].replace("%h", "node").replace("%p", str(os.getpid()))
with open(path, "w") as log:
    for line in {lines!r}:
        log.write("node:1:1 [0] NCCL " + line + "\\n")
{body}
"""
CHOSEN = (
    "INFO NCCL version 2.30.1+cuda12.9",
    "INFO NVLS multicast support is available on dev 0",
    "INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "INFO 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer",
    "INFO AllReduce: 1073741824 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}",
    "INFO AllGather: 134217728 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}",
    "INFO MMAP allocated shareable host buffer /dev/shm/nccl-Qd size 4096 ptr 0x7f",
    "INFO Init timings - ncclCommInitAll: rank 0 nranks 2 total 55.10 (kernels 52.05, alloc 0.1)",
)


def test_what_nccl_chose_and_why_it_was_slow_stands_beside_the_numbers(nccl_on: NcclOn) -> None:
    """A cold B200 spends its start on loading kernels, by NCCL's own timings."""
    run = nccl_on("h100-sxm-8")
    body = LOGGED.format(lines=CHOSEN, body="all_well()")
    arm = run.child(body).arms()["default"]
    assert (arm.transport, arm.nvls, arm.channels, arm.host_buffers) == ("P2P/CUMEM", True, 24, "/dev/shm")
    assert (arm.multicast, arm.message) == (True, "init 55 s, of which kernels 52 s")
    chosen = {(cell.collective, cell.bytes): (cell.algorithm, cell.protocol) for cell in arm.cells}
    assert chosen["all_reduce", 1 << 30] == ("NVLS", "SIMPLE")
    assert chosen["all_gather", 1 << 30] == ("RING", "SIMPLE")
    assert chosen["all_reduce", 8] == (Unavailable("not read"), Unavailable("not read"))


def test_nvls_that_breaks_one_arm_leaves_the_others(nccl_on: NcclOn) -> None:
    run = nccl_on("h100-sxm-8")
    failed = "phases('init'); emit(failed={'kind': 'nccl-error', 'message': 'unhandled cuda error'})"
    warning = ("WARN Cuda failure 'out of memory' in NVLS multicast",)
    arms = run.child(LOGGED.format(lines=warning, body=failed)).arms()
    assert [arm.outcome for arm in arms.values()] == ["failed", "done", "done"]
    assert "unhandled cuda error" in arms["default"].message
    assert "NVLS multicast" in arms["default"].message


COLD = """
if arm in {slow!r} and not os.path.exists({mark!r} + arm):
    open({mark!r} + arm, "w")
    phases(*{phases!r})
    time.sleep(60)
all_well()
"""


@pytest.mark.parametrize(
    ("profile", "slow", "phases", "ends"),
    [
        ("titan-rtx-nv2", ["default"], [], {"default": 2, "p2p-off": 1}),
        ("titan-rtx-nv2", ["p2p-off"], ["init"], {"default": 1, "p2p-off": 2}),
        ("h100-sxm-8", ["default", "nvls-off"], ["init"], {"default": 2, "p2p-off": 1, "nvls-off": 2}),
    ],
)
def test_an_arm_with_a_cold_start_is_started_again(
    nccl_on: NcclOn, profile: str, slow: list[str], phases: list[str], ends: dict[str, int]
) -> None:
    run = nccl_on(profile)
    body = COLD.format(slow=slow, mark=f"{run.folder}/", phases=phases)
    arms = run.child(body, arm="all").arms("--limits", "4,9,9")
    assert {name: arm.starts for name, arm in arms.items()} == ends
    assert {arm.outcome for arm in arms.values()} == {"done"}


def test_pull_asks_who_would_measure_and_touches_no_gpu(nccl_on: NcclOn) -> None:
    run = nccl_on("h100-sxm-8")
    run.child("sys.exit(1)", arm="nobody").hardware.fault("driver-mismatch")
    result = run.result(probe="pull")
    assert (result.problem, result.gpus, result.probe) == (None, [], "pull")
    assert (result.nccl.engine, result.nccl.nccl, result.nccl.arms) == ("script", "2.32.3", [])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("emit(failed={'kind': 'no-engine', 'message': 'libnccl.so.2: cannot open'})", "libnccl.so.2"),
        ("raise ImportError('No module named nccl')", "No module named nccl"),
        ("time.sleep(60)", "not started after 3 s"),
    ],
)
def test_pull_says_when_the_engine_cannot_be_loaded(nccl_on: NcclOn, body: str, message: str) -> None:
    run = nccl_on("t4-1").child(body)
    script = run.folder / "child.py"
    script.write_text(script.read_text().replace("if not ranks or", "if"))
    result = run.result("--limits", "3,2,2", probe="pull")
    assert (result.problem.kind, result.problem.call) == ("no-engine", "nccl4py")
    assert message in result.problem.message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_probe_kills_the_children_first(two: NcclRun, number: signal.Signals) -> None:
    touch = two.folder / "measuring"
    body = f"""
subprocess.Popen(["sleep", "600"], start_new_session=True)
engine(); phases("init", "load", "measure"); cell(0)
open({str(touch)!r}, "w"); time.sleep(600)
"""
    run = two.child(body).start()
    wait_for(touch.exists, what="a child that measures")
    os.kill(run.pid, number)
    result = two.finish(run)
    assert result.problem.kind == "terminated"
    arm, later = result.nccl.arms
    assert (arm.outcome, arm.phase, len(arm.cells)) == ("cut", "measure", 1)
    assert (later.name, later.outcome, later.phase) == ("p2p-off", "cut", "")
    assert result.gpus[0].uuid == result.nccl.uuids[0]


def test_the_run_s_own_time_ends_arms_and_not_the_result(two: NcclRun) -> None:
    nccl = two.child("phases('init', 'load', 'measure'); cell(0); time.sleep(60)").nccl("--deadline", "4")
    assert [(arm.name, arm.outcome) for arm in nccl.arms] == [("default", "cut"), ("p2p-off", "cut")]
    assert ([len(arm.cells) for arm in nccl.arms], nccl.arms[0].phase) == ([1, 0], "measure")
    assert nccl.arms[1].spawn_ms == Unavailable("not read")


FAKES = Path(__file__).parent / "fakes"


@pytest.mark.parametrize(("processes", "number"), [("one", 1), ("auto", 2)])
def test_nccl4py_measures_every_arm(nccl_on: NcclOn, tmp_path: Path, processes: str, number: int) -> None:
    """What there is no memory for is cut and named; the rest is there, with the right data."""
    run = nccl_on("pcie-phb-2")
    run.environment |= {
        "PYTHONPATH": os.pathsep.join([str(FAKES), *sys.path]),
        "NODEGAUGE_FAKE_BYTES": "65536",
        "NODEGAUGE_FAKE_FOLDER": str(tmp_path),
        "NODEGAUGE_FAKE_US": "30000",
    }
    nccl = run.nccl("--engine", "nccl4py", "--processes", processes)
    assert {arm.processes for arm in nccl.arms} == {number}
    versions = (nccl.engine, nccl.engine_version, nccl.nccl, nccl.cuda)
    assert versions == ("nccl4py", "0.6.0", "2.32.3", "12.9")
    assert [(arm.name, arm.outcome) for arm in nccl.arms] == [("default", "done"), ("p2p-off", "done")]
    default, off = nccl.arms
    assert {(cell.collective, cell.bytes) for cell in default.cells} == {
        *(("all_reduce", size) for size in (8, 4096, 65536)),
        *((name, 65536) for name in ("all_gather", "reduce_scatter")),
    }
    assert [(cell.collective, cell.bytes) for cell in off.cells] == [("all_reduce", 65536)]
    assert {cell.wrong for arm in nccl.arms for cell in arm.cells if cell.bytes == 65536} == {0}
    assert {"all_reduce/1073741824", "p2p-off:all_reduce/268435456", "pairs/268435456"} <= set(nccl.cut)


def test_without_its_packages_nccl4py_is_skipped(nccl_on: NcclOn) -> None:
    nccl = nccl_on("pcie-phb-2").nccl("--engine", "nccl4py")
    assert (nccl.skipped, nccl.arms, nccl.ranks) == ("no-engine", [], 0)
    assert "nccl" in nccl.message


def test_nccl_tests_measures_every_arm(nccl_on: NcclOn, tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    run = nccl_on("h100-sxm-8")
    run.environment["NODEGAUGE_NCCL_TESTS"] = str(installed(folder))
    nccl = run.nccl("--engine", "nccl-tests")
    assert (nccl.engine, nccl.engine_version, nccl.nccl) == ("nccl-tests", "2.18.3", "2.30.3")
    arms = [(arm.name, arm.outcome, len(arm.cells)) for arm in nccl.arms]
    assert arms == [("default", "done", 10), ("p2p-off", "done", 4), ("nvls-off", "done", 1)]
    assert nccl.cut == ["pairs/268435456"]
    assert {cell.wrong for arm in nccl.arms for cell in arm.cells} == {0}
