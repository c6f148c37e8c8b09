"""The only adapter to NVIDIA's management library: every call returns a value or the reason why it is
missing.

No other module imports pynvml, and its traps end here: errors compare only with numbers (`NVMLError.__eq__`
raises otherwise), an old driver lacks a call and has an older one, some wrappers share their default argument
between calls, structures have several versions.

It must not judge, cache readings or write anything.  It reports every call to the watch before it enters the
driver: a call that hangs there cannot be interrupted, only named.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from msgspec import Struct

from nodegauge_contract import Fabric, Problem, ProblemKind, Unavailable
from nodegauge_probes.nvml import results
from nodegauge_probes.nvml.results import NvmlUnusable, Refused

try:
    import pynvml
except ImportError:  # without the extra [probes]: `open` reports it
    pynvml = None

READ, WRITE, NVLINK = 0, 1, 2
"""P2P capability indices.  Literal on purpose: pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake."""

MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS of the newest architecture (Rubin); older GPUs answer INVALID_ARGUMENT earlier."""

NO_SUCH_LINK = Unavailable(results.name_of(results.INVALID_ARGUMENT))
NO_SUCH_CALL = Unavailable(results.name_of(results.FUNCTION_NOT_FOUND))

EVENT_WAIT = "nvmlEventSetWait_v2"
TRIES, PAUSE_S = 4, 0.05

Field = int | tuple[int, int]
"""A field id, or (field id, scope id)."""


class Watch(Protocol):
    """Is notified of every call into the driver, so that a call that never returns can be named."""

    def enter(self, call: str, subject: str) -> None: ...
    def leave(self) -> None: ...


class Skip(Struct, frozen=True, kw_only=True):
    """What must not be asked, because a call hangs there: GPUs by index, or with `problem` the driver at
    all."""

    gpus: dict[int, Problem] = {}
    problem: Problem | None = None


NOTHING = Skip()


class Device:
    """One GPU as NVML enumerates it.

    `fault` is set after an answer that reports a fault of the GPU itself, `lost` once it answers no calls.
    """

    def __init__(self, index: int, handle: Any) -> None:
        self.index = index
        self.handle = handle
        self.fault: Problem | None = None
        self.lost: Unavailable | None = None


