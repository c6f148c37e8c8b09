"""Did the probe see the whole node?  If not: is a GPU lost, or only hidden?

A container runtime that shows a probe four of eight GPUs gives no error, and every number would be true of
those four only.  `nvidia.com/gpu` is compared only if it counts whole GPUs.

A missing GPU is lost when it was there in this boot with this driver, and its PCI function is gone or
silent.  The history does not hold PCI addresses, so lost GPUs are counted, not named (`lost`).

A board that lacks a module was never seen whole, and has no history.  The table of models has the GPUs of a
whole board, and module ids name the slots: `hole`.

A function on the bus that another kernel driver serves (vfio-pci, nouveau), or that the NVIDIA driver was
told to exclude, is not for this node's jobs: `foreign`.  One without any driver may have failed: it stays
missing.
Where the policy states the intended number of GPUs, that number decides instead of all this.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from nodegauge_contract import ProblemKind
from nodegauge_contract.model import PASTED
from nodegauge_contract.nvlink import Doubt
from nodegauge_judge.case import Case, clip, once
from nodegauge_judge.gpu_models import known_models
from nodegauge_judge.history.model import uuid_start
from nodegauge_judge.model import Sharing

DRIVER = "nvidia"
"""The kernel driver through which NVML works, as sysfs names it."""
NO_VIRTUALIZATION, PASSED_THROUGH = 0, 1
"""NVML_GPU_VIRTUALIZATION_MODE_NONE and _PASSTHROUGH: bare metal, and a virtual machine's own GPU."""
FIRST_MODULE = 1
"""The module ids of a board count from 1 (recordings of V100, A100 and H100 boards; A100 and H100 end at 8);
0 stands for no baseboard (nvml.h, nvmlDeviceGetModuleId)."""


@once
def missing(case: Case) -> list[str]:
    """The reasons why GPUs must be missing from the document; empty for none.

    A document that a problem cut off gives no reason: that problem is the finding.
    """
    if case.result.problem is not None or shows_no_gpus(case):
        return []
    if _as_intended(case):
        return [reason for reason in (_no_permission(case),) if reason]
    reasons = (
        _none_at_all(case),
        _capacity(case),
        _seen_before(case),
        _on_the_bus(case),
        _no_permission(case),
        _hidden(case),
    )
    return [reason for reason in reasons if reason]


def shows_no_gpus(case: Case) -> bool:
    """Whether this is a paste of logs and messages alone, which says nothing of how many GPUs there are."""
    return case.result.probe == PASTED and not case.result.gpus


@once
def is_complete(case: Case) -> bool:
    """Whether every GPU of the node is in the document and was read."""
    unread = any(gpu.error is not None for gpu in case.result.gpus)
    return not (unread or case.result.problem is not None or missing(case) or lost(case))


def whole_board(case: Case) -> int:
    """GPUs of the smallest whole board that holds those of a bare machine of one model; 0 if nothing tells:
    cards, models without a row, machines that may have been given a part of a board."""
    gpus = case.result.gpus
    if len({gpu.name for gpu in gpus}) != 1 or any(gpu.virtualization != NO_VIRTUALIZATION for gpu in gpus):
        return 0
    return known_models().find(gpus[0].name).whole(len(gpus), switched=case.lanes.switched)


class Hole(Struct, frozen=True, kw_only=True):
    """GPUs that a board lacks: `lacks` of `size`; `modules`: their module ids, empty if these do not tell."""

    size: int
    lacks: int
    modules: tuple[int, ...]


