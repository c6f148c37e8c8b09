"""Everything that can go wrong in the simulated kubelet, as a tree below TestbedError.

    KubeletError
    ├── ApiUnreachable        no answer: refused, reset, timed out; try again
    ├── ContainerWaits        the container cannot start; carries the waiting reason that `kubectl` shows
    │   ├── ImageMissing      ErrImagePull, ImagePullBackOff, ErrImageNeverPull
    │   ├── ConfigMissing     CreateContainerConfigError (a ConfigMap that is not there)
    │   └── NotSimulated      CreateContainerError: the pod asks for what this kubelet does not do
    ├── EndedBeforeStart      the container was told to end while it waited
    └── StartFailed           the command could not be executed (StartError, exit code 128)

Errors of aiohttp and of the operating system stop at `api.py` and `process.py`; an error status of the API
server is the testbed's ApiError.
"""

from __future__ import annotations

from testbed.errors import ApiError, TestbedError

__all__ = ["ApiError"]


class KubeletError(TestbedError):
    """Base of all errors raised here."""


class ApiUnreachable(KubeletError):
    """No usable answer from the API server."""


class ContainerWaits(KubeletError):
    """The container stays waiting; `reason` is shown in its status, and the start is tried again."""

    reason = "CreateContainerError"


class ImageMissing(ContainerWaits):
    """The image is not in the kubelet's table."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class ConfigMissing(ContainerWaits):
    """The environment refers to something that does not exist."""

    reason = "CreateContainerConfigError"


class NotSimulated(ContainerWaits):
    """A field that would change what the program sees, and that this kubelet does not implement."""


class StartFailed(KubeletError):
    """The container's command could not be executed."""


class EndedBeforeStart(KubeletError):
    """The container was ended while it waited for its image or its configuration."""
