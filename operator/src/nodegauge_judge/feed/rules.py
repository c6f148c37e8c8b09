"""The findings about feeding: an allocated GPU that does nothing, and one that waits for something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodegauge_judge.case import identity
from nodegauge_judge.feed.causes import FeedCause
from nodegauge_judge.feed.diagnosis import Diagnosis
from nodegauge_judge.feed.gpus import GpuFeeding
from nodegauge_judge.model import GpuIdentity, Scalar, Severity
from nodegauge_judge.rule import Observation, Probe, Rule

FeedRule = Rule[Diagnosis]
"""A rule about a feed window."""

_SEE_INSIDE = (
    "let the container see control groups (`probes.feed.controlGroups: true`), and look into the job with "
    "`torch.profiler` or `py-spy dump`: does a step wait for the data loader, for a copy, or for other nodes?"
)


def allocated_idle(seen: Diagnosis) -> Iterator[Observation]:
    """GPUs that somebody holds and does not use."""
    idle = seen.unused
    if not idle:
        return
    lost = sum(gpu.lost for gpu in idle)
    used = max(gpu.utilization or 0.0 for gpu in idle)
    yield _observed(
        seen,
        idle,
        Severity.INFO,
        f"{_count(idle)} held and did next to nothing for {_window(seen)} (utilisation at most {used:.0f} %, "
        f"{lost:.1f} GPUs unused), while nothing outside of the GPUs was stalled. An inference server that "
        "waits for requests and a notebook that nobody types in look like this.",
        {"lost_gpus": round(lost, 2), "utilization": round(used, 1)},
    )


def underfed(seen: Diagnosis) -> Iterator[Observation]:
    """GPUs that wait for something, with its cause."""
    waiting, best = seen.underfed, seen.best
    if not waiting:
        return
    limits, lost = seen.limits, sum(gpu.lost for gpu in waiting)
    reads = [gpu.utilization for gpu in waiting if gpu.utilization is not None]
    mean = sum(reads) / len(reads) if reads else 0.0
    evidence: dict[str, Scalar] = {
        "cause": best.cause.value if best else FeedCause.UNKNOWN.value,
        "confidence": seen.confidence,
        "lost_gpus": round(lost, 2),
        "utilization": round(mean, 1),
    }
    if best is None:
        why = "nothing that was read outside of the GPUs is stalled"
        missing = f" Not read: {'; '.join(seen.case.missing)}." if seen.case.missing else ""
        evidence |= {"advice": _SEE_INSIDE}
    else:
        why, missing = best.message, ""
        evidence |= best.evidence | {"advice": best.advice}
        if seen.rivals and seen.rivals[0].score > limits.serial_score:
            evidence |= {"also_possible": ", ".join(stall.cause.value for stall in seen.rivals)}
            missing = f" Also: {seen.rivals[0].message} ({seen.rivals[0].cause})."
    warns = seen.confidence >= limits.warn_confidence and lost >= limits.warn_lost
    yield _observed(
        seen,
        waiting,
        Severity.WARN if warns else Severity.INFO,
        f"{_count(waiting)} underfed (utilisation {mean:.0f} %, an estimated {lost:.1f} GPUs lost) for "
        f"{_window(seen)}: {why}.{missing}",
        evidence,
    )


def _observed(
    seen: Diagnosis,
    about: Sequence[GpuFeeding],
    severity: Severity,
    message: str,
    evidence: dict[str, Scalar],
) -> Observation:
    pods = [seen.case.name_of(group) for group in seen.case.groups]
    named: dict[str, Scalar] = {"pods": ", ".join(pods[:4])} if pods else {}
    known = {gpu.index: identity(gpu) for gpu in seen.case.result.gpus}
    return Observation(
        severity=severity,
        location=_location(about),
        message=message,
        evidence=evidence | named,
        gpus=tuple(known.get(gpu.index, GpuIdentity(index=gpu.index)) for gpu in about),
    )


def _location(about: Sequence[GpuFeeding]) -> str:
    indexes = [str(gpu.index) for gpu in about]
    return f"GPU {indexes[0]}" if len(indexes) == 1 else f"GPUs {', '.join(indexes)}"


def _count(about: Sequence[GpuFeeding]) -> str:
    return "It is" if len(about) == 1 else "They are"


def _window(seen: Diagnosis) -> str:
    seconds = float(seen.case.feed.seconds)  # type: ignore[arg-type]
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


FEED_RULES: tuple[FeedRule, ...] = (
    FeedRule(
        code="gpu-underfed",
        title="a GPU that somebody holds waits for something",
        meaning=(
            "The job has work for the GPU and cannot bring it: CPUs, a CPU limit, disks, the network, memory "
            "or PCIe hold it up, all GPUs wait for a slow one, or each kernel is too small. It is about the "
            "job and says nothing of the node's health: it sets no taint and changes no verdict. The "
            "evidence names the `cause`, how sure it is (`confidence`, 0 to 1), and the GPUs lost to it."
        ),
        when={
            Severity.INFO: "the cause is unknown or unsure, or less than a quarter of a GPU is lost",
            Severity.WARN: "a cause with a confidence of 0.5 or more costs a quarter of a GPU or more",
        },
        next_step="ADVICE.",
        way_out=(
            "What helps: ADVICE.",
            "Then look at the next windows of the same job: utilisation rises, and fewer GPUs are lost.",
            "docs/feeding.md has each cause with its evidence and its remedy, and finds a pod by its UID.",
        ),
        check=underfed,
        probe=Probe.FEED,
    ),
    FeedRule(
        code="gpu-allocated-idle",
        title="a GPU that somebody holds does nothing",
        meaning=(
            "A process holds memory of the GPU and starts next to no kernels. It is about the job and says "
            "nothing of the node's health: it sets no taint and changes no verdict. Inference servers are "
            "meant to wait; for anything else the GPU could serve somebody else."
        ),
        when={
            Severity.INFO: "utilisation of 1 % or less in the window, or hardly any and nothing is stalled"
        },
        next_step="ask its owner, and free the GPU if nobody needs it.",
        way_out=(
            "`kubectl describe node NODE` lists the pods of the node: ask the owner of the ones with GPUs.",
            "An inference server: fewer replicas, autoscaling to zero, or several on one GPU (MIG, MPS).",
            "A job that has ended but not exited: look at its log for a process that waits for another.",
        ),
        check=allocated_idle,
        probe=Probe.FEED,
    ),
)
