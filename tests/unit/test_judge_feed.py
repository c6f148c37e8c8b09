"""Why allocated GPUs wait: each cause with two neighbours, what is sound, and gaps that are said."""

from typing import Any

import pytest
from msgspec import convert

from nodegauge_contract import Result
from nodegauge_contract.feed import FeedResult
from nodegauge_judge import CATALOGUE, Severity, Verdict
from nodegauge_judge.feed.case import FeedPod
from nodegauge_judge.feed.judge import FeedJudgement, judge_feed
from support.feed_windows import BUSY_DISK, FED, HOLLOW, IDLE, STARVED, feed, gpu

UNREAD = {"unavailable": "ENOENT"}
UID = "0b1c2d3e-1111-4222-8333-444455556666"


def window(*gpus: dict[str, Any], pods: list[FeedPod] | None = None, **machine: Any) -> FeedJudgement:
    return judge_feed(feed(*gpus, **machine), pods=pods)


def group(**numbers: Any) -> dict[str, Any]:
    return {"pod_uid": UID, "cpu_cores": 7.7, "throttled_share": 0.0} | numbers


def row(expected: str, *gpus: dict[str, Any], **machine: Any) -> tuple[Any, ...]:
    """A window of these GPUs, or of two that starve; numbers of the machine; and what follows."""
    return gpus or STARVING, machine, expected


STARVING = [gpu(0, **STARVED), gpu(1, **STARVED)]
HOLLOWS = [gpu(index, **HOLLOW) for index in range(4)]
CAUSES = {
    "quota by its group": row(
        "cpu-quota", groups=[group(cpu_quota=8, throttled_share=0.62)], pressure={"cpu": 0.5}
    ),
    "quota without groups": row("cpu-quota", pressure={"cpu": 0.5}, cpu_busy=0.2),
    "quota on a machine that is full": row(
        "cpu-quota", groups=[group(cpu_quota=8, throttled_share=0.62)], pressure={"cpu": 0.25}, cpu_busy=0.86
    ),
    "too few cores": row("cpu-cores", pressure={"cpu": 0.6}, cpu_busy=0.98),
    "cores without pressure files": row("cpu-cores", pressure={"cpu": UNREAD}, cpu_busy=0.99, runnable=160),
    "a pinned pod": row(
        "cpu-cores", groups=[group(cpuset=8, pressure={"cpu": 0.5})], pressure={"cpu": 0.5}, cpu_busy=0.2
    ),
    "one loader thread": row("cpu-cores", busiest_cpus=2, cpu_busy=0.05),
    "storage": row("storage", pressure={"io": 0.6, "io_full": 0.3}, disks=BUSY_DISK),
    "storage without pressure files": row("storage", pressure={"io": UNREAD}, blocked=5, disks=BUSY_DISK),
    "network file system": row("network-storage", pressure={"io": 0.6}),
    "network file system that is seen": row(
        "network-storage", pressure={"io": 0.4}, network_mounts=1, network_read_mbps=300, disks=BUSY_DISK
    ),
    "a full port": row(
        "network-storage", ports=[{"name": "eth0", "rx_mbps": 1200, "tx_mbps": 20, "rate_gbps": 10}]
    ),
    "memory pressure": row("host-memory", pressure={"memory": 0.4}),
    "page cache that thrashes": row("host-memory", pressure={"io": 0.8}, refaults=26_000, disks=BUSY_DISK),
    "swap": row("host-memory", pressure={"io": 0.6}, swap_mbps=60, disks=BUSY_DISK),
    "PCIe into the GPU": row("pcie-or-numa", gpu(0, **STARVED, pcie_rx_mbps=50_000)),
    "PCIe out of it": row("pcie-or-numa", gpu(0, **HOLLOW, pcie_tx_mbps=50_000)),
    "one hot GPU": row(
        "one-slow-gpu-holds-all", gpu(0, **FED | {"sm_mhz": 900}, slowed_share=0.9), *HOLLOWS[1:]
    ),
    "one low clock": row("one-slow-gpu-holds-all", *HOLLOWS[:3], gpu(3, **FED | {"sm_mhz": 1100})),
    "one with all the work": row("one-slow-gpu-holds-all", *HOLLOWS[:3], gpu(3, **FED)),
    "small batches": row("small-batches", *HOLLOWS),
    "few active SMs": row("small-batches", gpu(0, **FED, sm_active=0.15)),
    "nothing is stalled": row("unknown"),
    "other nodes": row(
        "unknown",
        *HOLLOWS,
        ports=[{"name": "mlx5_0/1", "rx_mbps": 11_500, "tx_mbps": 11_500, "rate_gbps": 100}],
    ),
    "busy cores that nobody waits for": row(
        "unknown", pressure={"cpu": UNREAD}, cpu_busy=0.9, runnable=UNREAD
    ),
}


