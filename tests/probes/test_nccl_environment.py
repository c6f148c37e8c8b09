"""What a child of the benchmark finds in its env, and what it never does."""

from __future__ import annotations

from pathlib import Path

from nodegauge_contract import ArmName
from nodegauge_probes.nccl.plan import child_environment

SCRATCH = Path("/tmp/nodegauge-x")
OWN = {
    "PATH": "/opt/nodegauge/bin",
    "PYTHONPATH": "/opt/nodegauge/lib",
    "LD_LIBRARY_PATH": "/usr/lib/nvidia",
    "HOME": "/root",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NODEGAUGE_RUN": "run-1",
    "NCCL_ALGO": "Tree",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_CONF_FILE": "/etc/nccl.conf",
    "CUDA_VISIBLE_DEVICES": "0",
    "LD_PRELOAD": "/x.so",
    "TORCH_NCCL_BLOCKING_WAIT": "1",
}


def of(arm: ArmName, policy: dict[str, str] | None = None) -> dict[str, str]:
    return child_environment(OWN, arm=arm, uuids=["GPU-b", "GPU-a"], policy=policy or {}, scratch=SCRATCH)


def test_nobody_s_tuning_is_inherited() -> None:
    """Of the probe's own env what a program needs to start; nothing of NCCL's or a loader's."""
    env = of(ArmName.DEFAULT)
    assert {name: env[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "NODEGAUGE_RUN")} == {
        name: OWN[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "NODEGAUGE_RUN")
    }
    gone = ("NCCL_ALGO", "NCCL_P2P_LEVEL", "NCCL_CONF_FILE", "LD_PRELOAD", "TORCH_NCCL_BLOCKING_WAIT")
    assert not env.keys() & set(gone)
    assert env["HOME"] == "/tmp"


def test_gpus_by_uuid_in_rank_order() -> None:
    """Never by a number, which CUDA and NVML give differently."""
    env = of(ArmName.DEFAULT)
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("GPU-b,GPU-a", "PCI_BUS_ID")


def test_no_network_is_looked_for() -> None:
    """Loopback, no InfiniBand, no plugin; and NCCL says what it does in a file of the arm's own."""
    env = of(ArmName.DEFAULT)
    assert (env["NCCL_SOCKET_IFNAME"], env["NCCL_IB_DISABLE"], env["NCCL_NET_PLUGIN"]) == ("lo", "1", "none")
    assert env["NCCL_DEBUG_FILE"] == "/tmp/nodegauge-x/nccl.%h.%p.log"
    assert {"INIT", "TUNING", "NVLS", "P2P", "SHM"} <= set(env["NCCL_DEBUG_SUBSYS"].split(","))


def test_arms_differ_in_their_variables_alone() -> None:
    """The host-memory path switches NVLS off, too: NCCL does not."""
    default = of(ArmName.DEFAULT)
    assert of(ArmName.P2P_OFF) == {**default, "NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
    assert of(ArmName.NVLS_OFF) == {**default, "NCCL_NVLS_ENABLE": "0"}


def test_the_policy_comes_on_top_and_below_the_arm() -> None:
    """It may tune, also our own defaults; it may not turn one arm into another or hide the log."""
    policy = {"NCCL_ALGO": "Ring", "NCCL_IB_DISABLE": "0", "NCCL_P2P_DISABLE": "0", "NCCL_DEBUG": "WARN"}
    env = of(ArmName.P2P_OFF, policy)
    assert (env["NCCL_ALGO"], env["NCCL_IB_DISABLE"]) == ("Ring", "0")
    assert (env["NCCL_P2P_DISABLE"], env["NCCL_DEBUG"]) == ("1", "INFO")
