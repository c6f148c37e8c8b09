"""Rules about the reading itself: a probe that did not finish, unreadable GPUs, GPUs that are hidden.

They leave the node unjudged: the verdict is unknown, and nothing on the node changes.
Source for the meaning of each NVML error: nvml.h, nvmlReturn_t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from nodegauge_contract import Gpu, Problem, ProblemKind
from nodegauge_contract.access import Access
from nodegauge_judge import coverage, visibility
from nodegauge_judge.case import Case, HealthRule, clip, gpu_named, of_gpu
from nodegauge_judge.model import Cause, Gate, GateKind, Judged, Scalar, Severity
from nodegauge_judge.rule import (
    DRAIN,
    DRIVER_LOG,
    POD_LOG,
    REBOOT,
    REPORT,
    RESET,
    SAVE,
    SAVE_FIRST,
    Effect,
    Observation,
)

DEVICE_FILES = "`ls -l /dev/nvidia*` on the node: the user of the probe has to read and write these files."
FORGOTTEN = "If someone removed a GPU on purpose: `kubectl delete nodereport NODE` forgets it."
_BY_CLAIM = (
    "Look at the log of the DRA driver's kubelet plugin on this node: it prepares the probe pod's claim, and "
    "writes its CDI specification.",
    "`grep -l libnvidia-ml /etc/cdi/* /var/run/cdi/*` on the node: the specification mounts the library, and "
    "the container runtime has to follow it (containerd 1.7: `enable_cdi = true`).",
)
"""Where a claim brings the driver in.  Source of folders and setting: containerd, docs/cri/config.md."""
_BY_HOST = (
    "Find the driver's folder on the node: `find / -xdev -name libnvidia-ml.so.1`. The chart's value "
    "`hostDriver.folder` has to name it; pods that hold GPUs get it from the device plugin."
)
_IF_IT_HANGS = (
    f"try `timeout 30 nvidia-smi` on the node. If it hangs or fails too, {SAVE_FIRST}; then drain and reboot."
)
_IF_IT_FAILS = f"run `nvidia-smi -q -i INDEX` on the node. If it fails too, {SAVE_FIRST}; then drain and "
_SICK_GPU = {
    ProblemKind.GPU_LOST: "gpu-lost",
    ProblemKind.RESET_REQUIRED: "reset-required",
    ProblemKind.INSUFFICIENT_POWER: "insufficient-power",
    ProblemKind.IRQ_ISSUE: "gpu-fault",
    ProblemKind.CORRUPTED_INFOROM: "gpu-fault",
}
_CODE_OF_NODE_PROBLEM = _SICK_GPU | {
    ProblemKind.LIBRARY_NOT_FOUND: "library-not-found",
    ProblemKind.DRIVER_NOT_LOADED: "driver-not-loaded",
    ProblemKind.DRIVER_MISMATCH: "driver-mismatch",
    ProblemKind.CALL_HUNG: "call-hung",
    ProblemKind.DEADLINE: "probe-deadline",
    ProblemKind.TERMINATED: "probe-terminated",
    ProblemKind.CRASHED: "probe-crashed",
    ProblemKind.TOO_LARGE: "result-too-large",
    ProblemKind.PASTE_INCOMPLETE: "paste-incomplete",
}
_CODE_OF_GPU_ERROR = _SICK_GPU | {ProblemKind.CALL_HUNG: "call-hung"}


def gpus_not_visible(case: Case) -> Iterator[Observation]:
    """GPUs that the node must have and that the document lacks."""
    reasons = visibility.missing(case)
    if reasons:
        evidence: dict[str, Scalar] = {
            "gpus_seen": len(case.result.gpus),
            "gpus_known": len(case.history.gpus),
        }
        evidence |= _access(case)
        if case.node.gpu_capacity is not None:
            evidence["gpu_capacity"] = case.node.gpu_capacity
        message = f"The probe was not shown all GPUs: {'; '.join(reasons)}."
        yield Observation(
            severity=Severity.WARN,
            location="node",
            message=message,
            evidence=evidence,
            gpus=tuple(gpu_named(uuid) for uuid in visibility.gone_uuids(case)),
        )


def values_unread(case: Case) -> Iterator[Observation]:
    """GPUs of which values are missing that they should give."""
    for gpu_index, gpu in enumerate(case.result.gpus):
        missing = [gap for gap in coverage.gaps(case) if gap.gpu_index == gpu_index]
        if not missing:
            continue
        subjects = list(dict.fromkeys(gap.subject for gap in missing))
        first = missing[0]
        yield of_gpu(
            gpu,
            Severity.WARN,
            f"Not readable: {', '.join(subjects)} ({first.value}: {first.why}); {first.against}.",
            evidence={
                "subjects": ", ".join(subjects),
                "values": clip(", ".join(gap.value for gap in missing)),
                "answer": first.why,
            },
            weight=len(missing),
        )


def problem_check(code: str, title: str, severity: Severity) -> Callable[[Case], Iterator[Observation]]:
    """A check for the problems with this code: the one that ended the run, and each GPU's own."""

    def check(case: Case) -> Iterator[Observation]:
        problem = case.result.problem
        if problem is not None and _code(_CODE_OF_NODE_PROBLEM, problem, other="probe-problem") == code:
            message, evidence = _of_problem(problem, title=title)
            own = evidence | (_access(case) if code == "library-not-found" else {})
            yield Observation(severity=severity, location="node", message=message, evidence=own)
        for gpu in case.result.gpus:
            if gpu.error is not None and _code_of_gpu(case, gpu, gpu.error) == code:
                message, evidence = _of_problem(gpu.error, title=title)
                if not isinstance(gpu.uuid, str) and (gone := visibility.gone_uuids(case)):
                    evidence["missing_uuids"] = clip(", ".join(gone))
                yield of_gpu(gpu, severity, message, evidence)

    return check


