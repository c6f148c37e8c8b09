"""A machine whose job waits for its disk: its /proc, as a kernel with four CPUs would fill it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from testbed.hardware.plugged import Hardware
from testbed.hardware.statefile import write as replaced

EVERY_S = 0.5


def files(at: float) -> dict[str, str]:
    """/proc after `at` seconds: an old disk is busy all the time with 140 MB/s, and 8 tasks wait for it."""
    us, sectors = round(1e6 * at), round(140e6 * at / 512)
    pressure = "some avg10=0.00 total={}\nfull avg10=0.00 total={}\n"
    return {
        "stat": "\n".join([_cpu("cpu", 4 * at), *(_cpu(f"cpu{n}", at) for n in range(4))])
        + "\nprocs_running 2\nprocs_blocked 8\n",
        "pressure/cpu": pressure.format(us // 50, 0),
        "pressure/io": pressure.format(us * 9 // 10, us * 6 // 10),
        "pressure/memory": pressure.format(0, 0),
        "meminfo": "MemTotal: 65536000 kB\nMemAvailable: 40960000 kB\nCached: 8192000 kB\n",
        "vmstat": "pswpin 0\npswpout 0\nworkingset_refault_file 0\npgsteal_direct 0\n",
        "diskstats": f" 8 0 sda {round(1100 * at)} 0 {sectors} {round(8000 * at)} 0 0 0 0 8 "
        f"{round(990 * at)} 0\n",
    }


def _cpu(name: str, seconds: float) -> str:
    """A third of the time in user mode, half idle, the rest waiting for I/O; in ticks of 10 ms."""
    return f"{name} {round(30 * seconds)} 0 0 {round(50 * seconds)} {round(20 * seconds)} 0 0 0 0 0"


@contextmanager
def starving(hardware: Hardware, *, busy: int) -> Iterator[None]:
    """Its GPUs work for `busy` per cent of the time, and its disk is why."""
    over, began = threading.Event(), time.monotonic()

    def write() -> None:
        while not over.wait(EVERY_S):
            for name, content in files(1000 + time.monotonic() - began).items():
                path = hardware.directory / "proc" / name
                path.parent.mkdir(exist_ok=True)
                replaced(path, content.encode())

    hardware.load(busy)
    thread = threading.Thread(target=write, daemon=True, name="starving")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        hardware.load(0)
