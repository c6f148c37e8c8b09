"""Counting NVLinks: from the links that GPUs report to the NV# of `nvidia-smi topo -m`.

A pure view of a result document.  The printed matrix and the judge both use it, so they always agree.  It
follows two programs: NCCL decides per link whether it is usable and what it connects to (src/graph/xml.cc),
DCGM counts pairs behind switches (DcgmTopology.cpp).

- An active link to an NVSwitch reaches every GPU: NV#(i, j) is the smaller number of such links of i and j.
- A direct link counts for its pair if both ends report it.
- An ambiguous link is listed in `Lanes.unresolved` with the reason; nothing is guessed.

No thresholds, classes or P2P verdicts here.  P2P status is used only to find the remote end of a link that
names its own GPU or nothing (in virtual machines).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from nodegauge_contract.gpu import Gpu, LinkGroup
from nodegauge_contract.model import Result
from nodegauge_contract.values import Unavailable

INACTIVE, ACTIVE, ASLEEP, TRAFFIC_DISABLED = 0, 1, 2, 3
"""NVML_NVLINK_STATE_*.  NCCL uses state 1 alone, so only 1 counts; 2 and 3 are unresolved: the link
is wired, so neither "no NVLink" nor "NVLink" would be true."""

REMOTE_GPU, REMOTE_NPU, REMOTE_SWITCH = 0, 1, 2
P2P_OK = 0
REACHES_SWITCH, REACHES_NO_GPU = -1, -2
"""Targets of a link besides the positions in `Result.gpus`."""


class ModelLinks(Struct, frozen=True, kw_only=True):
    """The NVLinks that one GPU of a model has."""

    links: Annotated[int, Meta(ge=1, le=36)]
    """All of them: what a board wires, or all bridges of a card carry (at most NVML_NVLINK_MAX_LINKS)."""
    gbps: Annotated[float, Meta(gt=0, le=1000)]
    """GB/s per link and direction."""


class Doubt(StrEnum):
    """Why a link could not be counted.  Values are stable."""

    STATE = "state"
    """The link's state could not be read, or is unknown to this version."""
    CAPABILITY = "capability"
    """The link is up, but whether it can carry peer traffic could not be read."""
    ASLEEP = "asleep"
    TRAFFIC_DISABLED = "traffic-disabled"
    REMOTE = "remote"
    """The link is up, but its remote end is its own GPU, empty or unknown."""
    HIDDEN = "hidden"
    """The link leads to a GPU of the node that is missing in the document."""
    SILENT = "silent"
    """The GPU reports that it is wired to switches, and none of its links is up."""


class Unresolved(Struct, frozen=True, kw_only=True):
    """Links of one GPU (`gpu` is its position in `Result.gpus`) that could not be counted, and why."""

    gpu: int
    links: tuple[int, ...]
    doubt: Doubt
    reason: str


class Lanes(Struct, frozen=True, kw_only=True):
    """NVLinks of a node; every sequence is in the order of `Result.gpus`.

    `pair`: NV# per pair, square, 0 on the diagonal.  `sums`: per GPU, active links to GPUs of this node or to
    switches.  `switched`: at least one link leads to a switch.  `rates`: per GPU the slowest counted link's
    raw signalling rate in MB/s per direction, None if no counted link reports one.  `mig`: positions of GPUs
    with MIG on: their links always read as down, so they are not counted.
    """

    pair: tuple[tuple[int, ...], ...]
    sums: tuple[int, ...]
    switched: bool
    rates: tuple[int | None, ...]
    unresolved: tuple[Unresolved, ...] = ()
    mig: tuple[int, ...] = ()


class _GpuLinks(Struct):
    """Sums over one GPU's links: counts per peer position, count to switches, rates, doubts."""

    peers: Counter[int]
    switch: int
    rates: list[int]
    doubts: list[Unresolved]


def lanes(result: Result) -> Lanes:
    """Count the NVLinks of `result`; never raises on a decoded document.

    Sources: NCCL src/graph/xml.cc (capability, state, remote), DCGM DcgmTopology.cpp (switch pairs).
    """
    return _Counting(result).lanes()


