"""Histories as large as they get."""

from msgspec.structs import replace

from nodegauge_judge import History
from nodegauge_judge.history import growth
from nodegauge_judge.history.model import ClockHistory, Counts, GpuHistory, LinkHistory, PortHistory

BOOT = "c0ffee00-0000-4000-8000-000000000000"


def full(gpus: int, *, ports: int) -> History:
    """A node up for a year on which everything has been counted, its GPUs busy, hot and bad for long."""
    counts = Counts(
        **{
            name: 31_536_000_000 - gpu_index if name in growth.CLOCKLIKE else 46_656 + gpu_index
            for gpu_index, name in enumerate(Counts.__struct_fields__)
        }
    )
    counts = replace(counts, energy_cj=31_536_000 * 700 * 100)
    memory = GpuHistory(
        links=LinkHistory(18, True, 36, 1),
        counts=counts,
        idle_dw=1234,
        bad=0b111111,
        warm="10110111",
        braked=3,
    )
    return History(
        boot=BOOT,
        driver="580.105.08",
        boottime_ms=31_536_000_000,
        gpus={f"{gpu_index:08x}": memory for gpu_index in range(gpus)},
        ports={f"mlx5_{gpu_index}/1": PortHistory(46_656, 4000) for gpu_index in range(ports)},
        clock=ClockHistory("0123abcd", 1980),
    )