def _code_of_gpu(case: Case, gpu: Gpu, error: Problem) -> str:
    """A GPU without permission belongs to `gpus-not-visible`; one that cannot be read on a node that could be
    read earlier in this boot, and whose driver asks for a recovery action, is lost."""
    if error.kind == ProblemKind.NO_PERMISSION:
        return ""
    code = _code(_CODE_OF_GPU_ERROR, error, other="gpu-unreadable")
    action = gpu.repair.action
    wants_recovery = isinstance(action, int) and action != 0 and visibility.same_boot_and_driver(case)
    return "gpu-lost" if code == "gpu-unreadable" and wants_recovery else code


def _code(codes: dict[ProblemKind, str], problem: Problem, *, other: str) -> str:
    """The code of a problem's kind; `other` for the kinds of a newer probe."""
    return next((code for kind, code in codes.items() if kind == problem.kind), other)


def _access(case: Case) -> dict[str, Scalar]:
    """How the driver should have come in, where no container runtime brings it."""
    return {} if case.node.access in ("", Access.RUNTIME) else {"access": case.node.access}


def _of_problem(problem: Problem, *, title: str) -> tuple[str, dict[str, Scalar]]:
    """The message and the evidence of a problem."""
    text = clip(problem.message) or f"problem {clip(problem.kind)}"
    evidence: dict[str, Scalar] = {"kind": clip(problem.kind)}
    if problem.call:
        evidence["call"] = clip(problem.call)
    if problem.code is not None:
        evidence["nvml_return"] = problem.code
    call = f" (in {clip(problem.call)})" if problem.call else ""
    return f"{title[0].upper()}{title[1:]}: {text}{call}.", evidence


def _unjudged(
    *,
    code: str,
    title: str,
    meaning: str,
    when: str,
    next_step: str,
    way_out: tuple[str, ...],
    by_access: Mapping[str, tuple[str, ...]] = {},
) -> HealthRule:
    return HealthRule(
        code=code,
        title=title,
        meaning=meaning,
        when={Severity.WARN: when},
        next_step=next_step,
        way_out=way_out,
        by_access=by_access,
        check=problem_check(code, title, Severity.WARN),
        effect=Effect.UNJUDGED,
    )