@once
def hole(case: Case) -> Hole | None:
    """The GPUs that a board lacks without any trace of them; None for a whole board, or if nothing tells.

    A virtual machine may have a part of a board, and a container may be given one: GPUs that the bus, the
    capacity, another driver or an error accounts for are not holes.  In a virtual machine with NVSwitches, in
    a paste, or if the bus cannot be read, more than half of a board is no such part: boards are shared out in
    halves, quarters and eighths (NVIDIA, fabric manager user guide, partitions).
    """
    gpus = case.result.gpus
    modes = {gpu.virtualization for gpu in gpus}
    virtual = any(isinstance(mode, int) and mode != NO_VIRTUALIZATION for mode in modes)
    elsewhere = (_capacity(case), _on_the_bus(case), _no_permission(case), _hidden(case))
    if len(gpus) < 2 or case.result.problem is not None or _as_intended(case) or any(elsewhere):
        return None
    (name, _), *_ = Counter(gpu.name for gpu in gpus).most_common()
    of_board = [gpu for gpu in gpus if gpu.name == name]
    ids = {gpu.module_id for gpu in of_board if isinstance(gpu.module_id, int)}
    numbered = len(ids) == len(of_board) and min(ids) >= FIRST_MODULE
    model, switched = known_models().find(name), case.lanes.switched
    size = model.whole(len(of_board), switched=switched)
    if size > len(of_board) and numbered:
        size = model.whole(max(ids), switched=switched)
    nameless = sum(gpu.error is not None for gpu in gpus if gpu.name != name)
    lacks = size - len(of_board) - nameless - lost(case) - len(foreign(case))
    most = 2 * len(of_board) > size
    if lacks <= 0 or (virtual and not (modes == {PASSED_THROUGH} and switched and most)):
        return None
    known = modes == {NO_VIRTUALIZATION} or virtual
    pasted = case.result.probe == PASTED and model.board is not None and size == model.board.modules
    counted = known and _counted(case)
    if not ((most and (numbered or pasted)) or (counted and (numbered or most))):
        return None
    absent = sorted(set(range(FIRST_MODULE, size + FIRST_MODULE)) - ids) if numbered else []
    return Hole(size=size, lacks=lacks, modules=tuple(absent) if len(absent) == lacks else ())


def _counted(case: Case) -> bool:
    """Whether a second witness counts the GPUs that a container could be given: the bus, or the capacity."""
    exclusive = case.node.sharing is Sharing.EXCLUSIVE and case.node.gpu_capacity == len(case.result.gpus)
    return exclusive or _unclaimed(case) is not None


def gone_uuids(case: Case) -> list[str]:
    """Starts of the UUIDs that the history has and the document lacks, sorted."""
    return sorted(uuid_start(key) for key in set(case.history.gpus) - set(case.keys))


@once
def lost(case: Case) -> int:
    """How many GPUs have fallen off the bus since the last run of the same boot and driver.

    A GPU that NVML no longer lists either still answers on the PCI bus, or its function there is silent or
    gone.  So the missing GPUs, less the unlisted functions that still answer, are lost.  A virtual machine
    that hides the PCI tree or a part of it proves nothing; neither does a document that was cut off.  Against
    the policy's intended number, every GPU that NVML does not list is lost.
    """
    if shows_no_gpus(case):
        return 0
    if case.node.expected_gpus is not None and case.result.problem is None:
        return max(0, case.node.expected_gpus - len(case.result.gpus))
    unclaimed = _unclaimed(case)
    if unclaimed is None or case.result.problem is not None or not same_boot_and_driver(case):
        return 0
    answering = len(unclaimed - _silent(case))
    return max(0, len(case.history.gpus) - len(case.result.gpus) - answering - _given_away(case))


@once
def foreign(case: Case) -> dict[str, str]:
    """GPUs on the bus that are not for this node's jobs: address to what serves them, sorted by address.

    Older probes do not read the drivers; then there are none."""
    bus = case.result.bus
    if not isinstance(bus.gpus, list):
        return {}
    served = {
        address.lower(): clip(driver)
        for address, driver in zip(bus.gpus, bus.drivers, strict=False)
        if isinstance(driver, str) and driver != DRIVER
    }
    return {address: served[address] for address in sorted(served.keys() - _named(case))}


def bus_read(case: Case) -> bool:
    """Whether the document says who serves the GPUs on the bus."""
    return isinstance(case.result.bus.gpus, list) and bool(case.result.bus.drivers)


