"""Debian's `ipmi_sim`, an IPMI BMC by others.  It speaks cipher suite 3, and no DCMI."""

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from testbed import debian
from testbed.binaries import cache_folder
from testbed.hardware.ipmimachine import PASSWORD, THRESHOLD, USER, Machine, Sensor
from testbed.processes import Failed

PACKAGES = ("openipmi", "libopenipmi0", "libpopt0")
WAY_OUT = "there is no `ipmi_sim`; Debian and Ubuntu: apt-get install openipmi"


@cache
def program() -> tuple[str, str] | None:
    """The simulator, and where its libraries are if not with the system's; None where none can be had."""
    if simulator := shutil.which("ipmi_sim"):
        return simulator, ""
    root = cache_folder(os.environ) / "ipmi_sim"
    try:
        debian.unpack(root, *PACKAGES)
    except (OSError, Failed):
        return None
    [libraries] = {path.parent for path in root.glob("usr/lib/*/libIPMIlanserv.so.0")} or {root}
    path = root / "usr/bin/ipmi_sim"
    return (str(path), str(libraries)) if path.exists() else None


class Simulator:
    def __init__(self, port: int, console: int) -> None:
        self.port = port
        self._console = console

    @property
    def url(self) -> str:
        return f"ipmi://127.0.0.1:{self.port}"

    async def change(self, sensor: Sensor, *, raw: int | None = None, states: int | None = None) -> None:
        if raw is not None:
            await self.command(f"sensor_set_value 0x20 0 {sensor.number} {raw} 0")
        for bit in range(15 if states is not None else 0):
            await self.command(f"sensor_set_bit 0x20 0 {sensor.number} {bit} {states >> bit & 1} 0")  # type: ignore[operator]

    async def command(self, line: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._console)
        try:
            await reader.readuntil(b">")
            writer.write(f"{line}\n".encode())
            answer = await reader.readuntil(b">")
        finally:
            writer.close()
            await writer.wait_closed()
        if b"rror" in answer or b"nvalid" in answer:
            raise RuntimeError(answer.decode(errors="replace"))


@asynccontextmanager
async def simulating(machine: Machine, folder: Path) -> AsyncIterator[Simulator]:
    result = program()
    assert result is not None, WAY_OUT
    binary, libraries = result
    with socket.socket(type=socket.SOCK_DGRAM) as datagrams, socket.socket() as stream:
        for one in (datagrams, stream):
            one.bind(("127.0.0.1", 0))
        port, console = (one.getsockname()[1] for one in (datagrams, stream))
    (folder / "state").mkdir()
    power = folder / "power"
    power.write_text("#!/bin/sh\necho power:1\n")
    power.chmod(0o755)
    (folder / "lan.conf").write_text(_configuration(port, console) + f'chassis_control "{power}"\n')
    (folder / "commands").write_text("\n".join(_commands(machine)) + "\n")
    environment = os.environ | ({"LD_LIBRARY_PATH": libraries} if libraries else {})
    arguments = ["-n", "-c", folder / "lan.conf", "-f", folder / "commands", "-s", folder / "state"]
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            binary, *map(str, arguments), env=environment, stdout=log, stderr=log, stdin=-3
        )
    simulator = Simulator(port, console)
    try:
        await _wait(simulator, process, folder / "log")
        yield simulator
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def _wait(simulator: Simulator, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(30):
        while process.returncode is None:
            try:
                return await simulator.command("")
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)
    raise RuntimeError(f"ipmi_sim ended; its words are in {log}")


def _configuration(port: int, console: int) -> str:
    levels = "\n".join(f" allowed_auths_{level} md5" for level in ("callback", "user", "operator", "admin"))
    return f"""name "machine"
set_working_mc 0x20
startlan 1
 addr 127.0.0.1 {port}
 priv_limit admin
{levels}
 guid a123456789abcdefa123456789abcdef
endlan
console 127.0.0.1 {console}
user 2 true "{USER}" "{PASSWORD}" user 10 md5
"""


def _commands(machine: Machine) -> list[str]:
    lines = [
        "mc_setbmc 0x20",
        "mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02",
        "sel_enable 0x20 100 0x0a",
    ]
    for sensor in machine.sensors:
        address = f"0x20 0 {sensor.number}"
        lines.append(f"sensor_add {address} {sensor.kind} {sensor.event}")
        lines.append(
            f"sensor_set_event_support {address} enable scanning per-state {' '.join(['0' * 15] * 4)}"
        )
        if sensor.event == THRESHOLD:
            mask = f"{sensor.mask:06b}"
            bounds = " ".join(str(bound or 0) for bound in reversed(sensor.bounds))
            lines.append(
                f"sensor_set_threshold {address} {'settable' if sensor.mask else 'none'} {mask} {bounds}"
            )
            lines.append(f"sensor_set_value {address} {sensor.raw} 0")
        else:
            lines += [f"sensor_set_bit {address} {bit} 1 0" for bit in range(15) if sensor.states >> bit & 1]
    for record in machine.records():
        lines.append("main_sdr_add 0x20 " + " ".join(f"0x{byte:02x}" for byte in record))
    for device, data in machine.inventories.items():
        content = " ".join(f"0x{byte:02x}" for byte in data)
        lines.append(f"mc_add_fru_data 0x20 {device} {len(data)} data {content}")
    return [*lines, "mc_enable 0x20"]
