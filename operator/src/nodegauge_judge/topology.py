"""What follows from how a machine is wired: NVLinks by pair, their P2P, and `nvidia-smi topo -m`.

It is the same in each result of a machine, and of all machines of its kind, so it is computed once for each
wiring: that was a tenth of a judgement.  What is remembered depends on nothing but the wiring (`_wiring`).
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from nodegauge_contract import Result
from nodegauge_contract.matrix import render
from nodegauge_contract.model import PASTED
from nodegauge_contract.nvlink import Lanes, lanes
from nodegauge_judge.interconnect.p2p import PairP2p, examine

MOST = 64
"""Wirings that are remembered, of up to 40 KB each.  Chosen by this project: a fleet has a few kinds of
machines, and each machine with a link that is down is one more."""


class Topology(Struct, frozen=True, kw_only=True):
    """`p2p`: the pairs with NVLinks.  `matrix`: empty without a GPU."""

    lanes: Lanes
    p2p: tuple[PairP2p, ...]
    matrix: str


_known: dict[bytes, Topology] = {}
_encoder = msgspec.json.Encoder()


def build_topology(result: Result) -> Topology:
    """The topology of the machine of this result."""
    if result.probe == PASTED:  # judged once, and its texts need not be Unicode
        return _computed(result)
    wiring = _wiring(result)
    if wiring not in _known:
        if len(_known) >= MOST:
            _known.clear()
        _known[wiring] = _computed(result)
    return _known[wiring]


def _computed(result: Result) -> Topology:
    joined = lanes(result)
    p2p = tuple(examine(result, joined))
    return Topology(lanes=joined, p2p=p2p, matrix=render(result, joined=joined))


def _wiring(result: Result) -> bytes:
    """All that `lanes`, `examine` and `render` read of a result."""
    gpus = [
        (
            gpu.index,
            gpu.pci,
            gpu.compute_capability,
            gpu.mig,
            gpu.error is not None,
            gpu.cpus,
            gpu.memory_nodes,
            gpu.gpu_numa_id,
            gpu.links,
            gpu.switch_links,
        )
        for gpu in result.gpus
    ]
    nics = (result.nics.names, result.nics.to_gpu, result.nics.to_nic)
    return _encoder.encode((result.system.driver, gpus, result.pairs, nics))