@pytest.mark.parametrize("name", CAUSES)
def test_each_cause_is_named_with_its_loss_and_its_remedy(name: str) -> None:
    gpus, machine, cause = CAUSES[name]
    judgement = window(*gpus, **machine)
    assert judgement.cause == cause, judgement
    assert sum(judgement.lost.values()) > 0.4
    assert set(judgement.lost) == {cause}
    (finding,) = judgement.findings
    assert finding.code == "gpu-underfed"
    assert finding.evidence["cause"] == cause
    assert "Next: " in finding.message
    assert "ADVICE" not in finding.message
    sure = judgement.confidence >= 0.5
    assert finding.severity is (Severity.WARN if sure else Severity.INFO)
    assert judgement.verdict is (Verdict.WARN if sure else Verdict.UNKNOWN)
    assert sure is (cause != "unknown" and name != "one loader thread")


SOUND = {
    "fed": row(Verdict.PASS, gpu(0, **FED)),
    "fed beside pressure": row(Verdict.PASS, gpu(0, **FED), pressure={"cpu": 0.9, "io": 0.9}, cpu_busy=1),
    "low power, busy SMs": row(Verdict.PASS, gpu(0, **HOLLOW, sm_active=0.9)),
    "low power, busy memory": row(Verdict.PASS, gpu(0, **HOLLOW | {"memory_utilization": 70})),
    "evaluation": row(
        Verdict.UNKNOWN,
        gpu(0, **FED | {"utilization": 68, "idle_share": 0.3, "full_share": 0.68, "swings": 2}),
    ),
    "start": row(
        Verdict.UNKNOWN,
        gpu(0, **FED | {"utilization": 30, "idle_share": 0.7, "full_share": 0.29, "swings": 1}),
        pressure={"io": 0.9},
        disks=BUSY_DISK,
    ),
    "nobody": row(Verdict.NO_LOAD, gpu(0, **IDLE | {"processes": 0, "memory_used_mib": 500})),
    "all GPUs work alike": row(Verdict.PASS, gpu(0, **FED), gpu(1, **FED | {"sm_mhz": 1750})),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_has_no_finding(name: str) -> None:
    gpus, machine, verdict = SOUND[name]
    judgement = window(*gpus, **machine)
    assert (judgement.findings, judgement.lost, judgement.cause) == ([], {}, "")
    assert judgement.verdict is verdict, judgement


@pytest.mark.parametrize(
    "numbers",
    [IDLE, {**IDLE, "utilization": 8, "idle_share": 0.8, "swings": 3}],
    ids=["idle", "few requests"],
)
def test_a_server_that_waits_for_requests_is_information_at_most(numbers: dict[str, Any]) -> None:
    judgement = window(gpu(0, **numbers), gpu(1, **FED))
    (finding,) = judgement.findings
    assert (finding.code, finding.severity) == ("gpu-allocated-idle", Severity.INFO)
    assert "inference server" in finding.message
    assert judgement.verdict is Verdict.PASS
    assert judgement.lost.keys() == {"idle"}
    assert judgement.allocated == 2


def test_an_idle_gpu_of_a_job_that_hangs_on_storage_starves_of_it() -> None:
    hangs = {"pressure": {"io": 0.99}, "blocked": 9}
    assert window(gpu(0, **IDLE), **hangs).cause == "network-storage"
    starting = window(gpu(0, **IDLE | {"memory_used_mib": 300}), **hangs)
    assert (starting.cause, [f.severity for f in starting.findings]) == ("", [Severity.INFO])


GAPS = {
    "no GPU": ((), {}, "NoGpuRead"),
    "a short window": row("TooShort", gpu(0, **STARVED), seconds=3),
    "no length": row("TooShort", gpu(0, **STARVED), seconds=UNREAD),
    "a GPU without numbers": row("GpuUnread", {"index": 0, "samples": 120}),
    "few samples": row("GpuUnread", gpu(0, **STARVED | {"samples": 2})),
    "busy, power unread": row("WorkUnread", gpu(0, **FED | {"power_mw": UNREAD})),
    "CPUs unread": row("EvidenceMissing", gpu(0, **FED), pressure={"cpu": UNREAD}),
    "I/O unread": row(
        "EvidenceMissing", gpu(0, **FED), pressure={"io": UNREAD}, cpu_iowait=UNREAD, blocked=UNREAD
    ),
    "memory unread": row("EvidenceMissing", gpu(0, **FED), pressure={"memory": UNREAD}, refaults=UNREAD),
}


@pytest.mark.parametrize("name", GAPS)
def test_a_gap_is_said_and_accuses_nobody(name: str) -> None:
    gpus, machine, reason = GAPS[name]
    judgement = window(*gpus, **machine)
    assert (judgement.verdict, judgement.reason, judgement.findings) == (Verdict.UNKNOWN, reason, [])
    assert "fed" not in judgement.summary


def test_starving_with_nothing_read_says_what_is_missing() -> None:
    unreadable = Result(probe="feed", feed=convert({"seconds": 120, "gpus": [gpu(0, **STARVED)]}, FeedResult))
    (finding,) = judge_feed(unreadable).findings
    assert finding.severity is Severity.INFO
    assert finding.evidence["cause"] == "unknown"
    assert "/proc/pressure/io" in finding.message
    assert "control groups" in finding.message
    assert judge_feed(Result(probe="feed")).reason == "NoWindow"


def test_a_rival_takes_half_of_the_confidence_and_is_named() -> None:
    both = window(*STARVING, pressure={"io": 0.9, "cpu": 0.9}, cpu_busy=1.0, disks=BUSY_DISK)
    assert (both.cause, both.confidence) == ("storage", 0.5)
    assert both.findings[0].evidence["also_possible"] == "cpu-cores"


def test_pods_that_hold_gpus_are_named_and_others_do_not_count() -> None:
    mine, other = (
        FeedPod(uid=UID.replace("-", "_"), name="ml/train-0", gpus=2),
        group(pod_uid="other", cpu_cores=40),
    )
    starved = window(*STARVING, pods=[mine], groups=[group(cpu_quota=8, throttled_share=0.62), other])
    assert (
        "pod ml/train-0 may use 8 cores and was stopped in 62% of its periods" in starved.findings[0].message
    )
    crowded = {"pressure": {"cpu": 0.6}, "cpu_busy": 0.98}
    neighbours = window(*STARVING, pods=[mine], groups=[group(), other | {"throttled_share": 0.9}], **crowded)
    assert neighbours.cause == "cpu-cores"
    assert "neighbours" in neighbours.findings[0].message
    assert window(gpu(0, **IDLE), pods=[]).allocated == 0
    both = window(gpu(0, **FED), gpu(1, **IDLE | {"processes": 0, "memory_used_mib": 3}), pods=[mine])
    assert (both.allocated, both.lost) == (2, {"idle": 1.0})


def test_nothing_about_feeding_can_taint() -> None:
    rules = [CATALOGUE["gpu-underfed"], CATALOGUE["gpu-allocated-idle"]]
    assert all(rule.gate is None and Severity.FAIL not in rule.when for rule in rules)
