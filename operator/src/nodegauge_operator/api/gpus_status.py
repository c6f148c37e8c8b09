"""`status.gpus` of a NodeReport."""

from __future__ import annotations

from msgspec import Struct

from nodegauge_judge import GpuBrief, GpuIdentity
from nodegauge_judge.identity import complete


class GpusStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """The GPUs in brief."""

    count: int = 0
    """GPUs that the driver reports."""
    product: str = ""
    """Product name, as the driver reports it."""
    driver: str = ""
    """Driver version."""
    items: list[GpuBrief] = []
    """One entry per GPU, in the driver's order."""
    missing: list[GpuIdentity] = []
    """GPUs that earlier runs read and the last readable run did not."""

    def known(self) -> list[GpuIdentity]:
        """Every GPU that the node has, or had and lost."""
        return [*self.items, *self.missing]

    def named_in(self, subject: str) -> list[GpuIdentity]:
        """The GPUs that a finding's subject names, by index and PCI address or by the start of a UUID."""
        known = [(f"GPU {gpu.index} ({gpu.pci})" in subject, gpu) for gpu in self.known()]
        return [gpu for named, gpu in known if named or (subject and gpu.uuid.startswith(subject))]

    def serial_of(self, subject: str) -> str:
        """The serial number of the one GPU that a finding's subject names; empty for none or several."""
        gpus = self.named_in(subject)
        return gpus[0].serial if len(gpus) == 1 else ""

    def whole(self, gpu: GpuIdentity) -> GpuIdentity:
        """The GPU with all that is known of it, also if it is lost."""
        return complete(gpu, self.known())
