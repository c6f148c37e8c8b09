"""`python -m fleet.load.ipmi`: readers of IPMI on the same simulated BMCs, in one run.

Install pyghmi, python-ipmi or ipmitool where this interpreter finds them.  A library gives the session alone;
ipmitool lists sensors, in a process for each BMC.  `--reader pyghmi/8x8`: 8 processes that read 8 BMCs at a
time each, and are killed and replaced where one takes longer than the deadline.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import os
import resource
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, cast

from msgspec import json

from nodegauge_bmc import ipmi
from nodegauge_bmc.connection import Access
from nodegauge_bmc.lan import Refused, Session
from nodegauge_bmc.rmcp import Malformed
from testbed.hardware.ipmibmc import Behaviour, IpmiBmc
from testbed.hardware.ipmimachine import PASSWORD, USER, server

HOST, DEADLINE = "127.0.0.1", 20
SPAWN, FORK = multiprocessing.get_context("spawn"), multiprocessing.get_context("fork")
PONG = bytes.fromhex("0600ff06000011be40000010000011be000000008100000000000000")  # python-ipmi waits for it
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
            return
        with contextlib.suppress(Malformed, AssertionError):  # a client that goes on where nothing was agreed
            super().datagram_received(data, addr)


def serve(ports: Connection, numbers: range, given: argparse.Namespace, wrong: dict[str, Any]) -> None:
    """BMCs of these numbers, of which one of `every` misbehaves; sends their ports."""
    machine, Slow.latency = server(), given.latency
    packed, forges = wrong.pop("packed", False), wrong.pop("forges", False)
    machine.sensors[0] = replace(machine.sensors[0], name="INLET TEMP", packed=packed)
    records = machine.records()
    vars(machine)["records"] = lambda: records  # encoded once for all
    loop = asyncio.new_event_loop()

    async def bmc(bad: bool) -> int:
        made = Slow(machine, Behaviour(raw=dict(SHARED), **wrong if bad else {}))
        made.forges = bad and forges
        transport, _ = await loop.create_datagram_endpoint(lambda: made, local_addr=(HOST, 0))
        return int(transport.get_extra_info("sockname")[1])

    ports.send([loop.run_until_complete(bmc(number % given.every == 0)) for number in numbers])
    loop.run_forever()


def over(ask: Callable[[int, int, bytes, int], bytes]) -> bytes:
    """A reading by a library's session: `ask` gives completion code and data, and blocks: nothing awaits."""

    class Blocking:
        requests = 0

        async def command(self, netfn: int, command: int, data: bytes = b"", *, lun: int = 0) -> bytes:
            code, *answer = ask(netfn, command, data, lun)
            if code:
                raise Refused(code)
            return bytes(answer)

    try:
        ipmi.read_session(cast(Session, Blocking())).send(None)
    except StopIteration as end:
        return parts(end.value)
    raise AssertionError("it waited")


def parts(reading: Any) -> bytes:
    return json.encode((reading.supplies, reading.rails, reading.fans, reading.air))


def by_pyghmi(port: int) -> bytes:
    from pyghmi.ipmi.private.session import Session as Theirs  # type: ignore[import-not-found]

    session = Theirs(HOST, USER, PASSWORD, port=port, privlevel=2, keepalive=False)

    def ask(netfn: int, command: int, data: bytes, lun: int) -> bytes:
        got = session.raw_command(netfn=netfn, command=command, data=data, rslun=lun)
        return bytes((got["code"], *got["data"]))

    try:
        return over(ask)
    finally:
        session.logout()


def by_pyipmi(port: int) -> bytes:
    import pyipmi  # type: ignore[import-not-found]
    from pyipmi.interfaces import create_interface  # type: ignore[import-not-found]

    interface = create_interface("rmcpplus", keep_alive_interval=0, max_retries=4, cipher_suite=3)
    connection, target = pyipmi.create_connection(interface), pyipmi.Target(ipmb_address=0x20)
    connection.session.set_session_type_rmcp(HOST, port=port)
    connection.session.set_auth_type_user(USER, PASSWORD)
    connection.session.set_priv_level("USER")
    connection.open()
    send = interface.send_and_receive_raw
    with contextlib.closing(connection):
        return over(lambda netfn, command, data, lun: send(target, lun, netfn, bytes((command,)) + data))


def by_ipmitool(port: int) -> bytes:
    login = f"-I lanplus -H {HOST} -p {port} -U {USER} -P {PASSWORD} -L USER -C 17 sdr elist all".split()
    command = ["timeout", "-s", "KILL", str(DEADLINE - 1), "ipmitool", *login]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode or b"PS1 Status" not in done.stdout:
        raise RuntimeError(f"{done.returncode} {done.stderr!r}"[-100:])
    return b""


READERS = {"pyghmi": by_pyghmi, "python-ipmi": by_pyipmi, "ipmitool": by_ipmitool}


