"""NCCL's choices, from its debug output: transport, NVLS, channels, algorithms, host memory, variables.

Formats are those of NCCL 5067397c (2.30) with the variants of older and newer releases; other lines are
ignored.  The NCCL probe feeds the files of one arm, `log` the lines between those of nccl-tests.  Pure.

A collective's line has the bytes that one rank contributes: for all_gather and reduce_scatter a share of what
nccl-tests calls the size (src/enqueue.cc counts the task's elements, not the total).
"""

from __future__ import annotations

import re

from nodegauge_contract.nccl import TOTALS, Collective
from nodegauge_contract.values import NOT_READ, Flag, Int, Text

MAX_CHOICES = 4096
CLOSE_ENOUGH = 0.01
"""Sizes are rounded to a multiple of the ranks."""

HOST_CUMEM, HOST_SHM = "cuMem", "/dev/shm"

LIBRARY = re.compile(r"NCCL version (\d+(?:\.\d+){1,3})[^\s+]*(?:\+cuda(\d+(?:\.\d+)*))?")
"""NCCL's version line (src/init.cc); logs of nccl-tests and of NCCL both have it."""
_COLLECTIVES = {
    "AllReduce": Collective.ALL_REDUCE,
    "AllGather": Collective.ALL_GATHER,
    "ReduceScatter": Collective.REDUCE_SCATTER,
}
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
"""Releases before 2.24 print their numbers."""

_CHOICE = re.compile(r"INFO (\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)")
_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\](?: \[(?:send|receive)\])? via (\S+)")
_CHANNELS = re.compile(r"(\d+) coll channels, (?:\d+ collnet channels, )?(\d+) nvls channels")
_SUPPORT = re.compile(r"NVLS multicast support is (not )?available")
_TIMINGS = re.compile(r"Init timings .* total (\d+\.\d+) \(kernels (\d+\.\d+)")
_WARNING = re.compile(r"NCCL WARN (.+)")
_SPECIFIC = ("P2P is disabled", "NVLINK connected", "NVLS", "ultimem", "ulticast")
"""A warning with one of these explains more than other warnings."""
_VARIABLE = re.compile(
    r"(?<!\w)(NCCL_(?:P2P_DISABLE|P2P_LEVEL|NVLS_ENABLE|ALGO))(?: set by environment to |=|[\"']?: )"
    r"[\"']?([\w^,:+-]{1,64})"
)
"""As NCCL logs a variable (src/misc/param.cc), and as shells, mpirun's `-x`, scripts and manifests set it."""


class Choices:
    """The choices in the log of one run; lines may come in any order."""

    def __init__(self) -> None:
        self.version: Text = NOT_READ
        self.cuda: Text = NOT_READ
        self.nvls: Flag = NOT_READ
        self.multicast: Flag = NOT_READ
        self.channels: Int = NOT_READ
        self.init_s = self.kernels_s = 0.0
        self.warning = ""
        self.environment: dict[str, str] = {}
        self._transports: dict[str, None] = {}
        self._host: dict[str, None] = {}
        self._chosen: dict[tuple[str, int], tuple[str, str]] = {}

    def feed(self, line: str) -> None:
        """One line of the log."""
        if "Bytes -> Algo" in line:
            self._choice(line)
        elif " via " in line:
            self._transport(line)
        elif " channels" in line:
            self._channels(line)
        elif "NCCL_" in line:
            self.environment |= dict(_VARIABLE.findall(line))
        elif "NVLS" in line and "WARN" not in line:
            self._nvls(line)
        elif "allocated shareable" in line:
            self._host[HOST_CUMEM if "CUMEM" in line else HOST_SHM] = None
        elif "NCCL version" in line:
            self._versions(line)
        elif "Init timings" in line:
            self._timings(line)
        elif (match := _WARNING.search(line)) is not None:
            self._warn(match[1])

    @property
    def transport(self) -> Text:
        return "+".join(sorted(self._transports))[:128] or NOT_READ

    @property
    def host_buffers(self) -> Text:
        return "+".join(self._host) or NOT_READ

    def chosen(self, collective: str, size: int, *, ranks: int) -> tuple[Text, Text]:
        """Algorithm and protocol for a collective at a size as nccl-tests has it."""
        contribution = size / ranks if collective in TOTALS and ranks > 0 else size
        known = [contributed for name, contributed in self._chosen if name == collective]
        nearest = min(known, key=lambda contributed: abs(contributed - contribution), default=None)
        if nearest is None or abs(nearest - contribution) > max(CLOSE_ENOUGH * contribution, 1):
            return NOT_READ, NOT_READ
        return self._chosen[collective, nearest]

    def _choice(self, line: str) -> None:
        match = _CHOICE.search(line)
        collective = _COLLECTIVES.get(match[1]) if match else None
        if match is None or collective is None or len(self._chosen) >= MAX_CHOICES:
            return
        names = _name(match[3], _ALGORITHMS), _name(match[4], _PROTOCOLS)
        self._chosen[collective, int(match[2][:19])] = names

    def _transport(self, line: str) -> None:
        match = _CHANNEL.search(line)
        if match is not None and len(self._transports) < 8:
            # Only the kind matters: drop the GPU of an indirect path and the device of a network.
            kind = match[1].split("/")
            short = kind[:2] if kind[0] in ("NET", "P2P") and kind[1:2] != ["direct"] else kind
            self._transports["/".join(short)] = None

    def _channels(self, line: str) -> None:
        match = _CHANNELS.search(line)
        if match is not None:
            self.channels = int(match[1][:9])
            self.nvls = self.nvls is True or int(match[2][:9]) > 0

    def _nvls(self, line: str) -> None:
        support = _SUPPORT.search(line)
        if support is not None:
            self.multicast = support[1] is None
        elif "Created Multicast group" in line:
            self.nvls = True

    def _versions(self, line: str) -> None:
        match = LIBRARY.search(line)
        if match is not None:
            self.version = match[1]
            self.cuda = match[2] or NOT_READ

    def _timings(self, line: str) -> None:
        match = _TIMINGS.search(line)
        if match is not None:
            self.init_s = max(self.init_s, float(match[1]))
            self.kernels_s = max(self.kernels_s, float(match[2]))

    def _warn(self, text: str) -> None:
        specific = any(part in text for part in _SPECIFIC)
        if specific or not any(part in self.warning for part in _SPECIFIC):
            line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
            self.warning = line if len(line) <= MAX_WARNING else "…" + line[1 - MAX_WARNING :]


MAX_WARNING = 160
"""Characters of a warning; of a longer one its end."""


def _name(text: str, names: tuple[str, ...]) -> str:
    """A name; old releases print its number."""
    if text.isdecimal():
        return names[int(text)] if len(text) < 3 and int(text) < len(names) else text[:32]
    return text.upper()[:32]
