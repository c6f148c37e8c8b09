"""What the watch probe compares: one `Signal` per quantity, with how it is read and when two values differ.

A signal turns its last readings into a *level* (`levels`); a changed level is a change.  Nothing here judges:
a level only says that the full reading is worth taking.

A new quantity is one line in `SIGNALS` (of each GPU), or one key in `host.py` (of the node).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field

from nodegauge_contract import Int, Unavailable
from nodegauge_probes.collectors import counters, telemetry, topology
from nodegauge_probes.collectors.sampling import SLOWDOWN
from nodegauge_probes.nvml import library
from nodegauge_probes.nvml.library import Field
from nodegauge_probes.nvml.results import signed
from nodegauge_probes.watch.levels import (
    COUNTER_WINDOW_S,
    SILENT,
    SKIPPED,
    Leveller,
    Watched,
    bits,
    by_part,
    core_heat,
    grows,
    latest,
    margin_heat,
    memory_heat,
    slowed,
    twice,
)

Reading = Callable[[Watched], Any]


def call(name: str, *arguments: Any, pick: Callable[[Any], Any] = lambda answer: answer) -> Reading:
    """Reading by one call for the GPU; a tuple as text."""

    def read(gpu: Watched) -> Any:
        return gpu.nvml.value(gpu.device, name, *arguments, pick=lambda answer: _plain(pick(answer)))

    return read


def _plain(answer: Any) -> int | str:
    return "/".join(map(str, answer)) if isinstance(answer, tuple | list) else int(answer)


def celsius(raw: int | str) -> str:
    return f"{raw} °C"


def seconds(raw: int | str) -> str:
    """Of a counter in nanoseconds."""
    return f"{int(raw) / 1e9:.1f} s"


def names_of_bits(raw: int | str) -> str:
    return " and ".join(name for bit, name in SLOWDOWN.items() if int(raw) & bit) or "none"


def reasons(gpu: Watched) -> Int:
    older = (("nvmlDeviceGetCurrentClocksThrottleReasons",),)
    return gpu.nvml.integer(gpu.device, "nvmlDeviceGetCurrentClocksEventReasons", fallbacks=older)


def margin(gpu: Watched) -> Int:
    answer = gpu.nvml.integer(gpu.device, "nvmlDeviceGetMarginTemperature")
    return signed(answer) if isinstance(answer, int) else answer


def link_states(gpu: Watched) -> Any:
    """One character per link."""
    if not gpu.links:
        return library.NO_SUCH_LINK
    if gpu.link_fields:
        answers = gpu.nvml.fields(gpu.device, *((topology.FI_LINK_STATE, link) for link in gpu.links))
    else:
        state = "nvmlDeviceGetNvLinkState"
        answers = [gpu.nvml.integer(gpu.device, state, link) for link in gpu.links]
    return _parts(answers)


def _parts(answers: Sequence[Any]) -> Any:
    """One character each, or why none of them answers."""
    if all(isinstance(each, Unavailable) for each in answers):
        return answers[0]
    return "".join(SILENT if isinstance(each, Unavailable) else str(each) for each in answers)


def link_failures(gpu: Watched) -> Any:
    """Recoveries of links that failed (NVLink 5)."""
    if not gpu.links:
        return library.NO_SUCH_LINK
    answers = gpu.nvml.fields(gpu.device, *((counters.FI_RECOVERY_FAILED, link) for link in gpu.links))
    return total(answers, gpu.errors.setdefault("failures", {}))


def link_errors(gpu: Watched) -> Any:
    """Replays, recoveries and CRC errors of all links up to NVLink 4."""
    if not gpu.links:
        return library.NO_SUCH_LINK
    errors = []
    for link in gpu.links:
        for kind in (counters.DL_REPLAY, counters.DL_RECOVERY, counters.DL_CRC_FLIT):
            errors.append(gpu.nvml.integer(gpu.device, "nvmlDeviceGetNvLinkErrorCounter", link, kind))
            if isinstance(errors[0], Unavailable):
                return errors[0]
    return total(errors, gpu.errors.setdefault("errors", {}))


def total(answers: Sequence[Any], last: dict[int, int]) -> Any:
    """Their sum, if there is an answer; one that fails counts as it did `last`, or its return would look like
    growth."""
    numbers = {n: each for n, each in enumerate(answers) if isinstance(each, int)}
    last.update(numbers)
    return sum(last.values()) if numbers else answers[0]


def p2p(gpu: Watched) -> Any:
    """The P2P statuses towards every other GPU."""
    if not gpu.peers:
        return Unavailable("no other GPU")
    return _parts(
        [
            gpu.nvml.pair(gpu.device, peer, "nvmlDeviceGetP2PStatus", kind) if peer.lost is None else SKIPPED
            for peer in gpu.peers
            for kind in (library.READ, library.WRITE, library.NVLINK)
        ]
    )


def fabric(gpu: Watched) -> Any:
    answer = gpu.nvml.fabric(gpu.device)
    if isinstance(answer, Unavailable):
        return answer
    parts = (answer.state, answer.status, answer.health_mask, answer.health_summary)
    return "/".join("-" if isinstance(each, Unavailable) else str(each) for each in parts)


def fault(gpu: Watched) -> str:
    """The GPU's own error, without a call: what the calls before it met."""
    return gpu.device.fault.kind if gpu.device.fault else ""