RULES = (
    _unjudged(
        code="library-not-found",
        title="the probe found no NVIDIA driver library",
        meaning=(
            "libnvidia-ml.so.1 is not in the probe's container. Either the node has no driver, or its "
            "container runtime does not add the library."
        ),
        when="NVML cannot be loaded (LIBRARY_NOT_FOUND, 12)",
        next_step="set `spec.podTemplate.runtimeClassName: nvidia` in the policy, or install the driver.",
        way_out=(
            "Run `nvidia-smi` on the node: if it fails too, install the NVIDIA driver; if it works, the "
            "container runtime is the cause.",
            "Install the NVIDIA container toolkit. If its runtime is not the default one, set "
            "`spec.podTemplate.runtimeClassName` in the policy (usually `nvidia`; `kubectl get "
            "runtimeclass` lists them).",
            "If the policy selects nodes without GPUs, narrow its `spec.nodeSelector`.",
        ),
        by_access={
            Access.CLAIM: (*_BY_CLAIM, "Run `nvidia-smi` on the node: if it fails too, install the driver."),
            Access.HOST: (_BY_HOST, "If no folder of the node has it, install the NVIDIA driver."),
        },
    ),
    _unjudged(
        code="driver-not-loaded",
        title="the NVIDIA kernel driver is not loaded",
        meaning=(
            "The library is there, but the kernel module is not: it is not built for this kernel, or it is "
            "being replaced."
        ),
        when="NVML answers DRIVER_NOT_LOADED (9)",
        next_step="run `lsmod | grep nvidia` and `modprobe nvidia` on the node.",
        way_out=(
            "`lsmod | grep nvidia`, then `modprobe nvidia` on the node; `dmesg | tail` says why it fails.",
            "After a kernel update: rebuild the module (`dkms status`), or wait for the GPU operator's "
            "driver pod.",
        ),
    ),
    _unjudged(
        code="driver-mismatch",
        title="driver library and kernel module differ",
        meaning=(
            "The driver was upgraded while the old kernel module stayed loaded. New jobs fail; running jobs "
            "continue."
        ),
        when="NVML answers LIB_RM_VERSION_MISMATCH (18)",
        next_step="drain the node and reboot it (or reload the nvidia modules).",
        way_out=(
            "Compare `cat /proc/driver/nvidia/version` (module) with `nvidia-smi` or the installed package "
            "(library).",
            DRAIN,
            "Reboot, or stop every GPU client and reload the modules: `rmmod nvidia_uvm nvidia && modprobe "
            "nvidia`.",
        ),
    ),
    _unjudged(
        code="probe-deadline",
        title="the probe ran out of time",
        meaning="The probe reached its deadline before it had read everything. What it had read is kept.",
        when="the run's deadline passed",
        next_step="if it repeats, raise `spec.probes.health.deadline`, or find out what slows the driver.",
        way_out=(
            "With persistence off, the first NVML call takes seconds per GPU: `nvidia-smi -pm 1`.",
            "Raise `spec.probes.health.deadline` of the policy.",
            POD_LOG,
        ),
    ),
    _unjudged(
        code="probe-terminated",
        title="the probe was stopped",
        meaning="The probe was told to stop before it finished: preemption, eviction or a node shutdown.",
        when="the probe received SIGTERM",
        next_step="none; the probe runs again.",
        way_out=(
            "Nothing to do for a single run. If every run ends like this, find what evicts the pod: "
            "`kubectl get events -n NAMESPACE`.",
        ),
    ),
    _unjudged(
        code="probe-crashed",
        title="the probe crashed",
        meaning="The probe failed in its own code. This says nothing about the node.",
        when="an unexpected error in the probe",
        next_step="report it as a bug with the probe's log.",
        way_out=(POD_LOG, "Report it with that log, the driver version and the GPU model."),
    ),
    _unjudged(
        code="result-too-large",
        title="the result did not fit",
        meaning="The document exceeded what a NodeReading holds of its probe (32 KiB of the health probe).",
        when="the probe had to leave the document out",
        next_step="report it as a bug with the number of GPUs and NICs; the probe's log holds the document.",
        way_out=(POD_LOG, "`kubectl logs ... | nodegauge judge -` judges it by hand."),
    ),
    _unjudged(
        code="probe-problem",
        title="the probe could not measure",
        meaning="The probe reports a problem that this version has no code for.",
        when="any other problem",
        next_step="read the message; the probe's log has more.",
        way_out=(POD_LOG, DEVICE_FILES, DRIVER_LOG),
    ),
    _unjudged(
        code="call-hung",
        title="an NVML call did not return",
        meaning="The driver did not answer a call in time. Often a GPU is in trouble; sometimes it is busy.",
        when="a call exceeded the probe's limit; the message names the call",
        next_step=_IF_IT_HANGS,
        way_out=(
            "`timeout 30 nvidia-smi` on the node.",
            SAVE,
            DRIVER_LOG + " Xid 119 and 120 are firmware errors.",
            DRAIN,
            "Reboot.",
        ),
    ),
    _unjudged(
        code="gpu-unreadable",
        title="a GPU could not be read",
        meaning=(
            "NVML lists the GPU, but answers with an error that does not show whether the GPU is healthy or "
            "broken."
        ),
        when="an NVML error that no other code covers",
        next_step=_IF_IT_FAILS + "reboot.",
        way_out=("`nvidia-smi -q -i INDEX` on the node.", SAVE, DRIVER_LOG, REPORT, DRAIN, REBOOT),
    ),
    HealthRule(
        code="gpus-not-visible",
        title="the probe was not shown all GPUs",
        meaning=(
            "GPUs that the node has, or had, are missing without an error: the container runtime did not "
            "give them to the probe. A node that is only partly visible cannot be judged. GPUs that "
            "another driver serves do not count (foreign-gpus). If the policy states "
            "`spec.expectedGpus`, that number decides."
        ),
        when={
            Severity.WARN: (
                "the probe sees no GPU, or fewer than `nvidia.com/gpu` says (checked only if GPUs are not "
                "shared and MIG is off), than earlier runs saw or than the PCI bus has; it has no "
                "permission for one; or an NVLink leads to a GPU that it was not shown"
            )
        },
        next_step="let the probe see all GPUs, by the NVIDIA container runtime or CDI.",
        way_out=(
            "Set `spec.podTemplate.runtimeClassName: nvidia` in the policy (the probe asks for all GPUs "
            "with NVIDIA_VISIBLE_DEVICES=all).",
            "Some distributions (Bottlerocket) ignore that variable in unprivileged containers. Set "
            "`accept-nvidia-visible-devices-envvar-when-unprivileged = true` in the container toolkit's "
            "configuration, or use CDI.",
            DEVICE_FILES,
            FORGOTTEN,
            "A card on the bus without any driver looks like a hidden GPU; `lspci -nnk -d 10de:` on the "
            "node shows it. If it is meant to stay unused (an old display card, a drained GPU), state the "
            "number of the others in the policy: `spec.expectedGpus`.",
            "If no one removed it: " + DRIVER_LOG[0].lower() + DRIVER_LOG[1:],
        ),
        by_access={
            Access.CLAIM: (
                "See whether the node's ResourceSlices list every GPU: claims ask for whole GPUs.",
                "`kubectl get resourceslices --field-selector spec.nodeName=NODE -o yaml` shows them.",
                *_BY_CLAIM,
                DEVICE_FILES,
                FORGOTTEN,
            )
        },
        check=gpus_not_visible,
        effect=Effect.UNJUDGED,
    ),
    HealthRule(
        code="node-unreadable",
        title="the node cannot be read",
        meaning=(
            "Run after run fails in the same way, while other nodes of the policy are read, or after the "
            "node itself was read: the driver hangs or is not loaded, or the probe gives no result or an "
            "unreadable one. Jobs on this node would hang or fail too. By default only a driver that does "
            "not answer counts, the taint is `PreferNoSchedule`, and no verdict follows from it. Name the "
            "cause `unreadable` in `spec.taints.causes` to ask for more, or for nothing."
        ),
        when={
            Severity.FAIL: (
                "`spec.hysteresis.unreadableRuns` (5) runs in a row failed in the same way; a failure counts "
                "only if another node of the policy was read since the previous one, or if the driver does "
                "not answer a probe that had read the node before, and no other node fails with it"
            )
        },
        next_step=_IF_IT_HANGS,
        way_out=("`timeout 30 nvidia-smi` on the node.", SAVE, DRIVER_LOG, POD_LOG, DRAIN, REBOOT),
        check=lambda _: (),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.UNREADABLE, runs=5, judged=Judged.UNREAD),
    ),
    HealthRule(
        code="never-validated",
        title="the node has not passed in the time that its policy gives a new node",
        meaning=(
            "Nobody knows that the node works: no run could be made there, none could be read, or each found "
            "a fault. Only a policy with `spec.taints.validatedWithin` has this taint. It takes the place of "
            "`unvalidated`, so that an autoscaler stops waiting for the node."
        ),
        when={
            Severity.FAIL: (
                "`spec.taints.validatedWithin` has passed since node and report were made, and no run has "
                "passed or warned (`spec.taints.unvalidatedUntil`)"
            )
        },
        next_step="read how its last runs ended; else replace the node.",
        way_out=(
            "`kubectl describe nodereport NODE` says how the last run ended.",
            POD_LOG,
            "`nvidia-smi` on the node. If it fails, see what the driver's installation says.",
            "If many new nodes have this, suspect what they share: the image, the driver, the registry.",
            "Replace the node: delete its NodeClaim or its machine.",
        ),
        check=lambda _: (),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.NEVER_VALIDATED, runs=1, judged=Judged.BY_TIME),
    ),
)

GAPS = (
    HealthRule(
        code="values-unread",
        title="values of a GPU cannot be read",
        meaning=(
            "The driver lists the GPU, but fails to give values that it should have: other GPUs of the model "
            "give them, this one gave them before under the same driver, or every GPU of its model has them. "
            "What was not read cannot be called healthy, so the node does not pass. Values that no GPU of "
            "the model has are no gap."
        ),
        when={Severity.WARN: "a value that should be there is missing; the message names the subjects"},
        next_step=_IF_IT_FAILS + "reset.",
        way_out=(
            "`nvidia-smi -q -i INDEX` on the node: look for ERR! and Unknown Error.",
            SAVE,
            DRIVER_LOG,
            REPORT,
            "A GPU that answers only in part often fails soon. " + DRAIN,
            RESET,
            "If a setting took the value away on purpose: `kubectl delete nodereport NODE` forgets what the "
            "node gave before.",
        ),
        check=values_unread,
    ),
)
