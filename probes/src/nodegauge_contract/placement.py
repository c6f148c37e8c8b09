"""Which GPUs, network cards and disks are on which NUMA node, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from nodegauge_contract.model import Result
from nodegauge_contract.values import Int

UNKNOWN = "unknown"


def numa_lines(result: Result) -> list[str]:
    """`NUMA node 0: GPU 0-3; mlx5_0, mlx5_1; nvme0`, a line a node; what has none that is known comes last.
    Empty where no NUMA node is known at all."""
    nics = zip(result.nics.names, result.nics.numa, strict=False)
    kinds: tuple[Sequence[tuple[str, Int]], ...] = (
        [(f"{gpu.index}", gpu.numa_node) for gpu in result.gpus],
        list(nics),
        [(disk.name, disk.numa_node) for disk in result.disks],
    )
    nodes = sorted({node for kind in kinds for _, node in kind if isinstance(node, int)})
    return [f"NUMA node {node}: {'; '.join(_on(node, kinds))}" for node in nodes] + (
        [f"NUMA node {UNKNOWN}: {'; '.join(rest)}"] if nodes and (rest := list(_on(None, kinds))) else []
    )


def _on(node: int | None, kinds: tuple[Sequence[tuple[str, Int]], ...]) -> Iterator[str]:
    """The GPUs, the cards and the disks there; None for those of no known node."""
    gpus, *others = (
        [name for name, own in kind if (own if isinstance(own, int) else None) == node] for kind in kinds
    )
    if gpus:
        yield f"GPU {', '.join(_runs([int(gpu) for gpu in gpus]))}"
    yield from (", ".join(names) for names in others if names)


def _runs(numbers: list[int]) -> Iterator[str]:
    """0, 1, 2, 5 as `0-2` and `5`."""
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        yield f"{members[0]}-{members[-1]}" if len(members) > 1 else f"{members[0]}"
