"""What a fault is: a function with keyword parameters that have defaults; values may be text."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from testbed.driver.releases import abilities
from testbed.hardware.machine import HardwareError, Machine

Parameter = str | int
Apply = Callable[..., None]
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Fault:
    name: str
    does: str
    apply: Apply

    @property
    def module(self) -> str:
        """The module that it stands in, which is what it is about: faults_peers, faults_runs, ..."""
        return self.apply.__module__.rpartition(".")[2]

    def parameters(self) -> dict[str, Parameter]:
        signature = inspect.signature(self.apply)
        return {name: p.default for name, p in signature.parameters.items() if p.kind is p.KEYWORD_ONLY}

    def on(self, machine: Machine, parameters: Mapping[str, Parameter]) -> None:
        known = self.parameters()
        if unknown := sorted(parameters.keys() - known.keys()):
            raise HardwareError(
                f"{self.name} has no parameter {', '.join(unknown)}: it has {', '.join(known) or 'none'}"
            )
        self.apply(machine, **parameters)


FAULTS: dict[str, Fault] = {}


def fault(name: str, does: str = "") -> Callable[[Apply], Apply]:
    def register(apply: Apply) -> Apply:
        FAULTS[name] = Fault(name=name, does=does or inspect.getdoc(apply) or "", apply=apply)
        return apply

    return register


def find(name: str) -> Fault:
    if name not in FAULTS:
        raise HardwareError(f"no fault {name!r}: there are {', '.join(sorted(FAULTS))}")
    return FAULTS[name]


def choice(parameter: str, value: str, choices: Mapping[str, Value]) -> Value:
    if value not in choices:
        raise HardwareError(f"{parameter} is {value!r}: choose one of {', '.join(choices)}")
    return choices[value]


def whole(parameter: str, value: Parameter, *, least: int | None = None, most: int | None = None) -> int:
    try:
        number = int(value)
    except ValueError:
        raise HardwareError(f"{parameter} is {value!r}: give a whole number") from None
    if (least is not None and number < least) or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise HardwareError(f"{parameter} is {number}: give a number {bounds}")
    return number


def share(percent: Parameter) -> int:
    return whole("percent", percent, least=1, most=100)


def needs(machine: Machine, there: object, what: str) -> None:
    if there is None or there is False:
        raise HardwareError(f"{machine.profile.name} has no {what}")


def has_call(machine: Machine, call: str) -> bool:
    return call in abilities(machine.profile.driver.version).functions


def knows_field(machine: Machine, number: int) -> bool:
    return number <= abilities(machine.profile.driver.version).fields_known