def throttle_field(position: int) -> Callable[[Watched], Field | None]:
    return lambda gpu: gpu.trio[position] if gpu.trio else None


class Signal(Struct, frozen=True, kw_only=True):
    """One quantity of a GPU: read every so many looks, by `read` or as the NVML field `fields` (all due
    fields of a GPU are one call)."""

    name: str
    every: int = 1
    read: Reading | None = None
    fields: Callable[[Watched], Field | None] = field(default=lambda gpu: None)
    level: Leveller = latest
    show: Callable[[int | str], str] = field(default=lambda raw: str(raw) or "none")


OFTEN, SELDOM = 5, 30

SIGNALS = (
    Signal(name="throttle reasons", read=reasons, level=bits, show=names_of_bits),
    Signal(
        name="temperature",
        read=lambda gpu: telemetry.gpu_temperature(gpu.nvml, gpu.device),
        level=core_heat,
        show=celsius,
    ),
    Signal(name="margin", read=margin, level=margin_heat, show=celsius),
    Signal(
        name="memory temperature",
        fields=lambda gpu: telemetry.FI_MEMORY_TEMPERATURE,
        level=memory_heat,
        show=celsius,
    ),
    Signal(
        name="SW thermal",
        fields=throttle_field(0),
        level=slowed(lambda o: o.sw_thermal_seconds),
        show=seconds,
    ),
    Signal(
        name="HW thermal",
        fields=throttle_field(1),
        level=slowed(lambda o: o.hw_thermal_seconds),
        show=seconds,
    ),
    Signal(
        name="power brake",
        fields=throttle_field(2),
        level=slowed(lambda o: o.power_brake_seconds),
        show=seconds,
    ),
    Signal(
        name="thermal violation",
        fields=lambda gpu: None if gpu.trio else counters.FI_THERMAL,
        level=slowed(lambda o: o.sw_thermal_seconds),
        show=seconds,
    ),
    Signal(name="recovery action", fields=lambda gpu: counters.FI_RECOVERY_ACTION),
    Signal(
        name="uncorrectable ECC",
        read=call("nvmlDeviceGetTotalEccErrors", counters.UNCORRECTED, counters.VOLATILE),
    ),
    Signal(name="links", every=OFTEN, read=link_states, level=by_part),
    Signal(name="remapped rows", every=OFTEN, read=call("nvmlDeviceGetRemappedRows")),
    Signal(name="pages pending", every=OFTEN, read=call("nvmlDeviceGetRetiredPagesPendingStatus")),
    Signal(
        name="retired pages",
        every=SELDOM,
        read=call("nvmlDeviceGetRetiredPages", counters.DOUBLE_BIT, pick=len),
    ),
    Signal(name="repair", every=SELDOM, read=call("nvmlDeviceGetRepairStatus")),
    Signal(name="unrepairable", every=SELDOM, read=call("nvmlDeviceGetUnrepairableMemoryFlag_v1")),
    Signal(name="SRAM threshold", every=SELDOM, read=lambda gpu: gpu.nvml.sram_threshold(gpu.device)),
    Signal(
        name="corrected ECC",
        every=SELDOM,
        read=call("nvmlDeviceGetTotalEccErrors", counters.CORRECTED, counters.VOLATILE),
        level=grows(lambda o: o.corrected_per_minute, over=lambda o: 0, window=COUNTER_WINDOW_S),
    ),
    Signal(name="link recoveries failed", every=SELDOM, read=link_failures),
    Signal(
        name="link errors",
        every=SELDOM,
        read=link_errors,
        level=grows(lambda o: 1, over=lambda o: 0, window=10 * COUNTER_WINDOW_S),
    ),
    Signal(name="P2P", every=SELDOM, read=p2p, level=by_part),
    Signal(name="fabric", every=SELDOM, read=fabric),
    Signal(name="PCIe width", every=SELDOM, read=call("nvmlDeviceGetCurrPcieLinkWidth"), level=twice),
    Signal(name="power limit", every=SELDOM, read=call("nvmlDeviceGetEnforcedPowerLimit"), level=twice),
    Signal(name="power source", every=SELDOM, read=call("nvmlDeviceGetPowerSource")),
    Signal(name="MIG", every=SELDOM, read=call("nvmlDeviceGetMigMode", pick=lambda modes: modes[0])),
    Signal(name="error", read=fault),
)
"""In the order in which they are read: a GPU's own error last, after the calls that would meet it."""
