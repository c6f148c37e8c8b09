"""What NCCL chose, from its own debug output: transport, NVLS, channels, algorithms, host memory.

Formats are those of NCCL 5067397c (2.30) with the variants that older and newer releases print; whatever is
not recognised is passed over.  `Choices` is pure; `read` takes the files of one arm and stops early.

A collective's line names the bytes that one rank puts in: for all_gather and reduce_scatter a share of what
nccl-tests calls the size (src/enqueue.cc counts the task's elements, not the total).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from nodegauge_contract import NOT_READ, Collective, Flag, Int, Text
from nodegauge_contract.nccl_tests.log import LIBRARY
from nodegauge_probes.nccl.receiver import words

MAX_BYTES = 64 << 20
"""Of one arm's logs: NCCL writes a line per call, and small messages are many calls."""
MAX_CHOICES = 256
CLOSE_ENOUGH = 0.01
"""Sizes are rounded to what the ranks divide."""

HOST_CUMEM, HOST_SHM = "cuMem", "/dev/shm"

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
_TELLING = ("P2P is disabled", "NVLINK connected", "NVLS", "ultimem", "ulticast")
"""A warning with one of these says more than the ones around it."""


class Choices:
    """What one arm's lines say; feed them in any order."""

    def __init__(self) -> None:
        self.version: Text = NOT_READ
        self.cuda: Text = NOT_READ
        self.nvls: Flag = NOT_READ
        self.nvls_supported: Flag = NOT_READ
        self.channels: Int = NOT_READ
        self.init_s = self.kernels_s = 0.0
        self.warning = ""
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
        elif "NVLS" in line and "WARN" not in line:
            self._nvls(line)
        elif "allocated shareable" in line:
            self._host[HOST_CUMEM if "CUMEM" in line else HOST_SHM] = None
        elif "NCCL version" in line:
            self._versions(line)
        elif "Init timings" in line:
            self._timings(line)
        elif (found := _WARNING.search(line)) is not None:
            self._warn(found[1])

    @property
    def transport(self) -> Text:
        return "+".join(sorted(self._transports))[:128] or NOT_READ

    @property
    def host_buffers(self) -> Text:
        return "+".join(self._host) or NOT_READ

    def chosen(self, collective: str, size: int, *, ranks: int) -> tuple[Text, Text]:
        """Algorithm and protocol for a collective at a size as nccl-tests has it."""
        share = collective != Collective.ALL_REDUCE and ranks > 0
        wanted = size / ranks if share else size
        known = [put_in for of, put_in in self._chosen if of == collective]
        nearest = min(known, key=lambda put_in: abs(put_in - wanted), default=None)
        if nearest is None or abs(nearest - wanted) > max(CLOSE_ENOUGH * wanted, 1):
            return NOT_READ, NOT_READ
        return self._chosen[collective, nearest]

    def _choice(self, line: str) -> None:
        found = _CHOICE.search(line)
        collective = _COLLECTIVES.get(found[1]) if found else None
        if found is None or collective is None or len(self._chosen) >= MAX_CHOICES:
            return
        names = _named(found[3], _ALGORITHMS), _named(found[4], _PROTOCOLS)
        self._chosen[collective, int(found[2])] = names

    def _transport(self, line: str) -> None:
        found = _CHANNEL.search(line)
        if found is not None and len(self._transports) < 8:
            # An indirect path names the GPU in the middle, a network its device: the kind is what matters.
            kind = found[1].split("/")
            short = kind[:2] if kind[0] in ("NET", "P2P") and kind[1:2] != ["direct"] else kind
            self._transports["/".join(short)] = None

    def _channels(self, line: str) -> None:
        found = _CHANNELS.search(line)
        if found is not None:
            self.channels = int(found[1])
            self.nvls = self.nvls is True or int(found[2]) > 0

    def _nvls(self, line: str) -> None:
        support = _SUPPORT.search(line)
        if support is not None:
            self.nvls_supported = support[1] is None
        elif "Created Multicast group" in line:
            self.nvls = True

    def _versions(self, line: str) -> None:
        found = LIBRARY.search(line)
        if found is not None:
            self.version = found[1]
            self.cuda = found[2] or NOT_READ

    def _timings(self, line: str) -> None:
        found = _TIMINGS.search(line)
        if found is not None:
            self.init_s = max(self.init_s, float(found[1]))
            self.kernels_s = max(self.kernels_s, float(found[2]))

    def _warn(self, text: str) -> None:
        telling = any(word in text for word in _TELLING)
        if telling or not any(word in self.warning for word in _TELLING):
            self.warning = words(text, most=160)


def parse(lines: Iterable[str]) -> Choices:
    """What these lines say."""
    choices = Choices()
    for line in lines:
        choices.feed(line)
    return choices


def read(folder: Path) -> Choices:
    """What the logs in `folder` say, as far as they can be read."""
    choices, left = Choices(), MAX_BYTES
    try:
        files = sorted(folder.glob("nccl.*.log"))
    except OSError:
        return choices
    for file in files:
        try:
            with file.open("rb") as log:
                while left > 0 and (line := log.readline(4096)):
                    left -= len(line)
                    choices.feed(line.decode("utf-8", "replace"))
        except OSError:
            continue
    return choices


def _named(word: str, names: tuple[str, ...]) -> str:
    """A name, also where an old release printed its number."""
    if word.isdecimal():
        return names[int(word)] if int(word) < len(names) else word
    return word.upper()[:32]
