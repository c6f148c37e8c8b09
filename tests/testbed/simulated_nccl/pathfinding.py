"""What NCCL would choose: NCCL_P2P_DISABLE=1 alone leaves NVLS on, NCCL_ALGO=Ring turns it off."""

from collections.abc import Mapping
from dataclasses import dataclass

from nodegauge_contract.nccl import ArmName, Collective
from testbed.simulated_nccl.machine import Machine, Way

NVLS, P2P, HOST = "nvls", "p2p", "host"


@dataclass(frozen=True, kw_only=True)
class Chosen:
    joined: str
    nvls: bool
    machine: Machine

    @property
    def way(self) -> Way:
        return self.machine.ways[self.joined]

    def of(self, collective: str) -> Way:
        return self.machine.ways[NVLS] if self.nvls and collective == Collective.ALL_REDUCE else self.way

    def algorithm(self, collective: str, size: int) -> tuple[str, str]:
        if self.of(collective) is not self.way:
            return "NVLS", "SIMPLE"
        protocol = "LL" if size <= 16 * 1024 else "LL128" if size <= 1 << 20 else "SIMPLE"
        return "RING", protocol


def arm(environment: Mapping[str, str]) -> str:
    """The configuration that the environment makes, under the name that the benchmark has for it."""
    if flag(environment, "NCCL_P2P_DISABLE"):
        return ArmName.P2P_OFF
    return ArmName.NVLS_OFF if environment.get("NCCL_NVLS_ENABLE") == "0" else ArmName.DEFAULT


def choose(machine: Machine, environment: Mapping[str, str], *, ranks: int, links_dead: bool) -> Chosen:
    ring_only = environment.get("NCCL_ALGO", "").lower() in ("ring", "tree")
    nvls = (
        NVLS in machine.ways
        and ranks >= machine.nvls_from
        and environment.get("NCCL_NVLS_ENABLE") != "0"
        and not ring_only
        and not links_dead
    )
    joined = HOST if flag(environment, "NCCL_P2P_DISABLE") or links_dead or P2P not in machine.ways else P2P
    return Chosen(joined=joined, nvls=nvls, machine=machine)


def flag(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "0").strip() not in ("", "0")