async def by_ourselves(ports: list[int], concurrency: int) -> list[Any]:
    slots = asyncio.Semaphore(concurrency)

    async def one(port: int) -> Any:
        async with slots:
            access = Access(url=f"ipmi://{HOST}:{port}", user=USER, password=PASSWORD)
            return parts(await ipmi.read(access, deadline=DEADLINE))

    return await asyncio.gather(*map(one, ports), return_exceptions=True)


@contextlib.contextmanager
def process(context: Any, target: Callable[..., Any], *arguments: Any) -> Iterator[Connection]:
    """Our end of the pipe of a process, which is killed in the end."""
    ours, theirs = context.Pipe()
    started = context.Process(target=target, args=(theirs, *arguments))
    started.start()
    try:
        yield ours
    finally:
        started.kill()
        started.join()


def work(pipe: Connection, reader: str, threads: int) -> None:
    """A worker: sends what each port that it is given says, or why not."""

    def one(port: int) -> None:
        try:
            pipe.send((port, READERS[reader](port)))
        except Exception as error:
            pipe.send((port, repr(error)[:150]))

    with ThreadPoolExecutor(threads) as pool:
        while True:
            pool.submit(one, pipe.recv())


def pooled(reader: str, ports: list[int], workers: int, threads: int) -> list[Any]:
    """By processes.  One that is killed takes its other BMCs with it: they are read again."""
    results: dict[int, Any] = {}
    waiting = deque(ports)

    def keep(_: int) -> None:
        while waiting:
            busy: dict[int, float] = {}
            with process(FORK, work, reader, threads) as pipe:
                while True:
                    with contextlib.suppress(IndexError):
                        while len(busy) < threads:
                            pipe.send(port := waiting.popleft())
                            busy[port] = time.monotonic()
                    if not busy:
                        return
                    oldest = min(busy, key=busy.__getitem__)
                    if not pipe.poll(max(0.0, busy[oldest] + DEADLINE - time.monotonic())):
                        break
                    port, result = pipe.recv()
                    results[port] = result
                    del busy[port]
            del busy[oldest]
            results[oldest] = "killed"
            waiting.extend(busy)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(keep, range(workers)))
    return list(results.values())


def read_all(answer: Connection, reader: str, ports: list[int]) -> None:
    """Read each BMC once, in a session of processes; sends what was read or why not, and CPU seconds."""
    os.setsid()
    answer.send(os.getpid())
    name, _, pool = reader.partition("/")
    workers, threads = map(int, (pool or "1x96").split("x"))
    if name == "nodegauge":
        got = asyncio.run(by_ourselves(ports, workers * threads))
        results = [one if isinstance(one, bytes) else repr(one)[:150] for one in got]
    else:
        results = pooled(name, ports, workers, threads)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    answer.send((results, sum(one.ru_utime + one.ru_stime for one in used)))


def main(given: argparse.Namespace) -> None:
    """Print a line for each fault and reader."""
    for name, reader in itertools.product(given.fault or FAULTS, given.reader):
        with contextlib.ExitStack() as running:
            wrong, ports = FAULTS[name], []
            for half in (range(0, given.bmcs, 2), range(1, given.bmcs, 2)):
                ports += running.enter_context(process(SPAWN, serve, half, given, dict(wrong))).recv()
            answers = running.enter_context(process(SPAWN, read_all, reader, ports))
            group = answers.recv()
            running.callback(os.killpg, group, signal.SIGKILL)
            ps = ["ps", "-s", str(group), "-o", "pss="]
            began, most = time.monotonic(), 0
            while not (done := answers.poll(1.0)) and time.monotonic() - began < given.limit:
                rows = subprocess.run(ps, capture_output=True, check=False).stdout.split()
                most = max(most, sum(map(int, rows)))
            seconds = time.monotonic() - began
            results, cpu = answers.recv() if done else (["not within the limit"], 0.0)
        read = [result for result in results if isinstance(result, bytes)]
        problem = next((result for result in results if isinstance(result, str)), "")
        counts = f"{len(read):4} of {given.bmcs} read, {len(set(read))} ways"
        figures = f"{seconds:5.1f} s, {cpu:6.1f} CPU s, {most / 1024:4.0f} MiB, load {os.getloadavg()[0]:.1f}"
        print(f"{name:26} {reader:12} {counts}, {figures}  {problem}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m fleet.load.ipmi", description=__doc__)
    parser.add_argument("--bmcs", type=int, default=100)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds of a BMC for one answer")
    parser.add_argument("--limit", type=float, default=60, help="seconds that one reader may take")
    parser.add_argument("--reader", nargs="+", default=["nodegauge", *READERS], help="NAME/PROCESSESxTHREADS")
    parser.add_argument("--fault", nargs="*", default=["healthy"], choices=FAULTS, help="none named: all")
    parser.add_argument("--every", type=int, default=1, help="one of so many BMCs has the fault")
    main(parser.parse_args())