def _is_absent(state: Unavailable) -> bool:
    """Whether the driver answered that there is no such link, which is not a failed reading."""
    reason = "".join(c for c in state.unavailable.lower() if c.isalnum())
    return "notsupported" in reason or "invalidargument" in reason


def _is_older_than_nvlink(gpu: Gpu) -> bool:
    """Compute capability below 6.0 (NCCL's limit), whose drivers may not even know the calls."""
    major = gpu.compute_capability.partition(".")[0] if isinstance(gpu.compute_capability, str) else ""
    return major.isascii() and major.isdigit() and int(major) < 6


def _groups(gpu: Gpu) -> Iterator[tuple[LinkGroup, tuple[int, ...]]]:
    """Every group, with the links that were in no earlier group."""
    seen: set[int] = set()
    for group in gpu.links:
        fresh = tuple(link for link in dict.fromkeys(group.links) if link not in seen)
        seen.update(fresh)
        if fresh:
            yield group, fresh


class _Counting:
    """One count over a document, with the facts that depend on all GPUs."""

    def __init__(self, result: Result) -> None:
        self._gpus = result.gpus
        self._nvlink = result.pairs.nvlink
        self._index_by_pci = {f"gpu{i}": i for i in range(len(self._gpus))} | {
            gpu.pci.lower(): i for i, gpu in enumerate(self._gpus) if isinstance(gpu.pci, str)
        }
        self._mig = tuple(i for i, gpu in enumerate(self._gpus) if gpu.mig == 1)
        self._remotes_are_real = any(
            self._peer_by_name(i, group) is not None
            for i, gpu in enumerate(self._gpus)
            for group in gpu.links
            if group.state == ACTIVE
        )

    def lanes(self) -> Lanes:
        per_gpu = [self._sums(i, gpu) for i, gpu in enumerate(self._gpus)]
        indices = range(len(per_gpu))
        direct = [[self._both_ends(per_gpu, i, j) for j in indices] for i in indices]
        switch = [sums.switch for sums in per_gpu]
        return Lanes(
            pair=tuple(
                tuple(0 if i == j else direct[i][j] + min(switch[i], switch[j]) for j in indices)
                for i in indices
            ),
            sums=tuple(sum(direct[i]) + switch[i] for i in indices),
            switched=any(switch),
            rates=tuple(min(sums.rates, default=None) for sums in per_gpu),
            unresolved=tuple(doubt for sums in per_gpu for doubt in sums.doubts),
            mig=self._mig,
        )

    def _both_ends(self, per_gpu: list[_GpuLinks], i: int, j: int) -> int:
        """Links between i and j that both report; of a GPU that could not be read, those that the other
        reports."""
        from_i, from_j = per_gpu[i].peers[j], per_gpu[j].peers[i]
        if self._gpus[i].error is not None:
            return from_j
        if self._gpus[j].error is not None:
            return from_i
        return min(from_i, from_j)

    def _sums(self, i: int, gpu: Gpu) -> _GpuLinks:
        sums = _GpuLinks(Counter(), 0, [], [])
        if i in self._mig or gpu.error is not None or _is_older_than_nvlink(gpu):
            return sums
        for group, links in _groups(gpu):
            self._count(sums, i, group=group, links=links)
        wired = gpu.switch_links
        if isinstance(wired, int) and wired > 0 and not (sums.switch or sums.peers or sums.doubts):
            reason = f"wired to switches by {wired} links (field 147), but none of its links is active"
            sums.doubts.append(Unresolved(gpu=i, links=(), doubt=Doubt.SILENT, reason=reason))
        return sums

    def _count(self, sums: _GpuLinks, i: int, *, group: LinkGroup, links: tuple[int, ...]) -> None:
        usable = _usable(group)
        if usable is None:
            return
        reached = self._reach(i, group) if usable is True else usable
        if isinstance(reached, tuple):
            doubt, reason = reached
            sums.doubts.append(Unresolved(gpu=i, links=links, doubt=doubt, reason=reason))
            return
        if reached == REACHES_NO_GPU:
            return
        if reached == REACHES_SWITCH:
            sums.switch += len(links)
        else:
            sums.peers[reached] += len(links)
        if isinstance(group.mbps, int) and group.mbps > 0:
            sums.rates.append(group.mbps)

    def _peer_by_name(self, i: int, group: LinkGroup) -> int | None:
        index = self._index_by_pci.get(group.remote.lower()) if isinstance(group.remote, str) else None
        return None if index == i else index

    def _reach(self, i: int, group: LinkGroup) -> int | tuple[Doubt, str]:
        """The target of an active link of GPU i: a position, a `REACHES_` constant, or a doubt."""
        if group.remote_type == REMOTE_SWITCH:
            return REACHES_SWITCH
        if group.remote_type == REMOTE_NPU:
            return REACHES_NO_GPU
        by_name = self._peer_by_name(i, group)
        if by_name is not None:
            return by_name
        wired = self._gpus[i].switch_links
        if isinstance(wired, int) and wired > 0:
            return REACHES_SWITCH
        if self._names_unlisted_gpu(group):
            return self._unlisted(group)
        peers = self._peers_by_p2p(i)
        if len(peers) == 1:
            return peers[0]
        return Doubt.REMOTE, f"{_remote_end(self._gpus[i], group)}; NVLink P2P is OK with {len(peers)} peers"

    def _names_unlisted_gpu(self, group: LinkGroup) -> bool:
        """Whether the remote end has a name that is plausible but is none of the GPUs in the document.

        Names are plausible if other links of the node name GPUs in the document, or if there is only one
        GPU; else they may be invented by a virtual machine.
        """
        named = isinstance(group.remote, str) and bool(group.remote)
        plausible = self._remotes_are_real or len(self._gpus) == 1
        return named and plausible and str(group.remote).lower() not in self._index_by_pci

    def _unlisted(self, group: LinkGroup) -> tuple[Doubt, str]:
        """A GPU that was hidden from the probe, or one whose PCI id could not be read."""
        all_known = all(isinstance(gpu.pci, str) for gpu in self._gpus)
        if all_known and group.remote_type == REMOTE_GPU:
            return Doubt.HIDDEN, f"leads to GPU {group.remote}, which the probe was not shown"
        return Doubt.REMOTE, f"leads to {group.remote}, which is not among the GPUs that could be read"

    def _peers_by_p2p(self, i: int) -> list[int]:
        row = self._nvlink[i] if i < len(self._nvlink) else []
        return [j for j, status in enumerate(row[: len(self._gpus)]) if j != i and status == P2P_OK]


