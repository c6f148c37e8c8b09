"""What a judgement leaves behind for the next one: how many NVLinks each GPU has been seen with.

A direct mesh has no siblings to compare with (healthy sums differ), so a lost link shows only against the
node's own past.  That memory must survive bad readings, and must not become a trap:

- A lower reading never lowers a confirmed sum: that would forget the fault.
- A higher reading raises it only when it comes twice in a row: one bad reading must not degrade for good.
- The very first reading counts at once, but only a second confirms it; three lower ones in a row replace it.
- Only clean readings count: the caller leaves out GPUs whose links could not be told (`judge` decides).

A swapped GPU brings a new UUID and starts anew.  Deleting the node's NodeReport forgets everything.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

LIMIT = 2048
"""Bytes of JSON that a report keeps for this (design: 2 KiB); 16 GPUs need about half."""
GIVE_UP_AFTER = 3
"""Lower readings in a row that replace a sum which was seen only once.  Own."""


class LinkMemory(Struct, frozen=True, array_like=True):
    """The link sum to compare with, whether two readings confirmed it, and the readings that differ from it:
    `rival` was seen `times` in a row (0 for none)."""

    sum: int
    confirmed: bool = False
    rival: int = 0
    times: int = 0

    def after(self, reading: int) -> LinkMemory:
        """The memory once `reading` has been seen as well."""
        if reading == self.sum:
            return LinkMemory(self.sum, True)
        above = reading > self.sum
        repeated = self.times > 0 and (self.rival > self.sum) == above
        if above and repeated:
            return LinkMemory(min(self.rival, reading), True)
        if above:
            return LinkMemory(self.sum, True, reading, 1)
        if self.confirmed:
            return LinkMemory(self.sum, True)
        times = self.times + 1 if repeated else 1
        rival = max(self.rival, reading) if repeated else reading
        return (
            LinkMemory(rival, True) if times >= GIVE_UP_AFTER else LinkMemory(self.sum, False, rival, times)
        )


class History(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Raw inputs kept for the next judgement.

    `boot` and `driver`: of the last clean reading.  `links`: per GPU UUID what is remembered; its keys are
    also the set of GPUs that the node is known to have.
    """

    boot: str = ""
    driver: str = ""
    links: dict[str, LinkMemory] = {}

    def encode(self) -> str:
        """JSON of at most `LIMIT` bytes; what does not fit is forgotten rather than cut."""
        return msgspec.json.encode(self if self.fits() else History()).decode()

    @classmethod
    def decode(cls, text: str) -> History | None:
        """The history in `text`; None when there is none or it cannot be read, which costs only memory."""
        try:
            return msgspec.json.decode(text, type=cls) if text else None
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return None

    def after(
        self, *, boot: str, driver: str, sums: Mapping[str, int], kept: Mapping[str, LinkMemory]
    ) -> History:
        """The history once the whole node has been read: link sums by GPU UUID, and what is kept as it was
        because the links could not be told this time.  GPUs in neither are forgotten: they were replaced."""
        links = {
            uuid: self.links[uuid].after(value) if uuid in self.links else LinkMemory(value)
            for uuid, value in sums.items()
        } | dict(kept)
        history = History(boot=boot, driver=driver, links=links)
        return history if history.fits() else History(boot=boot, driver=driver)

    def fits(self) -> bool:
        """Whether it can be kept (see `LIMIT`)."""
        return len(msgspec.json.encode(self)) <= LIMIT
