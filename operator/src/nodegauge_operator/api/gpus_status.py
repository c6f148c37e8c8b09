"""`status.gpus` of a NodeReport."""

from __future__ import annotations

from msgspec import Struct

from nodegauge_judge import GpuBrief, GpuIdentity


class GpusStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """The GPUs in brief; `missing`: those that earlier runs read and the last one did not."""

    count: int = 0
    product: str = ""
    driver: str = ""
    items: list[GpuBrief] = []
    missing: list[GpuIdentity] = []

    def known(self) -> list[GpuIdentity]:
        """Every GPU that the node has, or had and lost."""
        return [*self.items, *self.missing]

    def serial_of(self, subject: str) -> str:
        """The serial number of the one GPU that a finding's subject names; empty for none or several."""
        known = [(f"GPU {gpu.index} ({gpu.pci})" in subject, gpu) for gpu in self.known()]
        gpus = [gpu for named, gpu in known if named or gpu.uuid.startswith(subject)]
        return gpus[0].serial if subject and len(gpus) == 1 else ""
