"""The part of a profile that says what NCCL would measure on the machine: for the simulated engine.

Nothing here says what a machine must reach: that is the judge's own data, with sources of its own.
"""

from __future__ import annotations

from testbed.profiles.hostmodel import Base
from testbed.simulated_nccl.machine import Way

WAYS = ("nvls", "p2p", "host")
"""NVLS takes all_reduce on NVSwitches; P2P is NVLink or PCIe between GPUs; host goes through host memory."""


class NcclResult(Base, frozen=True, kw_only=True):
    """`link_gbps`: one way over one NVLink by copies, `pcie_gbps`: over PCIe; `nvls_from`: ranks from which
    NCCL chooses NVLS.  Without `p2p` among its ways a machine is one where NCCL uses none: A equals B."""

    ways: dict[str, Way]
    pcie_gbps: float
    link_gbps: float = 0.0
    nvls_from: int = 0
    init_seconds: float = 2.5
    load_seconds: float = 0.3
