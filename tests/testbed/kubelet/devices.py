"""The device plugin of a node's GPUs, as NVIDIA's with the strategy `envvar`: NVIDIA_VISIBLE_DEVICES has the
chosen UUIDs; an unhealthy GPU stays in the capacity, leaves the allocatable, and is given to nobody."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.kubeconfig import write_private
from testbed.kubelet.errors import StartFailed
from testbed.rest import Object

if TYPE_CHECKING:
    from testbed.kubelet.claims import Given
    from testbed.kubelet.context import Hardware

GPU_RESOURCE = "nvidia.com/gpu"
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
STATE_VARIABLE = "NODEGAUGE_SIM_HARDWARE"
GIVEN_VARIABLE = "NODEGAUGE_SIM_GPUS"
"""What the simulated driver shows a process, where that is not everything."""
DEVICES_SUFFIX, PROCESSES_SUFFIX = ".devices", ".processes"


def requested(container: Object) -> int:
    return int(container.get("resources", {}).get("limits", {}).get(GPU_RESOURCE, 0))


@dataclass
class Devices:
    """Without hardware that tells of devices there are none; `_given` is by (pod UID, container)."""

    hardware: Hardware | None
    _given: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    _pids: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._write()  # nothing that an earlier kubelet wrote runs any more

    def capacity(self) -> int | None:
        if self.hardware is None or self.hardware.devices:
            return None
        return self.hardware.gpu_capacity or None

    def allocatable(self) -> int | None:
        if (capacity := self.capacity()) is None or not (gpus := self._gpus()):
            return capacity
        return capacity * sum(gpus.values()) // len(gpus)

    def stamp(self) -> object:
        return self._gpus()

    def allocate(self, pod_uid: str, container: Object) -> dict[str, str]:
        """The environment that the plugin answers with, the same at every start."""
        if not (count := requested(container)) or not (gpus := self._gpus()):
            return {}
        key = (pod_uid, container["name"])
        if key not in self._given:
            taken = [slot for slots in self._given.values() for slot in slots]
            free = self._free(gpus, taken)
            if len(free) < count:
                raise StartFailed(
                    f"Allocate failed due to requested number of devices unavailable for {GPU_RESOURCE}. "
                    f"Requested: {count}, Available: {len(free)}, which is unexpected"
                )
            self._given[key] = free[:count]
        return {VISIBLE_DEVICES: ",".join(dict.fromkeys(self._given[key]))}

    def _free(self, gpus: Mapping[str, bool], taken: list[str]) -> list[str]:
        """What can be given: every healthy GPU as often as it is shared, the least used ones first."""
        shares = (self.capacity() or 0) // len(gpus)
        rounds = [[uuid for uuid, healthy in gpus.items() if healthy] for _ in range(shares)]
        for uuid in taken:
            for names in rounds:
                if uuid in names:
                    names.remove(uuid)
                    break
        return [uuid for names in rounds for uuid in names]

    def claimed(self, pod_uid: str, container: Object, claims: Given) -> dict[str, str]:
        """What CDI adds for claims; who shares devices by admin access computes on none of them."""
        gpus, known = self._gpus(), self.hardware.devices if self.hardware is not None else []
        uuids = {one["name"]: one["attributes"]["uuid"]["string"] for one in known}
        chosen = [uuid for name, uuid in uuids.items() if name in claims.devices]
        if claims.exclusive:
            self._given[pod_uid, container["name"]] = chosen
        everything = set(chosen) >= gpus.keys()
        return {VISIBLE_DEVICES: "void"} | ({} if everything else {GIVEN_VARIABLE: ",".join(chosen)})

    def given(self, env: Mapping[str, str]) -> dict[str, str]:
        chosen = env.get(VISIBLE_DEVICES, "all")
        if chosen == "all" or not (gpus := self._gpus()):
            return {}
        by_index = {str(number): uuid for number, uuid in enumerate(gpus)}
        return {GIVEN_VARIABLE: ",".join(by_index.get(word, word) for word in chosen.split(","))}

    def computes(self, pod_uid: str, container: Object, *, pid: int) -> None:
        if (pod_uid, container["name"]) in self._given:
            self._pids[pod_uid, container["name"]] = pid
            self._write()

    def release(self, pod_uid: str) -> None:
        for in_use in (self._given, self._pids):
            for key in [key for key in in_use if key[0] == pod_uid]:
                in_use.pop(key)
        self._write()

    def _gpus(self) -> dict[str, bool]:
        if (path := self._file(DEVICES_SUFFIX)) is None:
            return {}
        try:
            reported: dict[str, bool] = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        return reported

    def _write(self) -> None:
        if (path := self._file(PROCESSES_SUFFIX)) is None or not path.parent.is_dir():
            return
        in_use = [(pid, dict.fromkeys(self._given[key])) for key, pid in self._pids.items()]
        lines = [f"{uuid} {pid}\n" for pid, uuids in in_use for uuid in uuids]
        write_private(path, "".join(lines))

    def _file(self, suffix: str) -> Path | None:
        state = self.hardware.environment.get(STATE_VARIABLE) if self.hardware is not None else None
        return Path(state + suffix) if state else None