def foreign_in_words(case: Case) -> str:
    """`0000:0f:00.0 (vfio-pci), 0000:2d:00.0 (nouveau)`, at most four by name; empty for none."""
    named = [f"{address} ({driver})" for address, driver in foreign(case).items()]
    return clip(", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else ""))


def _given_away(case: Case) -> int:
    """How many GPUs were given to another driver since the last clean reading: they explain as many that are
    missing.  A function that was foreign before explains none."""
    return max(0, len(foreign(case)) - case.history.foreign)


def _as_intended(case: Case) -> bool:
    """Whether NVML lists at least as many GPUs as the policy intends."""
    return case.node.expected_gpus is not None and len(case.result.gpus) >= case.node.expected_gpus


def silent_addresses(case: Case) -> list[str]:
    """PCI addresses of GPUs that NVML does not list and that do not answer, sorted."""
    return sorted(_silent(case) & (_unclaimed(case) or set()))


def same_boot_and_driver(case: Case) -> bool:
    """Whether boot and driver are those of the last clean reading."""
    host, system, past = case.result.host, case.result.system, case.history
    return bool(past.boot) and (host.boot_id, system.driver) == (past.boot, past.driver)


@once
def _unclaimed(case: Case) -> set[str] | None:
    """PCI addresses of GPUs on the bus that the document lacks, less foreign ones; None if the bus was not
    read, is empty, or lacks GPUs that work."""
    bus = case.result.bus.gpus
    if not isinstance(bus, list) or not bus:
        return None
    listed = {address.lower() for address in bus}
    return None if _working(case) - listed else listed - _named(case) - foreign(case).keys()


@once
def _named(case: Case) -> set[str]:
    return {gpu.pci.lower() for gpu in case.result.gpus if isinstance(gpu.pci, str)}


@once
def _working(case: Case) -> set[str]:
    return {gpu.pci.lower() for gpu in case.result.gpus if isinstance(gpu.pci, str) and gpu.error is None}


@once
def _silent(case: Case) -> set[str]:
    """Addresses that read as all ones; none is believed if one of them belongs to a GPU that works."""
    silent = {address.lower() for address in case.result.bus.silent}
    return set() if silent & _working(case) else silent


def _none_at_all(case: Case) -> str:
    return "" if case.result.gpus or lost(case) else "NVML works and reports no GPU"


def _capacity(case: Case) -> str:
    capacity, seen = case.node.gpu_capacity or 0, len(case.result.gpus)
    if case.node.sharing is Sharing.SHARED or case.lanes.mig or seen + lost(case) >= capacity:
        return ""
    return f"the node's capacity says nvidia.com/gpu={capacity}, the probe was shown {seen}"


def _seen_before(case: Case) -> str:
    seen, known = len(case.result.gpus), len(case.history.gpus)
    if seen + lost(case) + _given_away(case) >= known:
        return ""
    gone = ", ".join(gone_uuids(case)[:4])
    since = "in this boot" if case.result.host.boot_id == case.history.boot else "before the last reboot"
    were = "1 GPU was" if known == 1 else f"{known} GPUs were"
    return f"{were} seen {since}, {seen} now; missing: {clip(gone)}"


def _on_the_bus(case: Case) -> str:
    """GPUs of the PCI bus that NVML does not show, less those of lost GPUs and less as many as there are GPUs
    with an error that give no address."""
    unclaimed = _unclaimed(case) or set()
    addresses = sorted(unclaimed - _silent(case) if lost(case) else unclaimed)
    nameless = sum(not isinstance(gpu.pci, str) for gpu in case.result.gpus)
    if len(addresses) <= nameless:
        return ""
    shown = ", ".join(addresses[:4]) + (f" and {len(addresses) - 4} more" if len(addresses) > 4 else "")
    return f"the PCI bus has GPUs that NVML does not show: {clip(shown)}"


def _no_permission(case: Case) -> str:
    denied = [
        str(gpu.index)
        for gpu in case.result.gpus
        if gpu.error is not None and gpu.error.kind == ProblemKind.NO_PERMISSION
    ]
    return f"no permission to read GPU {', '.join(denied)}" if denied else ""


def _hidden(case: Case) -> str:
    """Links to GPUs that were not shown; a lost GPU's peers may still have their links up."""
    hidden = [doubt for doubt in case.lanes.unresolved if doubt.doubt is Doubt.HIDDEN]
    if not hidden or lost(case):
        return ""
    gpu = case.result.gpus[hidden[0].gpu]
    return f"an NVLink of GPU {gpu.index} {clip(hidden[0].reason)}"
