"""Rules about nodes that get no interconnect class although nothing is refused.

NVLinks that are down on every GPU from the first run on, GPUs in different cliques, virtual GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from nodegauge_judge.case import Case, HealthRule, links_in_words, number, of_gpu
from nodegauge_judge.gpu_models import Form
from nodegauge_judge.interconnect import board, fabric, nvlink_state
from nodegauge_judge.model import Severity
from nodegauge_judge.rule import DRIVER_LOG, RESET, SAVE, Effect, Observation
from nodegauge_judge.rules import nvlink


def nvlink_down(case: Case) -> Iterator[Observation]:
    """GPUs that have no active NVLink although their board should have some, and links that all GPUs lack,
    though the fabric manager had its time."""
    early = fabric.may_start(case)
    yield from (seen for seen in _down(case) if not early or seen.severity is Severity.INFO)


def fabric_starting(case: Case) -> Iterator[Observation]:
    """What would be a finding about links or P2P, but may still be on its way up after boot."""
    if not fabric.may_start(case):
        return
    up = int(number(case.result.host.boottime_ms) or 0) // 1000
    for seen in (*nvlink.not_joined(case), *nvlink.short_of_links(case), *_down(case)):
        if seen.severity is Severity.INFO:
            continue
        message = (
            f"{seen.message} The node was booted {up} s ago; this is judged after {fabric.START_SECONDS:g} s."
        )
        yield replace(seen, severity=Severity.WARN, message=message, evidence=seen.evidence | {"up": up})


def _down(case: Case) -> Iterator[Observation]:
    partition = board.may_be_partition(case)
    for gpu_index in nvlink_state.without_links(case):
        gpu = case.result.gpus[gpu_index]
        form = board.form(gpu)
        severity, why = Severity.WARN, "a board of this form always joins its GPUs"
        if form is Form.UNKNOWN:
            severity, why = Severity.INFO, "an unbridged card is healthy like this, a module is not"
        elif partition:
            severity, why = Severity.INFO, "a part of a board in a virtual machine may have none by design"
        listed = board.idle_links(gpu)
        yield of_gpu(
            gpu,
            severity,
            f"None of its NVLinks is active ({listed} listed by the driver): {why}.",
            evidence={"links": 0, "listed": listed, "form": form.value},
            weight=listed,
        )
    yield from _all_short(case)


def _all_short(case: Case) -> Iterator[Observation]:
    """Links that every GPU lacks, except for GPUs that `nvlink_degraded` or no link at all accounts for."""
    if nvlink_state.all_short(case) is None:
        return
    explained = {short.gpu_index for short in nvlink_state.shortfalls(case)}
    for gpu_index, (gpu, have) in enumerate(zip(case.result.gpus, case.lanes.sums, strict=True)):
        healthy = board.links_behind_switch(gpu)
        if have and gpu_index not in explained:
            yield of_gpu(
                gpu,
                Severity.WARN,
                f"{links_in_words(have)} active; its model has {healthy} behind switches, and every GPU of "
                "the node lacks some: an NVSwitch may be out.",
                evidence={"links": have, "expected": healthy, "against": "model"},
                weight=1 - have / healthy,
            )


def fabric_cliques(case: Case) -> Iterator[Observation]:
    """GPUs of one node that are in more than one clique."""
    cliques = {} if board.hides_links(case) else fabric.cliques(case)
    if cliques:
        members = "; ".join(f"{', '.join(gpus)} in {name}" for name, gpus in sorted(cliques.items()))
        yield Observation(
            severity=Severity.WARN,
            location="node",
            message=f"The GPUs are in {len(cliques)} cliques of the fabric: {members}.",
            evidence={"cliques": len(cliques), "members": members},
        )


def virtual_gpu(case: Case) -> Iterator[Observation]:
    """GPUs that are virtual, or whose host shares them among virtual machines."""
    for gpu in case.result.gpus:
        if kind := board.shared(gpu):
            yield of_gpu(
                gpu,
                Severity.INFO,
                message=f"According to NVML this is {kind}, so the node has no interconnect label.",
                evidence={"virtualization": kind},
            )


RULES = (
    HealthRule(
        code="nvlink-down",
        title="NVLinks are down on every GPU",
        meaning=(
            "The GPUs sit on boards that join them by NVLink, but no link is active, or every GPU lacks the "
            "links of an NVSwitch. Siblings agree and there may be no history, so the model decides: SXM "
            "modules and superchips always have NVLinks, and for some models their number behind switches "
            "is published. PCIe cards have connectors that may stay empty; without a bridge they are "
            "healthy `pcie` machines. Jobs that count on NVLink would run over PCIe, so the node gets no "
            "interconnect label."
        ),
        when={
            Severity.WARN: (
                "several GPUs, and an SXM module or superchip has no active NVLink; or every GPU has fewer "
                "than its model has behind NVSwitches (ignored while MIG is on, and for virtual GPUs)"
            ),
            Severity.INFO: (
                "no link is active on GPUs whose form is unknown, or on fewer than 8 modules of a virtual "
                "machine, which may have none by design"
            ),
        },
        next_step=(
            "run `nvidia-smi nvlink -s` on the node; with NVSwitch, check `systemctl status "
            "nvidia-fabricmanager`; without it, the bridge."
        ),
        way_out=(
            "`nvidia-smi nvlink -s` shows which links are down; the same links on every GPU are those of one "
            "NVSwitch.",
            "NVSwitch machines: `systemctl status nvidia-fabricmanager` and its log; its version must equal "
            "the driver's (`cat /proc/driver/nvidia/version`). `lspci -d 10de: | grep -i bridge` lists the "
            "switches.",
            "`grep -i nvlink /proc/driver/nvidia/params`: `NvLinkDisable` switches NVLink off.",
            "In a virtual machine, the host's fabric manager activates the NVLinks of its partition: ask the "
            "provider.",
            SAVE,
            DRIVER_LOG + " SXid lines are errors of NVSwitches. " + RESET,
            "SXM modules on adapters for PCIe slots have no NVLink: the warning is right about the links, "
            "and stays.",
        ),
        check=nvlink_down,
    ),
    HealthRule(
        code="fabric-starting",
        title="the GPU fabric is still starting",
        meaning=(
            "The node was booted a moment ago, and GPUs behind NVSwitches are not yet registered with the "
            "fabric, refuse P2P, or have no links. The fabric manager starts after boot and takes its time, "
            "so this is no fault yet, and no health either. Source of the time: the grace of NVIDIA's "
            "NVSentinel for the fabric manager."
        ),
        when={
            Severity.WARN: (
                "within 300 s after boot: what would be p2p-refused, nvlink-degraded or nvlink-down on GPUs "
                "behind NVSwitches, except for link errors"
            )
        },
        next_step="none; a run after that time judges it.",
        way_out=(
            "`nvidia-smi -q | grep -A 6 -i fabric` says Completed and Success once it has started.",
            "`systemctl status nvidia-fabricmanager` on the node, if it does not start.",
        ),
        check=fabric_starting,
        effect=Effect.UNJUDGED,
    ),
    HealthRule(
        code="fabric-cliques",
        title="GPUs of one node are in different cliques",
        meaning=(
            "The fabric has put GPUs of this node into different clusters or cliques (clusterUuid and "
            "cliqueId of the driver's fabric information). GPUs in different cliques do not reach each "
            "other over NVLink, even if all their links are up, so the node gets no interconnect label. "
            "GPUs that report no clique are ignored; those of an HGX machine share an all-zero cluster and "
            "clique 0."
        ),
        when={Severity.WARN: "GPUs that have joined a fabric report more than one cluster or clique"},
        next_step="compare `nvidia-smi -q | grep -A 6 -i fabric` of the GPUs with the fabric's partitions.",
        way_out=(
            "`nvidia-smi -q | grep -A 6 -i fabric` shows CliqueId and ClusterUUID of each GPU.",
            "List the partitions where the fabric is managed (NMX-C or the fabric manager), and put all "
            "GPUs of the node into one.",
            "A partition that was changed lately: " + RESET,
        ),
        check=fabric_cliques,
    ),
    HealthRule(
        code="virtual-gpu",
        title="the GPUs are virtual",
        meaning=(
            "NVML reports a vGPU, or a host that shares its GPUs among virtual machines. A vGPU may be a "
            "part of a GPU, and the hypervisor decides which NVLinks and which PCI topology it shows. So "
            "the interconnect is unknown, and the node gets no interconnect label. GPUs that are passed "
            "through to a virtual machine are whole GPUs and are judged by their links and their P2P status."
        ),
        when={Severity.INFO: "the virtualization mode of a GPU is VGPU, HOST_VGPU or HOST_VSGA"},
        next_step="none; an instance with GPUs in passthrough shows how they are joined.",
        way_out=(
            "`nvidia-smi -q | grep -A 2 -i virtualization` shows the mode.",
            "Ask the provider for an instance type with whole GPUs (passthrough), if jobs need NVLink.",
        ),
        check=virtual_gpu,
    ),
)
