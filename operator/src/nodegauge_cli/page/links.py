"""The links of one health reading as the page shows them.  Must not judge."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import fields

from nodegauge_cli.page.model import GpuLinks, Links, NodeData
from nodegauge_contract import Gpu, LinkErrors, Result
from nodegauge_contract.matrix import pair_cells
from nodegauge_contract.nvlink import lanes
from nodegauge_operator.api.report import MAX_NUMBER

ACTIVE = (1, 2, 3)
"""NVML's states of a link that is up: active, asleep, active with traffic disabled."""
REFUSALS = {1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
"""NVML's P2P statuses as `nvidia-smi topo -p2p` writes them."""
COUNTERS = tuple(field.name for field in fields(LinkErrors))


def links_of(result: Result) -> Links | None:
    """None if no GPU was read."""
    if not result.gpus:
        return None
    rows = [_gpu(gpu) for gpu in result.gpus]
    return Links(
        cells=pair_cells(result, lanes(result)),
        refused=_refused(result),
        gpus=rows if any(gpu.links for gpu in result.gpus) else [],
    )


def numbered(nodes: Iterable[tuple[NodeData, Links | None]]) -> list[Links]:
    """Each matrix once; every node gets the number of its own."""
    numbers: dict[bytes, int] = {}
    known: list[Links] = []
    for node, links in nodes:
        if links is not None:
            node.links = numbers.setdefault(msgspec.json.encode(links), len(known))
            known += [links] if node.links == len(known) else []
    return known


def _gpu(gpu: Gpu) -> GpuLinks:
    up = [group for group in gpu.links if group.state in ACTIVE]
    down = [number for group in gpu.links if group.state not in ACTIVE for number in group.links]
    rates = [group.mbps for group in up if isinstance(group.mbps, int)]
    read = {name: getattr(gpu.link_errors, name) for name in COUNTERS}
    numbers = {name: value for name, value in read.items() if isinstance(value, int)}
    return GpuLinks(
        up=sum(len(group.links) for group in up),
        down=sorted(down),
        gbps=min(rates) / 1000 if rates else None,
        errors={name: min(value, MAX_NUMBER) for name, value in numbers.items() if value},
        unread=not numbers,
    )


def _refused(result: Result) -> dict[str, str]:
    """The pairs of which the driver refuses reads or writes."""
    refused: dict[str, str] = {}
    for what, grid in (("read", result.pairs.read), ("write", result.pairs.write)):
        for i, row in enumerate(grid):
            for j, status in enumerate(row):
                if i != j and isinstance(status, int) and status in REFUSALS:
                    pair = f"{i}-{j}"
                    refused[pair] = f"{refused[pair]}, " if pair in refused else ""
                    refused[pair] += f"{what} {REFUSALS[status]}"
    return refused
