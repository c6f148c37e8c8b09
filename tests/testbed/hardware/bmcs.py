"""BMCs of plugged machines: each shows its machine as it is at the moment of the request."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import trustme
import yaml

from testbed.hardware.bmc import PASSWORD, USER, serving
from testbed.hardware.machine import HardwareError
from testbed.hardware.plugged import CONDITION, Hardware, boottime_ns
from testbed.hardware.redfish import tree

CA = "ca.pem"
START_SECONDS = 30


def tree_of(hardware: Hardware) -> dict[str, Any]:
    condition = hardware.condition()
    if condition.profile.chassis is None:
        raise HardwareError(f"{condition.profile.name} has no BMC: give its profile a chassis")
    now = boottime_ns()
    watts = [[value for at, value in past.power if at <= now][-1] / 1000 for past in condition.pasts]
    shown = datetime.now(UTC).isoformat(timespec="seconds")
    return tree(condition.machine(), seed=condition.seed, watts=watts, time=shown)


def sampled(hardware: Hardware) -> Callable[[], dict[str, Any]]:
    """The same, made once a second, as BMCs sample their sensors, and anew after every change: one reading
    asks two hundred times."""

    @lru_cache(maxsize=1)
    def at(*_moment: int) -> dict[str, Any]:
        return tree_of(hardware)

    condition = hardware.directory / CONDITION
    return lambda: at(condition.stat().st_mtime_ns, int(time.monotonic()))


@contextmanager
def bmcs(machines: Mapping[str, Hardware], folder: Path) -> Iterator[dict[str, str]]:
    for hardware in machines.values():
        tree_of(hardware)  # before anything is served: it has a BMC
    authority = trustme.CA()
    folder.mkdir(parents=True, exist_ok=True)
    authority.cert_pem.write_to_path(str(folder / CA))
    urls: dict[str, str] = {}
    started, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for node, hardware in machines.items():
                served = serving(sampled(hardware), authority=authority)
                urls[node] = (await stack.enter_async_context(served)).url
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="bmcs")
    thread.start()
    try:
        if not started.wait(START_SECONDS):
            raise HardwareError(f"the BMCs of {', '.join(machines)} did not start in {START_SECONDS} s")
        for node, url in urls.items():
            entry = {"url": url, "username": USER, "password": PASSWORD, "ca": CA}
            (folder / node).write_text(yaml.safe_dump(entry))
        yield urls
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
