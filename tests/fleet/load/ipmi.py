"""`python -m fleet.load.ipmi`: readers of IPMI on the same simulated BMCs, in one run.

Libraries are no dependency: install pyghmi, python-ipmi or ipmitool where this interpreter finds them.  A
library gives the session alone, in threads; the commands and what is made of them are the reader's own.
ipmitool says its sensors, inventories, meter and clock in one login.  `--faults`: one BMC that misbehaves.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from msgspec import json

from nodegauge_bmc import ipmi
from nodegauge_bmc.connection import Access
from nodegauge_bmc.lan import Refused, Session
from nodegauge_bmc.rmcp import Malformed
from testbed.hardware.ipmibmc import PASSWORD, USER, Behaviour, IpmiBmc
from testbed.hardware.ipmimachine import Machine, crowded, server

SERVERS = 2
HOST = "127.0.0.1"
PONG = bytes.fromhex("0600ff06000011be40000010000011be000000008100000000000000")
"""Answer to an RMCP presence ping, which python-ipmi waits for."""
SHARED = {
    (0x06, 0x01): bytes((0x20, 0x81, 1, 0, 2, 0x8F, 0, 0, 0, 0, 0)),  # Get Device ID
    (0x06, 0x3B): b"\x02",  # Set Session Privilege Level
    (0x0A, 0x20): bytes((0x51, 200, 0)) + bytes(11),  # Get SDR Repository Info
}
FAULTS: dict[str, dict[str, Any]] = {
    "healthy": {}, "suite 3 only": {"suites": (3,)}, "IPMI 1.5 only": {"version": 1.5},
    "confirms no encryption": {"suites": (), "downgrades": True}, "loses every 5th packet": {"loses": 5},
    "8 bytes of a record at once": {"most": 8}, "3 reservations cancelled": {"cancels": 3},
    "every reservation cancelled": {"cancels": 10**9}, "records without end": {"endless": True},
    "no repository": {"repository": False}, "silent after 40 commands": {"silent_after": 40},
    "old answers replayed": {"replays": True}, "a forged packet before each": {"forges": True},
    "a name in packed ASCII": {"packed": True},
}  # fmt: skip


class Machines(Machine):
    """One description for all BMCs, whose records are encoded once."""

    def records(self) -> list[bytes]:
        if "made" not in vars(self):
            vars(self)["made"] = super().records()
        return cast(list[bytes], vars(self)["made"])


class Slow(IpmiBmc):
    """Answers after a while, the ping of RMCP too, and after a packet of somebody else where it `forges`."""

    latency, forges = 0.0, False

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        asyncio.get_running_loop().call_later(self.latency, self._answer, data, addr)

    def _answer(self, data: bytes, addr: tuple[str, int]) -> None:
        if self.forges:
            self._transport.sendto(data[:4] + bytes(60), addr)
        if data[3] == 0x06:
            self._transport.sendto(PONG, addr)
        else:
            with contextlib.suppress(
                Malformed, AssertionError
            ):  # a client that goes on where nothing was agreed
                super().datagram_received(data, addr)


def serve(ports: Connection, count: int, sensors: int, latency: float, wrong: dict[str, Any]) -> None:
    """So many BMCs in a process of their own; sends their ports."""
    full = crowded() if sensors > len(server().sensors) else server()
    machine = Machines(**vars(full) | {"sensors": full.sensors[:sensors]})
    if wrong.pop("packed", False):
        machine.sensors[0] = replace(machine.sensors[0], name="INLET TEMP", packed=True)
    forges = wrong.pop("forges", False)

    async def bmc() -> int:
        made = Slow(machine, Behaviour(raw=dict(SHARED), **wrong))
        made.latency, made.forges = latency, forges
        where = {"local_addr": (HOST, 0)}
        made_transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: made, **where)  # type: ignore[arg-type]
        return int(made_transport.get_extra_info("sockname")[1])

    async def all_of_them() -> None:
        ports.send([await bmc() for _ in range(count)])
        await asyncio.Event().wait()

    asyncio.run(all_of_them())


@contextlib.contextmanager
def served(count: int, *, sensors: int, latency: float, wrong: dict[str, Any]) -> Iterator[list[int]]:
    """The ports of so many BMCs."""
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe(duplex=False) for _ in range(min(SERVERS, count))]
    share = count // len(pipes)
    servers = [spawn.Process(target=serve, args=(end, share, sensors, latency, wrong)) for _, end in pipes]
    for each in servers:
        each.start()
    try:
        yield [port for ports, _ in pipes for port in ports.recv()]
    finally:
        for each in servers:
            each.kill()
            each.join()


class Blocking:
    """A library's session as the reader's; `ask` blocks, so that a reading over it never waits."""

    def __init__(self, ask: Callable[[int, int, bytes, int], tuple[int, bytes]]) -> None:
        self._ask, self.requests = ask, 0

    async def command(self, netfn: int, command: int, data: bytes = b"", *, lun: int = 0) -> bytes:
        self.requests += 1
        code, answer = self._ask(netfn, command, data, lun)
        if code:
            raise Refused(code)
        return answer

    def read(self) -> Any:
        reading: Coroutine[Any, Any, Any] = ipmi.read_session(cast(Session, self))
        try:
            reading.send(None)
        except StopIteration as end:
            return end.value


def by_pyghmi(port: int) -> Any:
    from pyghmi.ipmi.private.session import Session as Theirs  # type: ignore[import-not-found]

    session = Theirs(HOST, USER, PASSWORD, port=port, privlevel=2, keepalive=False)

    def ask(netfn: int, command: int, data: bytes, lun: int) -> tuple[int, bytes]:
        got = session.raw_command(netfn=netfn, command=command, data=data, rslun=lun)
        return got["code"], bytes(got["data"])

    try:
        return Blocking(ask).read()
    finally:
        session.logout()


def by_pyipmi(port: int) -> Any:
    import pyipmi  # type: ignore[import-not-found]
    from pyipmi.interfaces import create_interface  # type: ignore[import-not-found]

    interface = create_interface("rmcpplus", keep_alive_interval=0, max_retries=4, cipher_suite=3)
    connection = pyipmi.create_connection(interface)
    connection.session.set_session_type_rmcp(HOST, port=port)
    connection.session.set_auth_type_user(USER, PASSWORD)
    connection.session.set_priv_level("USER")
    connection.target = pyipmi.Target(ipmb_address=0x20)
    connection.open()

    def ask(netfn: int, command: int, data: bytes, lun: int) -> tuple[int, bytes]:
        got = bytes(interface.send_and_receive_raw(connection.target, lun, netfn, bytes((command,)) + data))
        return got[0], got[1:]

    try:
        return Blocking(ask).read()
    finally:
        connection.close()


def by_ipmitool(port: int) -> Any:
    with tempfile.TemporaryDirectory() as made:
        asked, secret = Path(made, "asked"), Path(made, "secret")
        asked.write_text("chassis status\nsdr elist all\nfru print\ndcmi power reading\nsel time get\n")
        secret.write_text(PASSWORD)
        login = f"-I lanplus -H {HOST} -p {port} -U {USER} -L USER -C 17 -f {secret}".split()
        command = ["ipmitool", *login, "-v", "exec", str(asked)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "PS1 Status" not in done.stdout:
        raise RuntimeError(done.stderr.strip()[-200:])
    return None


async def by_ourselves(ports: list[int], concurrency: int, done: Callable[[Any], None]) -> None:
    slots = asyncio.Semaphore(concurrency)

    async def one(port: int) -> None:
        async with slots:
            try:
                done(await ipmi.read(Access(url=f"ipmi://{HOST}:{port}", user=USER, password=PASSWORD)))
            except Exception as error:
                done(error)

    async with asyncio.TaskGroup() as group:
        for port in ports:
            group.create_task(one(port))


READERS: dict[str, Callable[[int], Any]] = {
    "pyghmi": by_pyghmi, "python-ipmi": by_pyipmi, "ipmitool": by_ipmitool,
}  # fmt: skip


def read_all(answer: Connection, reader: str, ports: list[int], concurrency: int) -> None:
    """Read each BMC once, in a process of its own; sends what was read or why not, CPU seconds and MiB."""
    results: list[Any] = []

    def one(port: int) -> None:
        try:
            results.append(READERS[reader](port))
        except Exception as error:
            results.append(error)

    began = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    if reader == "nodegauge":
        asyncio.run(by_ourselves(ports, concurrency, results.append))
    else:
        with ThreadPoolExecutor(concurrency) as pool:
            list(pool.map(one, ports))
    ended = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(began, ended, strict=True))
    told = [f"{type(r).__name__}: {r}"[:150] if isinstance(r, Exception) else _parts(r) for r in results]
    answer.send((told, cpu, sum(usage.ru_maxrss for usage in ended) / 1024))


def _parts(reading: Any) -> bytes:
    return (
        b"" if reading is None else json.encode((reading.supplies, reading.rails, reading.fans, reading.air))
    )


def measured(
    reader: str, ports: list[int], concurrency: int, limit: float
) -> tuple[list[Any], float, float, float]:
    """Results, CPU seconds, MiB and seconds of one reader; no results beyond the limit."""
    spawn = multiprocessing.get_context("spawn")
    answers, end = spawn.Pipe(duplex=False)
    process = spawn.Process(target=read_all, args=(end, reader, ports, concurrency))
    process.start()
    started = time.monotonic()
    try:
        results, cpu, memory = answers.recv() if answers.poll(limit) else ([], 0.0, 0.0)
        return results, cpu, memory, time.monotonic() - started
    finally:
        process.kill()
        process.join()


def main(arguments: argparse.Namespace) -> None:
    """Print a line for each reader, or for each fault and reader."""
    readers = ["nodegauge", *READERS] if arguments.reader is None else arguments.reader
    faults = FAULTS if arguments.faults else {"healthy": {}}
    count = 1 if arguments.faults else arguments.bmcs
    for name, wrong in faults.items():
        right, base = None, None
        for reader in readers:
            settings = {"sensors": arguments.sensors, "latency": arguments.latency, "wrong": dict(wrong)}
            with served(count, **settings) as ports:
                results, cpu, memory, seconds = measured(
                    reader, ports, arguments.concurrency, arguments.limit
                )
            read = [result for result in results if isinstance(result, bytes)]
            right, base = right or next(iter(read), None), base or cpu
            same = sum(result == right for result in read)
            said = next(
                (result for result in results if isinstance(result, str)),
                "" if results else "not within the limit",
            )
            print(
                f"{name:28} {reader:12} {len(read):5} of {count} read, {same:5} alike, {seconds:6.1f} s, "
                f"{cpu:7.2f} CPU s ({cpu / base if base else 0:4.1f} x), {memory:5.0f} MiB  {said}",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m fleet.load.ipmi", description=__doc__)
    parser.add_argument("--bmcs", type=int, default=100)
    parser.add_argument("--sensors", type=int, default=150)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds of a BMC for one answer")
    parser.add_argument("--concurrency", type=int, default=64, help="BMCs at a time")
    parser.add_argument("--limit", type=float, default=60, help="seconds that one reader may take")
    parser.add_argument("--reader", action="append", choices=["nodegauge", *READERS])
    parser.add_argument("--faults", action="store_true", help="one BMC that misbehaves, instead of many")
    main(parser.parse_args())
