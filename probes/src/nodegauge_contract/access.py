"""How the driver comes into a probe's container: who makes the pod says so, and advice follows it."""

from __future__ import annotations

from enum import StrEnum

ACCESS_VARIABLE = "NODEGAUGE_DRIVER_ACCESS"
"""Environment variable of the container; unset for `RUNTIME`, and on a host."""


class Access(StrEnum):
    """What brings the driver in."""

    RUNTIME = "Runtime"
    """NVIDIA's container runtime."""
    CLAIM = "DRA"
    """A claim of dynamic resource allocation, by CDI."""
    HOST = "HostDriver"
    """A folder of the node, mounted."""
