"""A fake of the few names of cuda-core 1.2 that the engine uses, with GPU memory in host memory.

It is made from that package's documentation, and it shows that the engine calls what is documented there, in
an order that makes sense, and handles what it returns or raises.  It cannot show that a driver agrees: time
is computed, streams run at once, nothing is asynchronous, and no error is sticky.

NODEGAUGE_FAKE_GBPS and _US say how long calls take, _BYTES how much memory a GPU gives at once, _TROUBLE
what goes wrong, separated by commas.
"""

import ctypes
import os
from typing import ClassVar

TROUBLE = set(filter(None, os.environ.get("NODEGAUGE_FAKE_TROUBLE", "").split(",")))
GBPS = float(os.environ.get("NODEGAUGE_FAKE_GBPS", "10"))
LATENCY_MS = float(os.environ.get("NODEGAUGE_FAKE_US", "20")) / 1000
MOST_BYTES = int(os.environ.get("NODEGAUGE_FAKE_BYTES", str(1 << 30)))


class CUDAError(Exception):
    """cuda.core raises it with the driver's name of the error."""


class DynamicLibNotFoundError(RuntimeError):
    """cuda.pathfinder's, of a library that is not there."""


class EventOptions:
    def __init__(self, timing_enabled=False, blocking_sync=False, ipc_enabled=False):
        self.timing_enabled = timing_enabled


class Event:
    def __init__(self, device, options):
        self._device, self._timed, self.at = device, options.timing_enabled, None

    def sync(self):
        assert self.at is not None, "an event that was never recorded"

    def __sub__(self, other):
        assert self._timed, "events are not timed unless asked for"
        assert other._timed
        return self.at - other.at


class Stream:
    """A queue that is always empty; `now` is its own clock, in milliseconds."""

    everyone: ClassVar[list] = []

    def __init__(self, device):
        self.device, self.now = device, 0.0
        self.everyone.append(self)
        self.handle = len(self.everyone)

    def record(self, event):
        assert event._device is self.device, "an event belongs to the device that made it"
        event.at = self.now
        return event

    def sync(self):
        pass


class Buffer:
    """`handle` is a real address, so that views of parts of it work."""

    def __init__(self, address, size, owner):
        self.handle, self.size, self._owner = address, size, owner

    @classmethod
    def from_handle(cls, ptr, size, mr=None, owner=None, *, stream=None):
        assert mr is None or owner is None
        assert owner.handle is not None, "a view of memory that was given back"
        assert owner.handle <= ptr <= ptr + size <= owner.handle + owner.size, "outside of its owner"
        return cls(ptr, size, owner)

    def fill(self, value, *, stream):
        assert Device.current is stream.device, "work for a device that is not the current one"
        ctypes.memset(self.handle, value, self.size)

    def copy_to(self, dst, *, stream, options=None):
        if dst.size != self.size:
            raise ValueError(f"buffer sizes mismatch between src and dst (sizes: {self.size}, {dst.size})")
        if "no-copies" in TROUBLE:
            raise CUDAError("CUDA_ERROR_INVALID_VALUE: one or more parameters is out of range")
        assert Device.current is stream.device, "work for a device that is not the current one"
        ctypes.memmove(dst.handle, self.handle, self.size)
        stream.now += LATENCY_MS + self.size / GBPS / 1e6

    def close(self, stream=None):
        self.handle = None


class _Owned(Buffer):
    def __init__(self, size):
        self._memory = ctypes.create_string_buffer(size + 1)
        super().__init__(ctypes.addressof(self._memory), size, None)


class DeviceMemoryResource:
    def __init__(self, device):
        self._device = device
        self.peer_accessible_by = set()

    def allocate(self, size, *, stream):
        assert stream.device is self._device
        if size > MOST_BYTES:
            raise CUDAError("CUDA_ERROR_OUT_OF_MEMORY: The API call failed: out of memory.")
        return _Owned(size)


class LegacyPinnedMemoryResource:
    def allocate(self, size, *, stream=None):
        assert Device.current is not None, "memory of the host needs a context"
        return _Owned(size)


class Device:
    current = None
    _known: ClassVar[dict] = {}

    def __new__(cls, device_id=None):
        if "no-driver" in TROUBLE:
            raise DynamicLibNotFoundError('"cuda" is an NVIDIA driver library: is the driver installed?')
        visible = [uuid for uuid in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if uuid]
        if not visible:
            raise CUDAError("CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected")
        if device_id >= len(visible):
            raise ValueError(f"device_id must be within [0, {len(visible)}), got {device_id}")
        if device_id not in cls._known:
            self = cls._known[device_id] = super().__new__(cls)
            self.device_id, self.uuid = device_id, visible[device_id].removeprefix("GPU-")
            self._set, self._pool = False, None
        return cls._known[device_id]

    def set_current(self, ctx=None):
        self._set, Device.current = True, self

    def create_stream(self, obj=None, options=None):
        assert self._set, "perhaps you forgot to call .set_current() first?"
        return Stream(self)

    def create_event(self, options=None):
        assert self._set
        return Event(self, options or EventOptions())

    def can_access_peer(self, peer):
        return True

    @property
    def memory_resource(self):
        self._pool = self._pool or DeviceMemoryResource(self)
        return self._pool
