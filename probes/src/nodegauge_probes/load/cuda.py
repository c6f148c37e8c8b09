"""The only adapter to libcuda, the driver's library: ctypes, no toolkit.

Every call that fails raises `CudaError` with CUDA's own name for it.  A `Gpu` is one device with its primary
context, which belongs to the thread that made it: CUDA's current context is per thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from itertools import pairwise
from typing import Any

LIBRARY = "libcuda.so.1"
MULTIPROCESSORS, MAJOR, MINOR = 16, 75, 76
"""CU_DEVICE_ATTRIBUTE_*."""
BLOCKING_SYNC = 0x04
"""CU_CTX_SCHED_BLOCKING_SYNC: a waiting thread sleeps instead of spinning."""
BLOCKING_EVENT = 0x01
NO_DEVICE, OUT_OF_MEMORY = 100, 2

_PROTOTYPES: dict[str, Sequence[Any]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (c_void_p,),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetUuid": (c_void_p, c_int),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDevicePrimaryCtxSetFlags": (c_int, c_uint),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuModuleLoadDataEx": (c_void_p, c_char_p, c_uint, c_void_p, c_void_p),
    "cuModuleGetFunction": (c_void_p, c_void_p, c_char_p),
    "cuMemGetInfo_v2": (c_void_p, c_void_p),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemHostAlloc": (c_void_p, c_size_t, c_uint),
    "cuMemcpyHtoD_v2": (c_ulonglong, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_ulonglong, c_size_t),
    "cuMemcpyHtoDAsync_v2": (c_ulonglong, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_ulonglong, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_ulonglong, c_ulonglong, c_size_t, c_void_p),
    "cuMemsetD8_v2": (c_ulonglong, ctypes.c_ubyte, c_size_t),
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuEventCreate": (c_void_p, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (c_void_p, c_void_p, c_void_p),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p),
    "cuGetErrorName": (c_int, c_void_p),
    "cuGetErrorString": (c_int, c_void_p),
}


class CudaError(Exception):
    """CUDA refused a call: its return code, and a message with its name."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text}")
        self.code = code


class NoCuda(Exception):
    """There is no libcuda in this container; the message is the loader's."""


class Driver:
    """libcuda, initialised.  Raises `NoCuda` and `CudaError`."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise NoCuda(str(error)) from None
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call the driver; the interpreter's lock is free meanwhile."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise CudaError(name, -1, "this driver does not have it") from None
        function.argtypes, function.restype = _PROTOTYPES[name], c_int
        code = function(*arguments)
        if code:
            raise CudaError(name, code, self._text(code))

    def _text(self, code: int) -> str:
        texts = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            function = getattr(self._library, name)
            function.argtypes, function.restype = _PROTOTYPES[name], c_int
            if function(code, byref(text)) == 0 and text.value:
                texts.append(text.value.decode("utf-8", "replace"))
        return ", ".join(texts) or f"error {code}"

    def count(self) -> int:
        number = c_int()
        self.call("cuDeviceGetCount", byref(number))
        return number.value

    def uuid(self, ordinal: int) -> str:
        """As NVML writes it."""
        device, raw = c_int(), ctypes.create_string_buffer(16)
        self.call("cuDeviceGet", byref(device), ordinal)
        self.call("cuDeviceGetUuid", raw, device.value)
        digits = raw.raw.hex()
        ends = (0, 8, 12, 16, 20, 32)
        return "GPU-" + "-".join(digits[a:b] for a, b in pairwise(ends))


class Stream:
    """A queue of work with an event at both ends of what is timed."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.handle = c_void_p()
        driver.call("cuStreamCreate", byref(self.handle), 1)  # does not wait for the default stream
        self._events = c_void_p(), c_void_p()
        for event in self._events:
            driver.call("cuEventCreate", byref(event), BLOCKING_EVENT)

    def begin(self) -> None:
        self._driver.call("cuEventRecord", self._events[0], self.handle)

    def end(self) -> float:
        """Wait for everything queued since `begin`; seconds on the GPU's clock."""
        self.record()
        return self.wait()

    def record(self) -> None:
        self._driver.call("cuEventRecord", self._events[1], self.handle)

    def wait(self) -> float:
        milliseconds = c_float()
        self._driver.call("cuEventSynchronize", self._events[1])
        self._driver.call("cuEventElapsedTime", byref(milliseconds), *self._events)
        return milliseconds.value / 1000


class Gpu:
    """One device; made and used by one thread."""

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self._driver = driver
        device, context = c_int(), c_void_p()
        driver.call("cuDeviceGet", byref(device), ordinal)
        self._device = device.value
        driver.call("cuDevicePrimaryCtxSetFlags", self._device, BLOCKING_SYNC)
        driver.call("cuDevicePrimaryCtxRetain", byref(context), self._device)
        driver.call("cuCtxSetCurrent", context)

    def attribute(self, number: int) -> int:
        value = c_int()
        self._driver.call("cuDeviceGetAttribute", byref(value), number, self._device)
        return value.value

    @property
    def capability(self) -> tuple[int, int]:
        return self.attribute(MAJOR), self.attribute(MINOR)

    def stream(self) -> Stream:
        return Stream(self._driver)

    def load(self, source: str, *names: str) -> list[c_void_p]:
        """Compile PTX; the kernels of these names."""
        module, functions = c_void_p(), []
        self._driver.call("cuModuleLoadDataEx", byref(module), source.encode(), 0, None, None)
        for name in names:
            functions.append(c_void_p())
            self._driver.call("cuModuleGetFunction", byref(functions[-1]), module, name.encode())
        return functions

    def free_bytes(self) -> int:
        free, total = c_size_t(), c_size_t()
        self._driver.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        """Memory of the GPU, zeroed."""
        address = c_ulonglong()
        self._driver.call("cuMemAlloc_v2", byref(address), size)
        self._driver.call("cuMemsetD8_v2", address, 0, size)
        self._driver.call("cuStreamSynchronize", None)
        return address.value

    def pinned(self, size: int) -> int:
        """Memory of the host that the GPU copies from and to directly."""
        address = c_void_p()
        self._driver.call("cuMemHostAlloc", byref(address), size, 0)
        assert address.value is not None
        return address.value

    def write(self, address: int, data: bytes) -> None:
        self._driver.call("cuMemcpyHtoD_v2", address, data, len(data))

    def read(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self._driver.call("cuMemcpyDtoH_v2", buffer, address, size)
        return buffer.raw

    def to_gpu(self, stream: Stream, *, to: int, source: int, size: int) -> None:
        self._driver.call("cuMemcpyHtoDAsync_v2", to, source, size, stream.handle)

    def to_host(self, stream: Stream, *, to: int, source: int, size: int) -> None:
        self._driver.call("cuMemcpyDtoHAsync_v2", to, source, size, stream.handle)

    def within(self, stream: Stream, *, to: int, source: int, size: int) -> None:
        self._driver.call("cuMemcpyDtoDAsync_v2", to, source, size, stream.handle)

    def launch(self, stream: Stream, function: c_void_p, *arguments: Any, blocks: int, threads: int) -> None:
        """Queue a kernel; `arguments` are ctypes numbers of its parameters' sizes."""
        pointers = (c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        shape = (blocks, 1, 1, threads, 1, 1, 0)
        self._driver.call("cuLaunchKernel", function, *shape, stream.handle, pointers, None)
