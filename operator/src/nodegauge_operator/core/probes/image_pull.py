"""The pull: brings the NCCL image to the node and says whether it can be used, before any GPU is held."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.policy import Limits, Policy, seconds
from nodegauge_operator.api.report import Outcome, ReportStatus
from nodegauge_operator.api.times import NEVER
from nodegauge_operator.core import probe_status
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.driver_access import Needs
from nodegauge_operator.core.model import PodView
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probe_status import Reading
from nodegauge_operator.core.probes import kind, nccl, whole_node
from nodegauge_operator.core.probes.kind import EndedRun, ProbeKind
from nodegauge_operator.core.probes.pod import container

PULL_SECONDS = 1800.0
"""How long the NCCL image (about 0.85 GB) may take to arrive on a node; nothing is held meanwhile."""
REQUESTS = {"cpu": "10m", "memory": "64Mi"}
LIMITS = {"cpu": "1", "memory": "2Gi"}

NCCL = nccl.NcclKind()


class PullKind(ProbeKind):
    """The first half of an NCCL run on a node that may lack the image."""

    name = names.PROBE_PULL
    pool = whole_node.POOL
    in_background = True
    title = "NCCL image"
    reads = False
    announces_verdict = False
    needs = Needs.NOTHING

    def asked_for(self, context: Context) -> bool:
        return NCCL.asked_for(context)

    def deadline(self, policy: Policy) -> float:
        return PULL_SECONDS

    def limits(self, policy: Policy) -> Limits:
        """A pull may take its time to start: that is when the image is pulled."""
        limits = policy.spec.limits
        if seconds(limits.not_started) >= PULL_SECONDS:
            return limits
        return replace(limits, not_started=f"{PULL_SECONDS:.0f}s")

    def due_at(self, context: Context) -> float:
        """When an NCCL run is due that lacks the image; after a failed pull of the same image, later."""
        at = NCCL.next_measurement_at(context)
        if at == NEVER or nccl.image_is_there(context):
            return NEVER
        probe = context.status.probe[self.name]
        if not probe.unread or probe.image != nccl.image(context) or kind.wanted_now(context, probe):
            return at  # a failed pull says nothing about another image
        return max(at, kind.finished_at(probe) + nccl.recheck_delay(probe, context.policy))

    def waits_since(self, context: Context) -> float:
        return nccl.last_measured_at(context.status)

    def pod_spec(self, context: Context, run: str) -> dict[str, Any]:
        """It sees no GPU, whatever its image's environment asks for."""
        body = container(context, run)
        body |= {
            "image": self.image(context),
            "command": ["python", "-m", "nodegauge_probes", self.name],
            "args": [f"--engine={context.policy.spec.probes.nccl.engine.value}"],
            "env": [*body["env"], {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
            "resources": {"requests": REQUESTS, "limits": LIMITS},
            "volumeMounts": [*body["volumeMounts"], {"name": "tmp", "mountPath": "/tmp"}],
        }
        return {
            "containers": [body],
            "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": whole_node.TMP}}],
            "tolerations": whole_node.tolerations(context),
        }

    def image(self, context: Context) -> str:
        return nccl.image(context)

    def ending(self, pod: PodView, context: Context) -> RunEnd | None:
        end = super().ending(pod, context)
        if end is not None and end.outcome is not Outcome.UNKNOWN:
            return end
        return whole_node.yielding(context.node) or _replaced(pod, image=nccl.image(context)) or end

    def after_run(self, context: Context, ended: EndedRun) -> ReportStatus:
        status, image = context.status, ended.image
        problem = ended.end.result.problem if ended.end.result is not None else None
        if problem is not None:
            text = f"{image}: {problem.message}"
            ended = replace(ended, end=RunEnd(outcome=Outcome.UNKNOWN, reason="ImageUnusable", message=text))
        if ended.end.outcome is not Outcome.READ:
            failed = probe_status.unread(context, self.name, ended)
            # A pod that was refused has told no image; it was to pull the one that is wanted now.
            failed = replace(failed, image=image or nccl.image(context))
            return replace(status, probes=status.with_probe(failed))
        reading = Reading(verdict=Verdict.PASS, summary="The image is on the node.")
        probe = probe_status.read(context, self.name, ended, reading)
        return replace(status, probes=status.with_probe(probe))


def _replaced(pod: PodView, *, image: str) -> RunEnd | None:
    """The end of a pull whose image is no longer wanted: the new one must not wait half an hour for it."""
    if pod.image in ("", image):
        return None
    text = f"the image is now {image}" if image else "NCCL runs are no longer wanted"
    return RunEnd(outcome=Outcome.SKIPPED, reason="ImageReplaced", message=text)
