"""Feed windows for tests: a calm machine with 64 CPUs, and what GPUs do."""

from typing import Any

from msgspec import convert

from nodegauge_contract import Result
from nodegauge_contract.feed import FeedResult

FED = {
    "utilization": 96,
    "idle_share": 0.0,
    "full_share": 0.9,
    "swings": 0,
    "power_mw": 560_000,
    "sm_mhz": 1800,
}
STARVED = {"utilization": 42, "idle_share": 0.35, "full_share": 0.2, "swings": 30, "power_mw": 260_000}
HOLLOW = {
    "utilization": 95,
    "idle_share": 0.0,
    "full_share": 0.8,
    "swings": 0,
    "power_mw": 180_000,
    "sm_mhz": 1800,
}
IDLE = {"utilization": 0, "idle_share": 1.0, "full_share": 0.0, "swings": 0, "power_mw": 70_000}
CALM = {"cpu": 0.02, "io": 0.02, "io_full": 0.0, "memory": 0.0, "memory_full": 0.0}


def gpu(index: int = 0, **numbers: Any) -> dict[str, Any]:
    return {
        "index": index,
        "samples": 120,
        "memory_utilization": 20,
        "memory_used_mib": 60_000,
        "limit_mw": 700_000,
        "slowed_share": 0.0,
        "pcie_rx_mbps": 900,
        "pcie_tx_mbps": 300,
        "pcie_link_mbps": 63_000,
        "processes": 1,
    } | numbers


def feed(
    *gpus: dict[str, Any],
    pressure: dict[str, Any] | None = None,
    disks: list[dict[str, Any]] | None = None,
    **more: Any,
) -> Result:
    """The machine, but for what is given; `more`: members of the feed result or of its host."""
    of_feed = {key: more.pop(key) for key in ("groups", "groups_unread", "ports", "seconds") if key in more}
    host = {"cpus": 64, "cpu_busy": 0.3, "cpu_iowait": 0.0, "busiest_cpus": 0, "blocked": 0, "refaults": 0}
    document = {
        "seconds": 120,
        "gpus": list(gpus),
        "host": host | {"pressure": CALM | (pressure or {}), "network_mounts": 0} | more,
        "disks": [{"name": "nvme0n1", "busy_share": 0.05, "read_mbps": 10}] if disks is None else disks,
        "groups_unread": "no control group is mounted",
    }
    return Result(probe="feed", feed=convert(document | of_feed, FeedResult))


BUSY_DISK = [{"name": "sda", "busy_share": 0.97, "read_mbps": 180, "write_mbps": 0}]
STARVED_BY_A_DISK = feed(
    gpu(0, **STARVED), gpu(1, **STARVED), pressure={"io": 0.6, "io_full": 0.3}, disks=BUSY_DISK
)
