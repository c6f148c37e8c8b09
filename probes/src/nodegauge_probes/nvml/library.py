"""The one seam to NVIDIA's management library: every call gives a value or the reason why there is none.

Nobody else imports pynvml.  The library's traps end here: errors compare by number alone (`NVMLError.__eq__`
raises against anything else), a call that an old driver lacks is a reason to ask the older one, some
wrappers share their default argument between calls, structures come in several versions.

It must not judge, cache readings or write anything, and it tells the watch about every call before it enters
the driver: a call that hangs there cannot be interrupted, only named.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

from nodegauge_contract import Problem, ProblemKind, Unavailable
from nodegauge_probes.nvml import errors
from nodegauge_probes.nvml import values as answers
from nodegauge_probes.nvml.device import Device as Device
from nodegauge_probes.nvml.device import NvmlUnusable as NvmlUnusable
from nodegauge_probes.nvml.device import Watch as Watch
from nodegauge_probes.nvml.errors import Refused

try:
    import pynvml
except ImportError:  # the [probes] extra is not installed: said in words when NVML is opened
    pynvml = None

READ, WRITE, NVLINK = 0, 1, 2
"""P2P capability indices.  Literal on purpose: pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake."""

MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS of the newest architecture (Rubin); older GPUs answer INVALID_ARGUMENT before."""

NO_SUCH_LINK = Unavailable(errors.name_of(errors.INVALID_ARGUMENT))
NO_SUCH_CALL = Unavailable(errors.name_of(errors.FUNCTION_NOT_FOUND))

EVENT_WAIT = "nvmlEventSetWait_v2"
TRIES, PAUSE_S = 4, 0.05

Field = int | tuple[int, int]
"""A field id, or (field id, scope id)."""


