"""The GPUs of a machine as NVIDIA's DRA driver publishes them: devices of a ResourceSlice of
resource.k8s.io/v1, with the attributes of kubernetes-sigs/dra-driver-nvidia-gpu,
cmd/gpu-kubelet-plugin/deviceinfo.go, and the standard name of the PCI bus id."""

from typing import Any

from testbed.hardware.plugged import Hardware
from testbed.profiles.model import Gpu, Model
from testbed.rest import Object

API, DRIVER = "/apis/resource.k8s.io/v1", "gpu.nvidia.com"
ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
}
ARCHITECTURES |= {9: "Hopper", 10: "Blackwell"}
"""By NVML_DEVICE_ARCH_*, in the words of NVIDIA's driver."""
_WHOLE = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
DEVICE_CLASS: Object = {
    "metadata": {"name": DRIVER},
    "spec": {"selectors": [{"cel": {"expression": _WHOLE}}]},
}
"""As the driver's chart makes it: whole GPUs."""


def template(name: str, **more: Any) -> Object:
    """A ResourceClaimTemplate with one request, `gpus`: for all GPUs of a node unless `more` differs."""
    exactly = {"deviceClassName": DRIVER, "allocationMode": "All"} | more
    requests = [{"name": "gpus", "exactly": exactly}]
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests}}}}


def devices(hardware: Hardware) -> list[Object]:
    """One device for each GPU that the driver of the machine shows, in the order of their minors."""
    condition = hardware.condition()
    profile = condition.profile
    shown = condition.machine().visible
    return [
        _device(
            profile.gpus[number], profile.model, uuid=condition.uuids[number], driver=profile.driver.version
        )
        for number in shown
    ]


def _device(gpu: Gpu, model: Model, *, uuid: str, driver: str) -> Object:
    texts = {
        "type": "gpu",
        "uuid": uuid,
        "productName": model.name,
        "brand": "Nvidia",
        "architecture": ARCHITECTURES.get(model.architecture, "Unknown"),
        "resource.kubernetes.io/pciBusID": gpu.address,
    }
    versions = {"driverVersion": _semantic(driver), "cudaComputeCapability": "{}.{}.0".format(*model.compute)}
    attributes = {name: {"string": text} for name, text in texts.items()}
    attributes |= {name: {"version": text} for name, text in versions.items()}
    memory = {"memory": {"value": f"{model.memory.total_mib}Mi"}} if model.memory else {}
    return {"name": f"gpu-{gpu.minor}", "attributes": attributes, "capacity": memory}


def _semantic(version: str) -> str:
    """A driver's version as a semantic one, which allows no leading zeros: 550.54.15, 535.104.5."""
    numbers = [str(int(word)) for word in version.split(".")]
    return ".".join([*numbers, "0", "0"][:3])