class Nvml:
    """An NVML session.  Methods return a value or `Unavailable`; only `open` and `devices` raise."""

    def __init__(
        self, *, watch: Watch, pause: Callable[[float], None], skip: Skip = NOTHING, access: str = ""
    ) -> None:
        self._watch = watch
        self._access = access
        self._pause = pause
        self._skip = skip
        self._open = False
        self._no_retry = {(EVENT_WAIT, "")}
        """Calls without retries: those that never worked, and the one where TIMEOUT is an answer."""
        self._events: Any = None
        self._registered: dict[int, Device] = {}

    def open(self) -> None:
        """Raises `NvmlUnusable` without a library, a driver, or access to it."""
        if pynvml is None:
            message = "the Python package nvidia-ml-py is not installed: pip install 'nodegauge[probes]'"
            kind = ProblemKind.LIBRARY_NOT_FOUND
            raise NvmlUnusable(Problem(kind=kind, call="import pynvml", message=message))
        if self._skip.problem is not None:
            raise NvmlUnusable(self._skip.problem)
        self._require("nvmlInit")
        self._open = True

    def close(self) -> None:
        """Close the session: an open client blocks driver unload and GPU reset."""
        if self._open:
            self._open = False
            self.free_events()
            self.value(None, "nvmlShutdown")

    def devices(self) -> list[Device]:
        """Every GPU that NVML counts, including those whose handle is refused; raises `NvmlUnusable`."""
        devices = [Device(index, None) for index in range(self.count())]
        for device in devices:
            self.renew(device)
        return devices

    def count(self) -> int:
        """How many GPUs NVML counts; raises `NvmlUnusable`."""
        return int(self._require("nvmlDeviceGetCount"))

    def renew(self, device: Device) -> None:
        """Get the handle again, and forget what was wrong with it."""
        device.handle = device.fault = device.lost = None
        if (hung := self._skip.gpus.get(device.index)) is not None:
            device.fault, device.lost = hung, Unavailable(f"not asked: {hung.call} hangs")
            return
        try:
            subject = f"GPU {device.index}"
            device.handle = self._invoke("nvmlDeviceGetHandleByIndex", (device.index,), subject=subject)
        except Refused as refused:
            device.fault = results.without_handle(refused)
            device.lost = Unavailable(refused.reason)

    def value(
        self,
        device: Device | None,
        call: str,
        *arguments: Any,
        fallbacks: Iterable[tuple[Any, ...]] = (),
        pick: Callable[[Any], Any] = lambda answer: answer,
        through: Callable[..., Any] | None = None,
    ) -> Any:
        """The answer of `call` for `device`, passed through `pick`; or `Unavailable` with NVML's error name.

        `fallbacks`: (call, argument, ...) to try, in this order, if the driver does not have `call`;
        `through` replaces a broken wrapper of the binding.
        """
        if device is not None and device.lost is not None:
            return device.lost
        handle = () if device is None else (device.handle,)
        subject = "" if device is None else f"GPU {device.index}"
        refusals: list[Refused] = []
        for name, *rest in ((call, *arguments), *fallbacks):
            try:
                return pick(self._invoke(name, (*handle, *rest), subject=subject, through=through))
            except UnicodeDecodeError:
                return Unavailable(f"{name} returned bytes that are not text")
            except Refused as refused:
                refusals.append(refused)
                if refused.code not in results.TOO_OLD:
                    break
        refusal = next((each for each in refusals if each.code not in results.TOO_OLD), refusals[0])
        if device is not None:
            device.fault = device.fault or results.gpu_fault(refusal)
            device.lost = Unavailable(refusal.reason) if refusal.code in results.FATAL else None
        return Unavailable(refusal.reason)

    def integer(self, device: Device | None, call: str, *arguments: Any, **options: Any) -> int | Unavailable:
        """As `value`, for whole numbers."""
        answer = self.value(device, call, *arguments, **options)
        return answer if isinstance(answer, Unavailable) else results.whole(int(answer))

    def text(self, device: Device | None, call: str, **options: Any) -> str | Unavailable:
        """As `value`, for text, truncated to the contract's limit."""
        answer = self.value(device, call, **options)
        return answer if isinstance(answer, Unavailable) else str(answer)[:128]

    def pair(self, device: Device, other: Device, call: str, *arguments: Any) -> int | Unavailable:
        """A call about two GPUs; a refusal is no fault of either of them."""
        lost = device.lost or other.lost
        if lost is not None:
            return lost
        subject = f"GPU {device.index} and GPU {other.index}"
        try:
            return results.whole(
                self._invoke(call, (device.handle, other.handle, *arguments), subject=subject)
            )
        except Refused as refused:
            return Unavailable(refused.reason)

    def fields(
        self, device: Device, *fields: Field, only: int | None = None
    ) -> list[int | float | Unavailable]:
        """Field values in the requested order; `only`: the one accepted value type."""
        answer = self.value(device, "nvmlDeviceGetFieldValues", list(fields))
        if not isinstance(answer, Unavailable):
            return [results.field(element, only=only) for element in answer]
        if len(fields) == 1 or answer == NO_SUCH_CALL or device.lost is not None:
            return [answer] * len(fields)
        # A driver may refuse the whole list for one unknown id.
        return [self.fields(device, field, only=only)[0] for field in fields]

    def whole_field(self, device: Device, *fields: Field) -> int | Unavailable:
        """The first of `fields` that reads as a whole number above zero, else the first answer."""
        answers = [value for value in self.fields(device, *fields) if not isinstance(value, float)]
        for value in answers:
            if isinstance(value, int) and value > 0:
                return value
        return answers[0] if answers else Unavailable("not a whole number")

    def pci(self, device: Device) -> str | Unavailable:
        """The GPU's bus id in sysfs form."""
        answer = self.text(device, "nvmlDeviceGetPciInfo", pick=results.bus_id_of)
        return answer or Unavailable("no bus id in the answer")

    def remote_pci(self, device: Device, link: int) -> str | Unavailable:
        """The bus id at the remote end of a link; empty if a hypervisor hides it."""
        call = "nvmlDeviceGetNvLinkRemotePciInfo"
        answer = self.value(device, call, link, pick=results.bus_id_of)
        return answer if isinstance(answer, Unavailable) else str(answer)

    def module_id(self, device: Device) -> int | Unavailable:
        """The SXM slot.  All callers would share the wrapper's default argument, so it gets a number to fill.

        With such a reference the wrapper returns the return code instead of raising.
        """
        call, number = "nvmlDeviceGetModuleId", ctypes.c_uint()

        def checked(code: int) -> int:
            if code != results.SUCCESS:
                raise Refused(call, code)
            return number.value

        return self.integer(device, call, ctypes.byref(number), pick=checked)

    def memory_mib(self, device: Device, *, what: str = "total") -> int | Unavailable:
        """The GPU's memory in MiB: total, used (without the driver's reserve, if known), free."""
        call = "nvmlDeviceGetMemoryInfo"
        options = {"fallbacks": ((call,),), "pick": lambda info: getattr(info, what) >> 20}
        return self.integer(device, call, pynvml.nvmlMemory_v2, **options)

    def sram_threshold(self, device: Device) -> int | Unavailable:
        """1 if the driver reports SRAM errors above their limit."""
        if pynvml is None or not hasattr(pynvml, "c_nvmlEccSramErrorStatus_v1_t"):
            return NO_SUCH_CALL
        status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
        answer = self.value(device, "nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status))
        return answer if isinstance(answer, Unavailable) else int(status.bThresholdExceeded)

    def fan_rpm(self, device: Device, fan: int) -> int | Unavailable:
        """A fan's speed; the binding's wrapper only reads the first fan."""
        call, structure = "nvmlDeviceGetFanSpeedRPM", getattr(pynvml, "c_nvmlFanSpeedInfo_t", None)
        if structure is None:
            return NO_SUCH_CALL
        info = structure(version=pynvml.nvmlFanSpeedInfo_v1, fan=fan)

        def ask(handle: Any) -> int:
            pynvml._nvmlCheckReturn(pynvml._nvmlGetFunctionPointer(call)(handle, ctypes.byref(info)))
            return int(info.speed)

        return self.integer(device, call, through=ask)

    def register_events(self, device: Device, kinds: int) -> bool | Unavailable:
        """Have the driver queue events of these kinds; False if it supports none of them."""
        supported = self.integer(device, "nvmlDeviceGetSupportedEventTypes")
        if isinstance(supported, Unavailable):
            return supported
        if self._events is None:
            answer = self.value(None, "nvmlEventSetCreate")
            if isinstance(answer, Unavailable):
                return answer
            self._events = answer
        if not supported & kinds:
            return False
        answer = self.value(device, "nvmlDeviceRegisterEvents", supported & kinds, self._events)
        if isinstance(answer, Unavailable):
            return answer
        self._registered[results.address(device.handle)] = device
        return True

    def next_event(self, *, wait_ms: int = 0) -> tuple[Device | None, int, int] | Unavailable | None:
        """The next event as its GPU, kind and data; None if there is none within so many ms, or earlier."""
        if not self._registered:
            return None
        try:
            data = self._invoke(EVENT_WAIT, (self._events, wait_ms), subject="")
        except Refused as refused:
            final = refused.code in results.TOO_OLD | results.FATAL
            return Unavailable(refused.reason) if final else None
        number = min(data.eventData, results.INT64_MAX)
        return self._registered.get(results.address(data.device)), data.eventType, number

    def free_events(self) -> None:
        """Free the event set, which fails as a whole once a GPU in it is lost."""
        if self._events is not None:
            self.value(None, "nvmlEventSetFree", self._events)
        self._events, self._registered = None, {}

    def fabric(self, device: Device) -> Fabric | Unavailable:
        """The GPU's position in an NVLink fabric, from the newest version of the call that the driver has."""
        older = {results.name_of(code) for code in (*results.TOO_OLD, results.INVALID_ARGUMENT)}
        answer = Unavailable("not read")
        for call, structure in (
            ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
            ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
            ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
        ):
            info = getattr(pynvml, structure)()
            answer = self.value(device, call, ctypes.byref(info))
            if not isinstance(answer, Unavailable):
                return results.fabric(info)
            if answer.unavailable not in older:
                break
        return answer

    def _require(self, call: str) -> Any:
        try:
            return self._invoke(call, (), subject="")
        except Refused as refused:
            raise NvmlUnusable(results.unusable(refused, access=self._access)) from None

    def _invoke(
        self,
        call: str,
        arguments: tuple[Any, ...],
        *,
        subject: str,
        through: Callable[..., Any] | None = None,
    ) -> Any:
        """Call the driver, with retries after transient errors; raises `Refused`."""
        function = through or getattr(pynvml, call, None)
        if function is None:
            raise Refused(call, results.FUNCTION_NOT_FOUND)
        tries = 1 if (call, subject) in self._no_retry else TRIES
        for left in reversed(range(tries)):
            self._watch.enter(call, subject)
            try:
                return function(*arguments)
            except pynvml.NVMLError as error:
                code = int(error.value)
            except pynvml.NVMLLibraryMismatchError as error:
                raise Refused(call, None, f"pynvml and the driver's NVML differ: {error}"[:300]) from None
            finally:
                self._watch.leave()
            if code not in results.TRANSIENT or not left:
                break
            self._pause(PAUSE_S)
        if code in results.TRANSIENT:
            self._no_retry.add((call, subject))
        raise Refused(call, code)