class Nvml:
    """NVML while it is open.  Methods give a value or `Unavailable`; only `open` and `devices` raise."""

    def __init__(self, *, watch: Watch, pause: Callable[[float], None]) -> None:
        self._watch = watch
        self._pause = pause
        self._open = False
        self._hopeless = {(EVENT_WAIT, "")}
        """Calls that are asked once: those that never worked, and the one where TIMEOUT is an answer."""
        self._events: Any = None
        self._listened: dict[int, Device] = {}

    def open(self) -> None:
        """Raises `NvmlUnusable` without a library, a driver, or the rights to talk to it."""
        if pynvml is None:
            message = "the Python package nvidia-ml-py is not installed: pip install 'nodegauge[probes]'"
            kind = ProblemKind.LIBRARY_NOT_FOUND
            raise NvmlUnusable(Problem(kind=kind, call="import pynvml", message=message))
        self._invoke_or_stop("nvmlInit")
        self._open = True

    def close(self) -> None:
        """Let go of the driver: an open client blocks driver unload and GPU reset."""
        if self._open:
            self._open = False
            self.stop_listening()
            self.value(None, "nvmlShutdown")

    def devices(self) -> list[Device]:
        """Every GPU that the count includes, also those whose handle is refused; raises `NvmlUnusable`."""
        count: int = self._invoke_or_stop("nvmlDeviceGetCount")
        return [self._device(index) for index in range(count)]

    def _device(self, index: int) -> Device:
        device = Device(index, None)
        try:
            device.handle = self._invoke("nvmlDeviceGetHandleByIndex", (index,), subject=f"GPU {index}")
        except Refused as refused:
            device.problem = errors.no_handle(refused)
            device.gone = Unavailable(refused.reason)
        return device

    def value(
        self,
        device: Device | None,
        call: str,
        *arguments: Any,
        otherwise: Iterable[tuple[Any, ...]] = (),
        pick: Callable[[Any], Any] = lambda answer: answer,
        through: Callable[..., Any] | None = None,
    ) -> Any:
        """What `call` answers for `device`, through `pick`; or `Unavailable` with NVML's name of the error.

        `otherwise` are (call, argument, ...) to ask, in this order, where the driver does not have `call`;
        `through` replaces a wrapper of the binding that is of no use.
        """
        if device is not None and device.gone is not None:
            return device.gone
        own = () if device is None else (device.handle,)
        subject = "" if device is None else f"GPU {device.index}"
        refusals: list[Refused] = []
        for name, *rest in ((call, *arguments), *otherwise):
            try:
                return pick(self._invoke(name, (*own, *rest), subject=subject, through=through))
            except UnicodeDecodeError:
                return Unavailable(f"{name} answered bytes that are no text")
            except Refused as refused:
                refusals.append(refused)
                if refused.code not in errors.TOO_OLD:
                    break
        told = next((one for one in refusals if one.code not in errors.TOO_OLD), refusals[0])
        if device is not None:
            device.problem = device.problem or errors.illness(told)
            device.gone = Unavailable(told.reason) if told.code in errors.GONE else None
        return Unavailable(told.reason)

    def integer(self, device: Device | None, call: str, *arguments: Any, **options: Any) -> int | Unavailable:
        """As `value`, for whole numbers."""
        answer = self.value(device, call, *arguments, **options)
        return answer if isinstance(answer, Unavailable) else answers.whole(int(answer))

    def text(self, device: Device | None, call: str, **options: Any) -> str | Unavailable:
        """As `value`, for text, cut to what the contract takes."""
        answer = self.value(device, call, **options)
        return answer if isinstance(answer, Unavailable) else str(answer)[:128]

    def pair(self, one: Device, other: Device, call: str, *arguments: Any) -> int | Unavailable:
        """A question about two GPUs; a refusal is never held against one of them."""
        gone = one.gone or other.gone
        if gone is not None:
            return gone
        subject = f"GPU {one.index} and GPU {other.index}"
        try:
            return answers.whole(self._invoke(call, (one.handle, other.handle, *arguments), subject=subject))
        except Refused as refused:
            return Unavailable(refused.reason)

    def fields(
        self, device: Device, *fields: Field, only: int | None = None
    ) -> list[int | float | Unavailable]:
        """Field values in the order asked for; `only`: the one value type that is accepted."""
        answer = self.value(device, "nvmlDeviceGetFieldValues", list(fields))
        if not isinstance(answer, Unavailable):
            return [answers.field(element, only=only) for element in answer]
        if len(fields) == 1 or answer == NO_SUCH_CALL or device.gone is not None:
            return [answer] * len(fields)
        # A driver may refuse the whole list for one id that it does not know.
        return [self.fields(device, field, only=only)[0] for field in fields]

    def whole_field(self, device: Device, *fields: Field) -> int | Unavailable:
        """The first of `fields` that reads as a whole number above zero, else the first answer."""
        values = [value for value in self.fields(device, *fields) if not isinstance(value, float)]
        for value in values:
            if isinstance(value, int) and value > 0:
                return value
        return values[0] if values else Unavailable("not a whole number")

    def pci(self, device: Device) -> str | Unavailable:
        """The GPU's bus id in sysfs form."""
        answer = self.text(device, "nvmlDeviceGetPciInfo", pick=answers.bus_id_of)
        return answer or Unavailable("no bus id in the answer")

    def remote_pci(self, device: Device, link: int) -> str | Unavailable:
        """The bus id at the far end of a link; empty where a hypervisor hides it."""
        call = "nvmlDeviceGetNvLinkRemotePciInfo"
        answer = self.value(device, call, link, pick=answers.bus_id_of)
        return answer if isinstance(answer, Unavailable) else str(answer)

    def module_id(self, device: Device) -> int | Unavailable:
        """The SXM slot, into a number of our own: the wrapper's default argument is shared by all callers.

        Given a reference, the wrapper hands the return value back instead of raising.
        """
        call, number = "nvmlDeviceGetModuleId", ctypes.c_uint()

        def checked(code: int) -> int:
            if code != errors.SUCCESS:
                raise Refused(call, code)
            return number.value

        return self.integer(device, call, ctypes.byref(number), pick=checked)

    def memory_mib(self, device: Device, *, what: str = "total") -> int | Unavailable:
        """The GPU's memory in MiB: total, used (without what the driver reserves, where it knows), free."""
        call = "nvmlDeviceGetMemoryInfo"
        options = {"otherwise": ((call,),), "pick": lambda info: getattr(info, what) >> 20}
        return self.integer(device, call, pynvml.nvmlMemory_v2, **options)

    def sram_threshold(self, device: Device) -> int | Unavailable:
        """1 when the driver says that SRAM errors passed their limit."""
        if pynvml is None or not hasattr(pynvml, "c_nvmlEccSramErrorStatus_v1_t"):
            return NO_SUCH_CALL
        status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
        answer = self.value(device, "nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status))
        return answer if isinstance(answer, Unavailable) else int(status.bThresholdExceeded)

    def fan_rpm(self, device: Device, fan: int) -> int | Unavailable:
        """What a fan turns; the wrapper of the binding asks for the first fan alone."""
        call, structure = "nvmlDeviceGetFanSpeedRPM", getattr(pynvml, "c_nvmlFanSpeedInfo_t", None)
        if structure is None:
            return NO_SUCH_CALL
        info = structure(version=pynvml.nvmlFanSpeedInfo_v1, fan=fan)

        def ask(handle: Any) -> int:
            pynvml._nvmlCheckReturn(pynvml._nvmlGetFunctionPointer(call)(handle, ctypes.byref(info)))
            return int(info.speed)

        return self.integer(device, call, through=ask)

    def listen(self, device: Device, kinds: int) -> bool | Unavailable:
        """Have the driver tell of events of these kinds while NVML is open; False where it knows none."""
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
        self._listened[answers.address(device.handle)] = device
        return True

    def event(self) -> tuple[Device | None, int, int] | Unavailable | None:
        """The next event as its GPU, kind and data; None while there is none: nobody waits for one."""
        if not self._listened:
            return None
        try:
            data = self._invoke(EVENT_WAIT, (self._events, 0), subject="")
        except Refused as refused:
            told = refused.code in errors.TOO_OLD | errors.GONE
            return Unavailable(refused.reason) if told else None
        return self._listened.get(answers.address(data.device)), data.eventType, data.eventData

    def stop_listening(self) -> None:
        """Let go of the event set, which fails as a whole once a GPU in it is lost."""
        if self._events is not None:
            self.value(None, "nvmlEventSetFree", self._events)
        self._events, self._listened = None, {}

    def fabric(self, device: Device) -> dict[str, Any] | Unavailable:
        """The GPU's place in an NVLink fabric, from the newest version of the call that the driver knows."""
        older = {errors.name_of(code) for code in (*errors.TOO_OLD, errors.INVALID_ARGUMENT)}
        answer = Unavailable("not asked")
        for call, structure in (
            ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
            ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
            ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
        ):
            info = getattr(pynvml, structure)()
            answer = self.value(device, call, ctypes.byref(info))
            if not isinstance(answer, Unavailable):
                return answers.fabric(info)
            if answer.unavailable not in older:
                break
        return answer

    def _invoke_or_stop(self, call: str) -> Any:
        try:
            return self._invoke(call, (), subject="")
        except Refused as refused:
            raise NvmlUnusable(errors.unusable(refused)) from None

    def _invoke(
        self,
        call: str,
        arguments: tuple[Any, ...],
        *,
        subject: str,
        through: Callable[..., Any] | None = None,
    ) -> Any:
        """Call the driver, again after answers that may pass; raises `Refused`."""
        function = through or getattr(pynvml, call, None)
        if function is None:
            raise Refused(call, errors.FUNCTION_NOT_FOUND)
        tries = 1 if (call, subject) in self._hopeless else TRIES
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
            if code not in errors.PASSING or not left:
                break
            self._pause(PAUSE_S)
        if code in errors.PASSING:
            self._hopeless.add((call, subject))
        raise Refused(call, code)
