"""Result documents of machines whose GPUs all work, and that have no fault.

Documents of idle GPUs are smaller, and cheaper to judge.  Pure.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from msgspec.structs import replace

from nodegauge_contract import Gpu, Result, Span, decode, encode_message
from support.results import dgx1

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
COOL = Span(min=50, median=55, max=60)
UNTHROTTLED = dict.fromkeys(("sw_thermal_ns", "hw_thermal_ns", "power_brake_ns", "thermal_violation_ns"), 0)


@lru_cache
def h100() -> Result:
    """8 H100 at work."""
    return _recorded("h100")


@lru_cache
def dgx2() -> Result:
    """16 V100 at work, in the boot of the others."""
    return replace(_recorded("dgx2"), host=h100().host)


@lru_cache
def other_boards() -> Result:
    """The readings of `h100` on the GPUs of a DGX-1 that have never been seen: other labels, and no fault.

    Under an H100's UUIDs it would have lost two thirds of its links, and be tainted for that.
    """
    match, links = h100(), dgx1()
    gpus = [
        replace(
            gpu,
            uuid=f"GPU-{number:08x}-2222-3333-4444-555555555555",
            serial=str(number),
            name=other.name,
            pci=other.pci,
            links=other.links,
            switch_links=other.switch_links,
        )
        for number, (gpu, other) in enumerate(zip(match.gpus, links.gpus, strict=True), 64)
    ]
    bus = replace(match.bus, gpus=[str(gpu.pci) for gpu in gpus])
    return replace(match, gpus=gpus, pairs=links.pairs, bus=bus)


def message(result: Result, *, run: str, node: str, round_: int = 0) -> str:
    """The termination message of a probe that measured `result` in this run, on boards of this node's own, a
    quarter of an hour later in each round."""
    boottime = result.host.boottime_ms
    assert isinstance(boottime, int)
    host = replace(result.host, boottime_ms=boottime + round_ * 900_000)
    gpus = boards(result, node)
    return encode_message(replace(result, run=run, node=node, host=host, gpus=gpus))


def boards(result: Result, node: str) -> list[Gpu]:
    """The GPUs of this machine on this node: boards that no other node has."""
    return [_board(gpu, node) for gpu in result.gpus]


def _board(gpu: Gpu, node: str) -> Gpu:
    """The GPU under a UUID and a serial number that no other node has."""
    drawn = hashlib.sha256(f"{node} {gpu.uuid}".encode()).hexdigest()
    uuid = f"GPU-{drawn[:8]}-{drawn[8:12]}-{drawn[12:16]}-{drawn[16:20]}-{drawn[20:32]}"
    return replace(gpu, uuid=uuid, serial=str(10**12 + int(drawn[32:48], 16) % 10**12))


def _recorded(name: str) -> Result:
    """A golden document, without what makes a finding that leads to a taint."""
    text = (GOLDEN / f"result-1.1-{name}-busy.json").read_text(encoding="utf-8")
    result = decode(text)
    return replace(result, gpus=[_without_fault(gpu) for gpu in result.gpus])


def _without_fault(gpu: Gpu) -> Gpu:
    window, growth = gpu.window, gpu.window and gpu.window.growth
    assert window is not None
    assert growth is not None
    return replace(
        gpu,
        temperature=replace(gpu.temperature, gpu=COOL.max, memory=COOL.max, margin=25),
        xids=replace(gpu.xids, seen=[]),
        ecc=replace(gpu.ecc, volatile_uncorrected=0),
        counters=replace(gpu.counters, **UNTHROTTLED),
        events=replace(gpu.events, seen=[]),
        window=replace(
            window, temperature=COOL, memory_temperature=COOL, growth=replace(growth, **UNTHROTTLED)
        ),
    )
