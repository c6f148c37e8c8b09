"""Steps of a way out that several rules share."""

from __future__ import annotations

REPORT = "`kubectl get nodereport NODE -o yaml` shows what was read."
DRIVER_LOG = "On the node: `dmesg | grep -iE 'NVRM|Xid'` shows what the driver logged."
DRAIN = "`kubectl cordon NODE`, then `kubectl drain NODE --ignore-daemonsets --delete-emptydir-data`."
RESET = "With no process on the GPU: `nvidia-smi --gpu-reset -i INDEX` (all GPUs of an NVSwitch machine)."
REBOOT = "If that does not help, reboot. If the fault returns, replace the board through your vendor."
VENDOR = "If the fault returns, send `nvidia-bug-report.sh` output to your vendor and replace the board."
POD_LOG = (
    "`kubectl logs -n NAMESPACE PROBE-POD` while the pod exists; `kubectl describe node NODE` for its events."
)
OWN_RUN = "On the node, its GPUs idle: `NCCL_DEBUG=INFO all_reduce_perf -b 64M -e 1G -f 4 -g COUNT`."
AIR_FLOW = (
    "`nvidia-smi -q -d TEMPERATURE` on the node. One hot GPU: its heat sink, fan or slot. All of them: air "
    "flow, inlet temperature or a failed fan tray (`ipmitool sdr type fan`)."
)
