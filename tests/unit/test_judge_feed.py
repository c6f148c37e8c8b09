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

UID = "0b1c2d3e-1111-4222-8333-444455556666"


def window(*gpus: dict[str, Any], pods: list[FeedPod] | None = None, **machine: Any) -> FeedJudgement:
    return judge_feed(feed(*gpus, **machine), pods=pods)


def group(**numbers: Any) -> dict[str, Any]:
    return {"pod_uid": UID, "cpu_cores": 7.7, "throttled_share": 0.0} | numbers


STARVING = [gpu(0, **STARVED), gpu(1, **STARVED)]
HOLLOWS = [gpu(index, **HOLLOW) for index in range(4)]
CAUSES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "quota by its group": (
        STARVING,
        {"groups": [group(cpu_quota=8, throttled_share=0.62)], "pressure": {"cpu": 0.5}},
        "cpu-quota",
    ),
    "quota without groups": (STARVING, {"pressure": {"cpu": 0.5}, "cpu_busy": 0.2}, "cpu-quota"),
    "quota on a machine that is full": (
        STARVING,
        {"groups": [group(cpu_quota=8, throttled_share=0.62)], "pressure": {"cpu": 0.25}, "cpu_busy": 0.86},
        "cpu-quota",
    ),
    "too few cores": (STARVING, {"pressure": {"cpu": 0.6}, "cpu_busy": 0.98}, "cpu-cores"),
    "cores without pressure files": (
        STARVING,
        {"pressure": {"cpu": {"unavailable": "ENOENT"}}, "cpu_busy": 0.99, "runnable": 160},
        "cpu-cores",
    ),
    "a pinned pod": (
        STARVING,
        {"groups": [group(cpuset=8, pressure={"cpu": 0.5})], "pressure": {"cpu": 0.5}, "cpu_busy": 0.2},
        "cpu-cores",
    ),
    "one loader thread": (STARVING, {"busiest_cpus": 2, "cpu_busy": 0.05}, "cpu-cores"),
    "storage": (STARVING, {"pressure": {"io": 0.6, "io_full": 0.3}, "disks": BUSY_DISK}, "storage"),
    "storage without pressure files": (
        STARVING,
        {"pressure": {"io": {"unavailable": "ENOENT"}}, "blocked": 5, "disks": BUSY_DISK},
        "storage",
    ),
    "network file system": (STARVING, {"pressure": {"io": 0.6}}, "network-storage"),
    "network file system that is seen": (
        STARVING,
        {"pressure": {"io": 0.4}, "network_mounts": 1, "network_read_mbps": 300, "disks": BUSY_DISK},
        "network-storage",
    ),
    "a full port": (
        STARVING,
        {"ports": [{"name": "eth0", "rx_mbps": 1200, "tx_mbps": 20, "rate_gbps": 10}]},
        "network-storage",
    ),
    "memory pressure": (STARVING, {"pressure": {"memory": 0.4}}, "host-memory"),
    "page cache that thrashes": (
        STARVING,
        {"pressure": {"io": 0.8}, "refaults": 40_000, "disks": BUSY_DISK},
        "host-memory",
    ),
    "swap": (STARVING, {"pressure": {"io": 0.6}, "swap_mbps": 60, "disks": BUSY_DISK}, "host-memory"),
    "PCIe into the GPU": ([gpu(0, **STARVED, pcie_rx_mbps=50_000)], {}, "pcie-or-numa"),
    "PCIe out of it": ([gpu(0, **HOLLOW, pcie_tx_mbps=50_000)], {}, "pcie-or-numa"),
    "one hot GPU": (
        [gpu(0, **FED | {"sm_mhz": 900}, slowed_share=0.9), *HOLLOWS[1:]],
        {},
        "one-slow-gpu-holds-all",
    ),
    "one low clock": ([*HOLLOWS[:3], gpu(3, **FED | {"sm_mhz": 1100})], {}, "one-slow-gpu-holds-all"),
    "one with all the work": ([*HOLLOWS[:3], gpu(3, **FED)], {}, "one-slow-gpu-holds-all"),
    "small batches": (HOLLOWS, {}, "small-batches"),
    "few active SMs": ([gpu(0, **FED, sm_active=0.15)], {}, "small-batches"),
    "nothing is stalled": (STARVING, {}, "unknown"),
    "other nodes": (
        HOLLOWS,
        {"ports": [{"name": "mlx5_0/1", "rx_mbps": 9000, "tx_mbps": 9000, "rate_gbps": 400}]},
        "unknown",
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
    assert sure is (name not in ("one loader thread", "nothing is stalled", "other nodes"))


SOUND: dict[str, tuple[list[dict[str, Any]], dict[str, Any], Verdict]] = {
    "fed": ([gpu(0, **FED)], {}, Verdict.PASS),
    "fed beside pressure": (
        [gpu(0, **FED)],
        {"pressure": {"cpu": 0.9, "io": 0.9}, "cpu_busy": 1},
        Verdict.PASS,
    ),
    "low power, busy SMs": ([gpu(0, **HOLLOW, sm_active=0.9)], {}, Verdict.PASS),
    "low power, busy memory": ([gpu(0, **HOLLOW | {"memory_utilization": 70})], {}, Verdict.PASS),
    "evaluation": (
        [gpu(0, **FED | {"utilization": 68, "idle_share": 0.3, "full_share": 0.68, "swings": 2})],
        {},
        Verdict.UNKNOWN,
    ),
    "start": (
        [gpu(0, **FED | {"utilization": 30, "idle_share": 0.7, "full_share": 0.29, "swings": 1})],
        {"pressure": {"io": 0.9}, "disks": BUSY_DISK},
        Verdict.UNKNOWN,
    ),
    "nobody": ([gpu(0, **IDLE | {"processes": 0, "memory_used_mib": 500})], {}, Verdict.NO_LOAD),
    "all GPUs work alike": ([gpu(0, **FED), gpu(1, **FED | {"sm_mhz": 1750})], {}, Verdict.PASS),
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


UNREAD = {"unavailable": "ENOENT"}
GAPS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "no GPU": ([], {}, "NoGpuRead"),
    "a short window": ([gpu(0, **STARVED)], {"seconds": 3}, "TooShort"),
    "no length": ([gpu(0, **STARVED)], {"seconds": UNREAD}, "TooShort"),
    "a GPU without numbers": ([{"index": 0, "samples": 120}], {}, "GpuUnread"),
    "few samples": ([gpu(0, **STARVED | {"samples": 2})], {}, "GpuUnread"),
    "busy, power unread": ([gpu(0, **FED | {"power_mw": UNREAD})], {}, "WorkUnread"),
    "CPUs unread": ([gpu(0, **FED)], {"pressure": {"cpu": UNREAD}}, "EvidenceMissing"),
    "I/O unread": (
        [gpu(0, **FED)],
        {"pressure": {"io": UNREAD}, "cpu_iowait": UNREAD, "blocked": UNREAD},
        "EvidenceMissing",
    ),
    "memory unread": (
        [gpu(0, **FED)],
        {"pressure": {"memory": UNREAD}, "refaults": UNREAD},
        "EvidenceMissing",
    ),
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
