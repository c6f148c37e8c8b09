"""The environment of a child, made from nothing.

NCCL obeys dozens of variables, and a node's or an image's own would turn a measurement of the hardware into
one of somebody's tuning.  So only what a program needs to start is taken over, never NCCL_*; what the
policy wants comes on top of the defaults, and below what makes an arm the arm that it is.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from nodegauge_contract import ArmName

KEPT = frozenset({"PATH", "LD_LIBRARY_PATH", "PYTHONPATH"})
KEPT_PREFIXES = ("NVIDIA_", "NODEGAUGE_")
"""NVIDIA_*: what the container runtime was told.  NODEGAUGE_*: ours."""

PATH = "/usr/local/bin:/usr/bin:/bin"

QUIET_NETWORK = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET_PLUGIN": "none",
}
"""One node needs no network; otherwise network policies, sidecars and slow fabrics end up in the start."""

DEBUG = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,ENV,TUNING,NVLS,P2P,SHM",
}
LOG_NAME = "nccl.%h.%p.log"

ARMS: Mapping[ArmName, Mapping[str, str]] = {
    ArmName.DEFAULT: {},
    ArmName.P2P_OFF: {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"},
    ArmName.NVLS_OFF: {"NCCL_NVLS_ENABLE": "0"},
}
"""NVLS off with P2P: NCCL_P2P_DISABLE sets the P2P level alone, which the set-up of NVLS does not look at
(NCCL 5067397c, src/transport/nvls.cc)."""


def child_environment(
    own: Mapping[str, str],
    *,
    arm: ArmName,
    uuids: Sequence[str],
    policy: Mapping[str, str],
    scratch: Path,
) -> dict[str, str]:
    """The environment of one arm; `own` is the probe's, `scratch` takes NCCL's log."""
    kept = {name: own[name] for name in own if name in KEPT or name.startswith(KEPT_PREFIXES)}
    return {
        "PATH": PATH,
        **kept,
        "HOME": "/tmp",
        "LC_ALL": "C.UTF-8",
        **QUIET_NETWORK,
        **policy,
        **DEBUG,
        "NCCL_DEBUG_FILE": str(scratch / LOG_NAME),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        **ARMS[arm],
    }
