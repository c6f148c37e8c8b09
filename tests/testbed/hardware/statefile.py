"""The state file of the simulated driver (driver/src/state.h); what NVML cannot read has no line."""

import os
import threading
from pathlib import Path

import msgspec

from testbed.driver.releases import abilities
from testbed.hardware.gpustate import Lines, gpu_lines
from testbed.hardware.machine import CLOCK_SHARE, Machine, Peers

Points = list[tuple[int, int]]
"""A number over time: (CLOCK_BOOTTIME in ns, value from then on); of steps: what was added at that moment."""


class Past(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One GPU's past: when its counters began, what they stood at then (ns), and what changed over time.
    `load` in per cent, `power` in milliwatts, `warmth` in per mille of the way from idle to full load;
    `reasons` in per mille of the time for which a clocks event reason holds, `rates` in thousandths per
    second, `steps` as what was added at once."""

    epoch: int
    counted: dict[str, int] = {}
    load: Points = []
    power: Points = []
    warmth: Points = []
    reasons: dict[str, Points] = {}
    rates: dict[str, Points] = {}
    steps: dict[str, Points] = {}

    def lines(self) -> Lines:
        grown = {name for name in (*self.rates, *self.steps) if name.startswith("xid.")}
        xids = sorted(int(name.removeprefix("xid.")) for name in grown)
        lines: Lines = {"epoch": self.epoch}
        lines |= {name: _schedule(getattr(self, name)) for name in ("load", "power", "warmth")}
        lines |= {f"counted.{name}": nanoseconds for name, nanoseconds in self.counted.items()}
        lines |= {"xids": " ".join(map(str, xids))} if xids else {}
        for kind in ("reason", "rate", "step"):
            schedules: dict[str, Points] = getattr(self, f"{kind}s")
            lines |= {f"{kind}.{name}": _schedule(points) for name, points in schedules.items()}
        return lines


def render(machine: Machine, peers: Peers, *, seed: str, pasts: list[Past]) -> str:
    lines: Lines = _driver(machine) | {f"pair.{n}.{n}.ancestor": 0 for n in range(len(pasts))}
    for (one, other), peer in peers.items():
        lines[f"pair.{one}.{other}.ancestor"] = int(peer.ancestor)
        lines |= {f"pair.{one}.{other}.{name}": status for name, status in peer.p2p.items()}
    for number, past in enumerate(pasts):
        own = gpu_lines(machine, number, seed=seed) | past.lines()
        own |= {key: value for (gpu, key), value in machine.values.items() if gpu == number}
        lines |= {f"gpu.{number}.{key}": value for key, value in own.items() if value is not None}
    for (gpu, call), order in machine.calls.items():
        where = f"call.{call}" if gpu is None else f"gpu.{gpu}.call.{call}"
        lines[where] = order if isinstance(order, str) else f"!{order}"
    body = "".join(f"{key} {_text(value)}\n" for key, value in sorted(lines.items()))
    return f"nodegauge-hardware 1\n{body}end\n"


def write(path: Path, content: bytes) -> None:
    skipped = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    skipped.write_bytes(content)
    skipped.replace(path)


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _schedule(schedule: Points) -> str:
    return " ".join(f"{since}:{value}" for since, value in schedule) or "0"


def _driver(machine: Machine) -> Lines:
    driver = machine.profile.driver
    can = abilities(driver.version)
    lines: Lines = {
        "driver.version": driver.version,
        "driver.nvml": driver.nvml,
        "driver.cuda": driver.cuda,
        "driver.fields_known": can.fields_known,
        "driver.counters_first": can.counters.first,
        "driver.constants_first": can.counters.constants[0],
        "driver.constants_last": can.counters.constants[1],
        "driver.fabric_struct": can.fabric_struct,
        "driver.max_links": can.max_links,
        "clock.step": machine.clock_step,
        **{f"driver.share.{name}": 10 * percent for name, percent in CLOCK_SHARE.items()},
        "visible": " ".join(map(str, machine.visible)),
    }
    if (confidential := machine.profile.model.confidential) is not None:  # both are on together here
        lines |= {f"confidential.{name}": confidential for name in ("environment", "feature")}
    return lines if machine.init_error is None else lines | {"init": f"!{machine.init_error}"}
