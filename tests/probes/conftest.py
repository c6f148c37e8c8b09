"""Machines for the probe's tests."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pynvml
import pytest

from nodegauge_contract import Result
from nodegauge_probes.nvml.library import Device, Nvml
from support.library import Library, Watched
from support.nccl_probe import NcclRun
from support.probing import Probe
from testbed.hardware import plug
from testbed.hardware.fault import FAULTS, Fault
from testbed.hardware.machine import Machine
from testbed.profiles import Profile


@pytest.fixture
def probe(tmp_path: Path) -> Callable[[str | Profile], Probe]:
    """`probe("h100-sxm-8")`: that machine, plugged in, and the probe on it."""

    def on(profile: str | Profile) -> Probe:
        return Probe(hardware=plug(profile, tmp_path / "machine", seed="nodegauge"), folder=tmp_path)

    return on


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Probe]:
    """`machine("h100-sxm-8")`: the probe on that machine, shared by all tests: do not change it."""

    @cache
    def of(profile: str) -> Probe:
        folder = tmp_path_factory.mktemp("machine")
        return Probe(hardware=plug(profile, folder / "machine", seed="nodegauge"), folder=folder)

    return of


@pytest.fixture(scope="session")
def healthy(machine: Callable[[str], Probe]) -> Callable[[str], Result]:
    """`healthy("h100-sxm-8")`: the result of one run on that machine, shared by all tests."""
    return cache(lambda profile: machine(profile).result())


@pytest.fixture
def nccl_on(tmp_path: Path) -> Callable[[str | Profile], NcclRun]:
    """`nccl_on("h100-sxm-8")`: that machine, plugged in, and the NCCL probe on it."""

    def on(profile: str | Profile) -> NcclRun:
        return NcclRun(hardware=plug(profile, tmp_path / "machine", seed="nodegauge"), folder=tmp_path)

    return on


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    made = Library()
    monkeypatch.setattr(pynvml, "nvmlLib", made)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    yield made
    pynvml._nvmlGetFunctionPointer_cache.clear()


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def nvml(library: Library, pauses: list[float]) -> Nvml:
    opened = Nvml(watch=Watched(), pause=pauses.append)
    opened.open()
    library.calls.clear()
    return opened


@pytest.fixture
def device() -> Device:
    return Device(3, pynvml.c_nvmlDevice_t())


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that writes a line into the driver's state, for these tests alone."""

    def line(machine: Machine, *, gpu: int = 0, key: str = "", value: str = "") -> None:
        machine.values[machine.gpu(gpu), key] = value

    monkeypatch.setitem(FAULTS, "state", Fault(name="state", does="", apply=line))
