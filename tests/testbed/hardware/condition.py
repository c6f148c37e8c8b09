"""What was done to a machine, and what has been counted since: it stays until counters begin anew."""

import uuid
from collections.abc import Iterable, Mapping

import msgspec

from testbed.hardware import faults
from testbed.hardware.cooling import heated
from testbed.hardware.fault import Parameter
from testbed.hardware.gpustate import gpu_uuid
from testbed.hardware.machine import Machine
from testbed.hardware.statefile import Past, Points
from testbed.profiles import Profile

SECOND_NS = 10**9


class ActiveFault(msgspec.Struct, frozen=True):
    name: str
    parameters: dict[str, Parameter] = {}


class Condition(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    profile: Profile
    seed: str
    boot_id: str
    pasts: list[Past]
    port_steps: list[dict[str, int]]
    faults: list[ActiveFault] = []

    @classmethod
    def fresh(cls, profile: Profile, *, seed: str, now: int) -> "Condition":
        pasts = [
            Past(
                epoch=now,
                counted={name: seconds * SECOND_NS for name, seconds in gpu.counted.items()},
                power=[(0, profile.model.power.idle)],
            )
            for gpu in profile.gpus
        ]
        ports: list[dict[str, int]] = [{} for _ in profile.host.nics]
        return cls(profile=profile, seed=seed, boot_id=str(uuid.uuid4()), pasts=pasts, port_steps=ports)

    @property
    def uuids(self) -> list[str]:
        return [gpu_uuid(self.seed, gpu.address) for gpu in self.profile.gpus]

    def machine(self) -> Machine:
        return self._with(self.faults)

    def _with(self, active: Iterable[ActiveFault]) -> Machine:
        machine = Machine.healthy(self.profile)
        machine.load = [past.load[-1][1] if past.load else 0 for past in self.pasts]
        for one in active:
            faults.find(one.name).on(machine, one.parameters)
        return machine

    def add(self, fault: ActiveFault, *, now: int) -> None:
        alone = self._with([fault])
        self.restart(sorted(alone.restarts), now=now)
        for (gpu, name), count in alone.steps.items():
            self.pasts[gpu].steps.setdefault(name, []).append((now, count))
        for (nic, name), count in alone.port_steps.items():
            self.port_steps[nic][name] = self.port_steps[nic].get(name, 0) + count
        self.faults.append(fault)

    def restart(self, gpus: Iterable[int], *, now: int) -> None:
        for gpu in gpus:
            self.pasts[gpu].epoch, self.pasts[gpu].counted = now, {}

    def chosen(self, gpu: int | None) -> list[int]:
        return list(range(len(self.pasts))) if gpu is None else [Machine.healthy(self.profile).gpu(gpu)]

    def settle(self, machine: Machine, now: int) -> None:
        for gpu, past in enumerate(self.pasts):
            for points in (*past.reasons.values(), past.power, past.warmth):
                points[:] = [point for point in points if point[0] <= now]
            for step in heated(machine, gpu, past.warmth, now=now):
                _follow(past.reasons, step.holds, step.at)
                append(past.power, step.at, step.power_mw)
                append(past.warmth, step.at, step.warmth)
            growing = {name: rate for (number, name), rate in machine.rates.items() if number == gpu}
            _follow(past.rates, growing, now)

    def port_errors(self) -> dict[tuple[int, str], int]:
        return {(nic, name): n for nic, named in enumerate(self.port_steps) for name, n in named.items()}


def append(points: Points, now: int, value: int) -> None:
    if (points[-1][1] if points else 0) != value:
        points.append((now, value))


def _follow(schedules: dict[str, Points], values: Mapping[str, int], now: int) -> None:
    for name in values.keys() | schedules.keys():
        append(schedules.setdefault(name, []), now, values.get(name, 0))
