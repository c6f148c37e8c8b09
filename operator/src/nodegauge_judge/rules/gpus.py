"""Rules about sick GPUs (lost, waiting for a reset, without power, faulty), and about GPUs that differ.

A sick GPU fails the node at once.

Source for the meaning of each NVML error: nvml.h, nvmlReturn_t.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from nodegauge_contract import Gpu
from nodegauge_contract.nvlink import ACTIVE, REMOTE_SWITCH
from nodegauge_judge import visibility
from nodegauge_judge.case import Case, HealthRule, clip, gpu_named, number, text
from nodegauge_judge.gpu_models import known_models
from nodegauge_judge.interconnect import nvlink_state
from nodegauge_judge.model import Cause, Gate, GateKind, Scalar, Severity
from nodegauge_judge.rule import DRAIN, DRIVER_LOG, REBOOT, RESET, SAVE, SAVE_FIRST, VENDOR, Observation
from nodegauge_judge.rules.reading import problem_check


def gpu_lost(case: Case) -> Iterator[Observation]:
    """GPUs that fell off the bus without an error, GPUs that the policy expects in vain, and GPUs whose error
    says that they are lost."""
    if visibility.lost(case):
        yield _fell_off_the_bus(case) if case.node.expected_gpus is None else _fewer_than_intended(case)
    yield from problem_check("gpu-lost", "a GPU is lost", Severity.FAIL)(case)


def _fell_off_the_bus(case: Case) -> Observation:
    """All GPUs that NVML no longer lists and whose PCI function is silent or gone, as one location."""
    count, gone = visibility.lost(case), visibility.gone_uuids(case)
    silent = visibility.silent_addresses(case)
    names = clip(", ".join(gone[:4]) + (f" and {len(gone) - 4} more" if len(gone) > 4 else ""))
    which = names if len(gone) == count else f"{count} of {names}"
    state = f"silent ({clip(', '.join(silent))})" if len(silent) >= count else "empty"
    if silent and len(silent) < count:
        state = f"silent ({clip(', '.join(silent))}) or empty"
    evidence: dict[str, Scalar] = {
        "lost": count,
        "missing_uuids": clip(", ".join(gone)),
        "gpus_seen": len(case.result.gpus),
        "gpus_known": len(case.history.gpus),
    }
    return Observation(
        severity=Severity.FAIL,
        location=which,
        message=f"Seen earlier in this boot; NVML no longer lists it. Its place on the PCI bus is {state}.",
        evidence=evidence | ({"silent": clip(", ".join(silent))} if silent else {}),
        weight=count,
        gpus=tuple(gpu_named(uuid) for uuid in gone),
    )


def _fewer_than_intended(case: Case) -> Observation:
    """The GPUs that the policy's `spec.expectedGpus` misses, as one location."""
    expected, seen, gone = case.node.expected_gpus or 0, len(case.result.gpus), visibility.gone_uuids(case)
    silent, foreign = visibility.silent_addresses(case), visibility.foreign_in_words(case)
    reasons = [
        f"not for this node's jobs: {foreign}" if foreign else "",
        f"silent on the PCI bus: {clip(', '.join(silent))}" if silent else "",
        f"missing since the last clean run: {clip(', '.join(gone[:4]))}" if gone else "",
    ]
    why = "; ".join(text for text in reasons if text)
    evidence: dict[str, Scalar] = {
        "lost": visibility.lost(case),
        "gpus_seen": seen,
        "gpus_expected": expected,
    }
    known = {"missing_uuids": clip(", ".join(gone)), "foreign": foreign, "silent": clip(", ".join(silent))}
    return Observation(
        severity=Severity.FAIL,
        location="node",
        message=f"The policy expects {expected} GPUs, the driver lists {seen}{f' ({why})' if why else ''}.",
        evidence=evidence | {name: text for name, text in known.items() if text},
        weight=visibility.lost(case),
        gpus=tuple(gpu_named(uuid) for uuid in gone),
    )


def foreign_gpus(case: Case) -> Iterator[Observation]:
    """GPUs on the bus that another driver serves."""
    foreign = visibility.foreign(case)
    if foreign:
        yield Observation(
            severity=Severity.INFO,
            location="node",
            message=f"On the PCI bus, and not for this node's jobs: {visibility.foreign_in_words(case)}.",
            evidence={
                "foreign": clip(", ".join(foreign)),
                "drivers": clip(", ".join(sorted(set(foreign.values())))),
            },
        )