def _usable(group: LinkGroup) -> bool | tuple[Doubt, str] | None:
    """True: up and usable for peer traffic; None: does not count; else the doubt."""
    state = group.state
    if isinstance(state, Unavailable):
        return None if _is_absent(state) else (Doubt.STATE, f"state not readable: {state.unavailable}")
    if state == INACTIVE or group.p2p == 0:
        return None
    if state == ASLEEP:
        return Doubt.ASLEEP, "asleep: NCCL would not use it"
    if state == TRAFFIC_DISABLED:
        return Doubt.TRAFFIC_DISABLED, "trained, but traffic is disabled on it"
    if state != ACTIVE:
        return Doubt.STATE, f"in state {state}, which is not known here"
    if isinstance(group.p2p, Unavailable):
        return Doubt.CAPABILITY, f"peer capability not readable: {group.p2p.unavailable}"
    return True


def _remote_end(gpu: Gpu, group: LinkGroup) -> str:
    """The remote end as the link reports it, for a person."""
    if isinstance(group.remote, Unavailable):
        return f"far end not readable ({group.remote.unavailable})"
    if not group.remote:
        return "far end is empty"
    if isinstance(gpu.pci, str) and group.remote.lower() == gpu.pci.lower():
        return "far end is the GPU itself"
    return f"far end {group.remote} is not a GPU of this node"
