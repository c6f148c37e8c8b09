"""Everything that can go wrong in the simulated kubelet; an error status of the API server is an ApiError."""

from testbed.errors import TestbedError


class ApiUnreachable(TestbedError):
    """No usable answer from the API server: refused, reset, timed out; try again."""


class ContainerWaits(TestbedError):
    """The container stays waiting; `reason` is what `kubectl` shows, and the start is tried again."""

    def __init__(self, message: str, *, reason: str = "CreateContainerError") -> None:
        super().__init__(message)
        self.reason = reason


class ConfigMissing(ContainerWaits):
    """The environment refers to something that does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="CreateContainerConfigError")


class NotSimulated(ContainerWaits):
    """A field that would change what the program sees, and that this kubelet does not implement."""


class StartFailed(TestbedError):
    """The container's command could not be executed (StartError, exit code 128)."""


class EndedBeforeStart(TestbedError):
    """The container was ended while it waited for its image or its configuration."""