def board_incomplete(case: Case) -> Iterator[Observation]:
    """The modules that a board lacks from its first reading on, as one location; and its NVSwitches."""
    yield from _switches_out(case)
    hole = visibility.hole(case)
    if hole is None:
        return
    names, plural = ", ".join(map(str, hole.modules)), "" if hole.lacks == 1 else "s"
    yield Observation(
        severity=Severity.WARN,
        location=f"module{plural} {names}" if names else "node",
        message=(
            f"{hole.size - hole.lacks} of the {hole.size} GPUs of its board are there, and nothing else "
            f"on the node explains the other{plural}."
        ),
        evidence={"lacks": hole.lacks, "board": hole.size, "modules": names},
        weight=hole.lacks,
    )


def _switches_out(case: Case) -> Iterator[Observation]:
    """NVSwitches to which no link leads, where every GPU lacks links too.

    Nothing where the driver names all alike: NCCL's dumps have `fffffff:ff:ff.0` for those of B200, and an
    address for each of A100 and H100 (tests/fixtures/nccl-topo_oci_h100x8.xml).
    """
    gpus = case.result.gpus
    board = known_models().find(gpus[0].name).board if nvlink_state.all_short(case) is not None else None
    if board is None or len(gpus) != board.modules:
        return
    ends = (group for gpu in gpus for group in gpu.links if group.state == ACTIVE)
    seen = {end.remote for end in ends if end.remote_type == REMOTE_SWITCH and isinstance(end.remote, str)}
    wired = board.switches
    if 1 < len(seen) < wired:
        yield Observation(
            severity=Severity.WARN,
            location="NVSwitches",
            message=(
                f"Every GPU lacks NVLinks, and those that are up lead to {len(seen)} of the {wired} "
                f"NVSwitches of its board: {clip(', '.join(sorted(seen)))}."
            ),
            evidence={"lacks": wired - len(seen), "board": wired},
        )


def _sick(
    *, code: str, cause: Cause, title: str, meaning: str, when: str, next_step: str, way_out: tuple[str, ...]
) -> HealthRule:
    return HealthRule(
        code=code,
        title=title,
        meaning=meaning,
        when={Severity.FAIL: when},
        next_step=next_step,
        way_out=way_out,
        check=gpu_lost if code == "gpu-lost" else problem_check(code, title, Severity.FAIL),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=cause, runs=1),
        readable=visibility.is_complete,
    )


RULES = (
    _sick(
        code="gpu-lost",
        cause=Cause.GPU_LOST,
        title="a GPU is lost",
        meaning=(
            "The driver cannot reach the GPU: it fell off the bus, or its firmware died. A GPU that is "
            "missing without an error counts as lost only if the last run of the same boot and driver saw "
            "it and its place on the PCI bus is now empty or silent. Otherwise it may only be hidden "
            "(gpus-not-visible). If the policy states `spec.expectedGpus`, that number decides: fewer GPUs "
            "are lost ones, as many or more are all."
        ),
        when=(
            "NVML answers GPU_IS_LOST (15) for it; or NVML no longer lists it in the same boot and its PCI "
            "function is gone or reads as all ones; or it became unreadable in the same boot and its driver "
            "asks for a recovery action; or NVML lists fewer GPUs than the policy's `spec.expectedGpus`"
        ),
        next_step=f"{SAVE_FIRST}; then drain the node and reboot it.",
        way_out=(
            SAVE,
            DRIVER_LOG + " Xid 79 means that it fell off the bus.",
            DRAIN,
            "Reboot, or power-cycle it.",
            VENDOR,
        ),
    ),
    _sick(
        code="reset-required",
        cause=Cause.RESET_REQUIRED,
        title="a GPU needs a reset",
        meaning="The driver took the GPU out of service until it is reset.",
        when="NVML answers RESET_REQUIRED (16) for it",
        next_step=f"{SAVE_FIRST}; then drain the node, and `nvidia-smi --gpu-reset -i INDEX`.",
        way_out=(SAVE, DRAIN, RESET, REBOOT),
    ),
    _sick(
        code="insufficient-power",
        cause=Cause.POWER_CABLE,
        title="a GPU has no external power",
        meaning="The GPU's external power cables are missing or loose. It does not work at all.",
        when="NVML answers INSUFFICIENT_POWER (8) for it",
        next_step="power the node off and reseat the GPU's power cables.",
        way_out=(
            DRAIN,
            "Power off. Reseat the cables, one cable per socket and no pigtails. Check the power supply's "
            "rating.",
        ),
    ),
    _sick(
        code="gpu-fault",
        cause=Cause.GPU_FAULT,
        title="a GPU reports a fault",
        meaning="The driver cannot use the GPU: its interrupts do not arrive, or its InfoROM is corrupted.",
        when="NVML answers IRQ_ISSUE (11) or CORRUPTED_INFOROM (14) for it",
        next_step=f"{SAVE_FIRST}; then drain the node and reboot it.",
        way_out=(SAVE, DRIVER_LOG, DRAIN, "Reboot the node.", VENDOR),
    ),
    HealthRule(
        code="board-incomplete",
        title="a board lacks a GPU or an NVSwitch",
        meaning=(
            "SXM modules and superchips come on boards and trays whose numbers of GPUs are known, and each "
            "module has a number on its board. A GPU that was dead when the node was booted leaves a hole: "
            "the driver lists the others, and they are healthy. An NVSwitch that is out takes links from "
            "every GPU. A virtual machine may have any part of a board; GPUs that a container was not given, "
            "that another driver serves, or that the policy does not expect (`spec.expectedGpus`) are no "
            "hole."
        ),
        when={
            Severity.WARN: (
                "the model's boards have more GPUs, on bare metal, also at first sight; without a count of "
                "the PCI bus or of `nvidia.com/gpu`, only if more than half of the board is there; or every "
                "GPU of a whole board lacks links, and the others lead to fewer NVSwitches than it has"
            )
        },
        next_step="`lspci -d 10de:` on the node: is it on the bus? Then its kernel log, from boot on.",
        way_out=(
            "`lspci -d 10de:` and `nvidia-smi -q | grep -iE 'Bus Id|Module Id'` on the node.",
            SAVE,
            DRIVER_LOG,
            DRAIN,
            "Power-cycle the node: a reboot may leave the module without power.",
            VENDOR,
            "A board that is meant to have fewer: state their number in the policy, `spec.expectedGpus`.",
        ),
        check=board_incomplete,
    ),
)


