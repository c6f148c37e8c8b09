"""Rules about what NVML and the node's BMC say of the same thing and cannot both be true.

They only warn: which of the two is right is for a person to find out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from msgspec.structs import replace

from nodegauge_judge import bmc_witness
from nodegauge_judge.case import Case, HealthRule, clip, identity, of_gpu
from nodegauge_judge.interconnect import board, fabric, nvlink_state
from nodegauge_judge.model import Severity
from nodegauge_judge.rule import DRIVER_LOG, Observation
from nodegauge_judge.rules import throttling
from nodegauge_judge.rules.reading import problem_check

_without_power = problem_check("insufficient-power", "a GPU has no external power", Severity.FAIL)


def power_contradicted(case: Case) -> Iterator[Observation]:
    """GPUs that lack power or are braked, while the BMC calls all supplies healthy with watts to spare."""
    spare = bmc_witness.spare_watts(case)
    if spare is None:
        return
    for observation in chain(throttling.power_brake(case), _without_power(case)):
        if observation.severity is not Severity.INFO:
            yield replace(
                observation,
                severity=Severity.WARN,
                message=(
                    "NVML says that power is short, and the BMC calls every supply healthy, with "
                    f"{spare} W to spare."
                ),
                evidence={"spare_watts": spare},
            )


def nvlink_contradicted(case: Case) -> Iterator[Observation]:
    """GPUs of which NVML and the BMC count other numbers of active NVLinks, of as many in all."""
    if case.chassis is None or board.hides_links(case) or case.result.problem is not None:
        return
    doubted = nvlink_state.uncertain(case)
    for gpu_index, (gpu, have) in enumerate(zip(case.result.gpus, case.lanes.sums, strict=True)):
        known = bmc_witness.ports(bmc_witness.board_gpu(case, identity(gpu)))
        listed = len({link for group in gpu.links for link in group.links})
        if known is None or gpu_index in doubted or gpu.error or listed != known[1] or have == known[0]:
            continue
        yield of_gpu(
            gpu,
            Severity.WARN,
            f"NVML counts {have} of {listed} NVLinks up, the BMC {known[0]}.",
            evidence={"links": have, "bmc_ports_up": known[0], "of": listed},
            weight=abs(have - known[0]),
        )


def domain_contradicted(case: Case) -> Iterator[Observation]:
    """Labels of others that put the node into an NVLink domain which its driver does not show."""
    if case.result.problem is not None or board.hides_links(case) or fabric.may_start(case):
        return
    for key, value in case.node.domains.items():
        if measured := _instead_of(case, value):
            yield Observation(
                severity=Severity.WARN,
                location=key,
                message=f"The label {key} says {clip(value)}, and {measured}.",
                evidence={"label": key, "value": clip(value), "measured": measured},
            )


def _instead_of(case: Case, domain: str) -> str:
    """What the driver shows in place of this domain; empty if it agrees, or if not all of it was read."""
    gpus, registered = case.result.gpus, (fabric.NOT_STARTED, fabric.IN_PROGRESS, fabric.COMPLETED)
    if not gpus or any(gpu.error for gpu in gpus) or nvlink_state.uncertain(case):
        return ""
    if not any(case.lanes.sums) and all(gpu.fabric.state not in registered for gpu in gpus):
        return "no GPU has an active NVLink or a fabric"
    behind = [gpu for gpu in gpus if gpu.fabric.state in (fabric.NOT_STARTED, fabric.IN_PROGRESS)]
    if behind:
        return f"{len(behind)} of {len(gpus)} GPUs are not registered with the fabric"
    own = {fabric.clique_name(gpu) for gpu in gpus}
    named = domain.replace("-", "").lower()
    if "" in own or not _CLIQUE.fullmatch(named) or own == {named}:
        return ""
    return f"the driver says {', '.join(sorted(own))}"


_CLIQUE = re.compile(r"[0-9a-f]{32}\.\d+")
"""CLUSTER.CLIQUE without dashes."""

RULES = (
    HealthRule(
        code="power-contradicted",
        title="GPUs lack power while the supplies are healthy",
        meaning=(
            "NVML shows the power brake or insufficient power, and the BMC calls every supply healthy, "
            "with watts to spare. So the cause is not in the supplies: it lies between them and the GPU, "
            "or somebody limits the power on purpose."
        ),
        when={
            Severity.WARN: (
                "`power-brake` warns or fails, or `insufficient-power` fails, and a fresh reading of the BMC "
                "shows every supply and rail healthy and full load (the load of now, if that is not known) "
                "within 0.9 of their capacity"
            )
        },
        next_step="check the GPU's power cables, and power limits in the BMC or of the rack.",
        way_out=(
            "Reseat the GPU's power cables at both ends, one cable per socket.",
            "Look for a power limit in the BMC or the rack's manager: `ipmitool dcmi power get_limit`.",
            "Compare the BMC's clock and log with the time of the brake: a short loss of input may be over.",
        ),
        check=power_contradicted,
    ),
    HealthRule(
        code="nvlink-contradicted",
        title="the BMC and NVML count different numbers of NVLinks",
        meaning=(
            "The BMC of the GPUs' baseboard and NVML see the same number of NVLink ports in all, but "
            "different numbers of active ones. A link changed between the two readings, or one of the "
            "two is wrong."
        ),
        when={
            Severity.WARN: (
                "a fresh reading of the BMC shows another number of active links for a GPU that both "
                "know (by serial number or UUID), and both know the state of all its links"
            )
        },
        next_step="compare `nvidia-smi nvlink -s -i INDEX` with the BMC's ports once more.",
        way_out=(
            "`nvidia-smi nvlink -s -i INDEX` on the node; `kubectl get chassisreading NODE -o yaml` for the "
            "BMC's ports.",
            "If they still differ after the next readings, restart the baseboard's BMC.",
            DRIVER_LOG + " Xid 74 is an NVLink error.",
        ),
        check=nvlink_contradicted,
    ),
    HealthRule(
        code="domain-contradicted",
        title="a label names an NVLink domain that the driver does not show",
        meaning=(
            "GPU feature discovery (`nvidia.com/gpu.clique`) or topograph "
            "(`accelerator.topograph.run/domain`) labels the node as a member of an NVLink domain, and the "
            "driver shows no NVLink, a fabric that is not complete, or another domain. Schedulers that place "
            "gangs by these labels put them on nodes that do not reach each other over NVLink."
        ),
        when={
            Severity.WARN: (
                "such a label is there, and no GPU has an active NVLink or a fabric; or a GPU has not "
                "completed its registration with the fabric 5 minutes after boot; or the label has the form "
                "CLUSTER.CLIQUE, and the driver says another one"
            )
        },
        next_step="compare `nvidia-smi -q` (Fabric: ClusterUUID, CliqueId) with the label.",
        way_out=(
            "`nvidia-smi -q | grep -A 8 -i fabric` on the node; `kubectl get node NODE --show-labels`.",
            "If the label is old: restart GPU feature discovery on the node, or let topograph run again.",
            "If the fabric is not complete: `systemctl status nvidia-fabricmanager nvidia-imex`.",
        ),
        check=domain_contradicted,
    ),
)
