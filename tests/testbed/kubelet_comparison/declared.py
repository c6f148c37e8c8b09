"""What the simulated kubelet shows differently of the samples, and why: one table, and what is wrong with it.

The same sentences stand in tests/testbed/README.md.  A difference that is not declared is wrong, and so is
one that is declared and is none any more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from testbed.kubelet_comparison.perform import EVERY_POD

Key = tuple[str, str]
"""Pod and aspect, as in `recorded.differences`."""
EVERYTHING = "everything"
"""Stands for any aspect: the pod takes another course."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """`why`: the sentence in the README."""

    pod: str
    aspects: tuple[str, ...]
    why: str


DECLARED = (
    Difference(
        pod="no-such-program",
        aspects=("last words",),
        why="Of a command that is not in the image only runc's last clause is said, without the chain of"
        " `OCI runtime create failed` before it: there is no runc.",
    ),
    Difference(
        pod="no-room",
        aspects=(EVERYTHING,),
        why="A pod that is bound to a node without room for it runs, where a real kubelet ends it as"
        " `OutOfcpu`: there is no admission at the node.",
    ),
    Difference(
        pod="root-refused",
        aspects=(EVERYTHING,),
        why="A container with `runAsNonRoot` and user 0 runs, where a real kubelet says"
        " `CreateContainerConfigError`: users are not changed, so `securityContext` is not looked at.",
    ),
    Difference(
        pod=EVERY_POD,
        aspects=("fields of the status", "fields of a container's status"),
        why="The fields `resources` and `allocatedResources` are absent from statuses: no pod is resized.",
    ),
)


def complaints(
    result: Collection[Key], *, declared: Sequence[Difference] = DECLARED
) -> list[tuple[str, str]]:
    """What is different and not declared, and what is declared and not different, as pod and words."""
    covered = {key for one in declared for key in result if key[0] == one.pod and _names(one, key[1])}
    wrong = [
        (pod, f"{aspect} differs, and is not declared")
        for pod, aspect in result
        if (pod, aspect) not in covered
    ]
    for one in declared:
        for aspect in one.aspects:
            if not any(pod == one.pod and aspect in (EVERYTHING, seen) for pod, seen in result):
                wrong.append((one.pod, f"{aspect} does not differ any more; remove it from the table"))
    return wrong


def _names(one: Difference, aspect: str) -> bool:
    return EVERYTHING in one.aspects or aspect in one.aspects