def mixed_gpus(case: Case) -> Iterable[Observation]:
    """Different models; with one model, different VBIOS versions or enforced power limits."""
    gpus = case.result.gpus
    models = Counter(name for gpu in gpus if (name := text(gpu.name)))
    vbios = Counter(version for gpu in gpus if (version := text(gpu.vbios)))
    limits = Counter(watts for gpu in gpus if (watts := _watts(gpu)))
    if len(models) > 1:
        return [_mixed("models", models)]
    named = (("VBIOS versions", vbios), ("power limits", limits))
    return [_mixed(what, counts) for what, counts in named if len(counts) > 1]


def _watts(gpu: Gpu) -> str:
    milliwatts = number(gpu.power.enforced_limit_mw)
    return f"{milliwatts / 1000:g} W" if milliwatts else ""


def _mixed(what: str, counts: Mapping[str, int]) -> Observation:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    values = ", ".join(f"{count}x {name}" for name, count in ordered)
    evidence: dict[str, Scalar] = {"differs": what, "values": clip(values)}
    message = f"The GPUs have different {what}: {clip(values)}."
    return Observation(severity=Severity.INFO, location=what, message=message, evidence=evidence)


DIFFERENCES = (
    HealthRule(
        code="foreign-gpus",
        title="GPUs that the NVIDIA driver does not offer",
        meaning=(
            "NVIDIA GPUs on the PCI bus that the NVIDIA driver does not offer: another kernel driver "
            "serves them (vfio-pci passes them to a virtual machine, nouveau drives a display), or "
            "NVreg_ExcludedGpus names them. nodegauge leaves them out. A GPU without any driver is "
            "different: it may have failed (gpus-not-visible)."
        ),
        when={Severity.INFO: "the link `driver` of a GPU in sysfs names another driver, or it is excluded"},
        next_step="none if this is intended; `spec.expectedGpus` says how many GPUs must be left.",
        way_out=(
            "`lspci -nnk -d 10de:` on the node shows the driver of each GPU.",
            "State the number of GPUs that jobs may use: `spec.expectedGpus` in the policy.",
        ),
        check=foreign_gpus,
    ),
    HealthRule(
        code="mixed-gpus",
        title="the GPUs are not alike",
        meaning="The node's GPUs differ in model, VBIOS or power limit. The slowest sets the pace of a job.",
        when={Severity.INFO: "models differ, or VBIOS or enforced power limit differ within one model"},
        next_step="nothing to repair; select nodes by GPU model where it matters.",
        way_out=("`nvidia-smi --query-gpu=index,name,vbios_version,enforced.power.limit --format=csv`.",),
        check=mixed_gpus,
    ),
)
