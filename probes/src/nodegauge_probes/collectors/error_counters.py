"""Error counters of what joins a GPU to the rest: its PCIe link and its NVLinks.

Counters only grow, and say little by themselves: what counts is how much they grew between two runs.  NVLink
counters are summed over the links that are up, since a document has no room for eighteen times eight.  Links
up to the fourth generation count by nvmlDeviceGetNvLinkErrorCounter, those of the fifth by fields.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import Int, LinkErrors, Unavailable
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import GpuDraft

FI_REPLAY_ROLLOVERS, FI_CORRECTABLE, FI_RECOVERIES = 95, 173, 169
"""NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, _COUNT_CORRECTABLE_ERRORS, _L0_TO_RECOVERY_COUNTER."""

LINK_COUNTERS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3, "ecc": 4}
"""NVML_NVLINK_ERROR_DL_*."""
LINK_FIELDS = {"recovery_failed": 214, "effective": 219, "symbol": 221}
"""NVML_FI_DEV_NVLINK_COUNT_*, NVLink 5."""

ACTIVE = 1
NO_LINK = Unavailable("no active NVLink")


def pcie_errors(nvml: Nvml, device: Device, gpu: GpuDraft) -> None:
    gpu.pcie["replays"] = nvml.integer(device, "nvmlDeviceGetPcieReplayCounter")
    for field, number in (
        ("replay_rollovers", FI_REPLAY_ROLLOVERS),
        ("correctable", FI_CORRECTABLE),
        ("recoveries", FI_RECOVERIES),
    ):
        gpu.pcie[field] = nvml.whole_field(device, number)


def link_errors(nvml: Nvml, device: Device, gpu: GpuDraft) -> None:
    """Sums over the active links; a counter that one of them does not tell is not known."""
    links = [link for link, answers in gpu.links if answers.get("state") == ACTIVE]
    if not links:
        gpu.link_errors.update(dict.fromkeys(LinkErrors.__struct_fields__, NO_LINK))
        return
    call = "nvmlDeviceGetNvLinkErrorCounter"
    for field, number in LINK_COUNTERS.items():
        gpu.link_errors[field] = _sum(nvml.integer(device, call, link, number) for link in links)
    for field, number in LINK_FIELDS.items():
        gpu.link_errors[field] = _sum(nvml.whole_field(device, (number, link)) for link in links)


def _sum(counts: Iterator[Int]) -> Int:
    """The sum, or the first reason, after which no further link is asked."""
    total = 0
    for count in counts:
        if isinstance(count, Unavailable):
            return count
        total += count
    return total
