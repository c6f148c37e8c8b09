"""What a run leaves and costs: the size of its message, what it writes, its memory, its time."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from builders.probing import Probe
from nodegauge_contract import (
    MESSAGE_LIMIT,
    Result,
    decode,
    encode,
    encode_message,
)
from testbed.profiles import Profile

On = Callable[[str | Profile], Probe]


def busy(result: Result) -> Result:
    """The same machine under load, no two numbers alike: what compresses worst."""
    plain = json.loads(encode(result))
    state = 88172645463325252

    def noise(low: int, high: int) -> int:
        nonlocal state
        state = (state ^ state << 13) % 2**64
        state ^= state >> 7
        state = (state ^ state << 17) % 2**64
        return low + state % (high - low)

    for gpu in plain["gpus"]:
        for name in ("usage_mw", "average_mw", "instant_mw"):
            gpu["power"][name] = noise(300_000, 700_000)
        gpu["power"]["energy_mj"] = noise(10**9, 10**12)
        gpu["temperature"] = {name: noise(30, 95) for name in gpu["temperature"]}
        gpu["counters"] = {
            name: "269-271" if name == "trio" else noise(10**9, 10**14) for name in gpu["counters"]
        }
        gpu["events"]["seen"] = [{"bit": bit, "samples": noise(1, 13), "longest": 1} for bit in (4, 32)]
        for name, (low, high) in {
            "utilization": (20, 100),
            "temperature": (60, 80),
            "power_mw": (300_000, 700_000),
            "sm_mhz": (1200, 1980),
        }.items():
            gpu["window"][name] = {which: noise(low, high) for which in ("min", "median", "max")}
    return decode(json.dumps(plain))


def test_the_largest_profile_fits_the_message_when_busy(probe: On) -> None:
    """Eight GPUs and sixteen network cards, every reading different, with a quarter of the room to spare."""
    result = busy(probe("h100-sxm-8").result())
    message = encode_message(result)
    assert decode(message) == result
    assert len(message) < MESSAGE_LIMIT * 3 // 4


@pytest.mark.parametrize("options", [("--window", "x"), ("--hz", "0", "--deadline", "0"), ("--nothing",)])
def test_wrong_arguments_are_exit_code_two(probe: On, options: tuple[str, ...]) -> None:
    """Nothing is measured and nothing is written."""
    on = probe("pcie-phb-2")
    run = on.run(*options)
    assert run.returncode == 2
    assert run.stdout == ""
    assert options[0] in run.stderr
    assert not on.termination_log.exists()


AUDIT = """
import os, runpy, sys
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {
    "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "os.chown", "subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "os.system",
    "socket.__new__", "socket.connect", "socket.bind",
}
def hook(event, arguments):
    if event == "open" and arguments[2] & WRITES:
        os.write(2, f"open {os.fsdecode(arguments[0])}\\n".encode())
    elif event in CHANGES:
        os.write(2, f"{event} {arguments}\\n".encode())
sys.dont_write_bytecode = True
sys.addaudithook(hook)
sys.argv = ["nodegauge_probes", *sys.argv[1:]]
runpy.run_module("nodegauge_probes", run_name="__main__")
"""


@pytest.mark.parametrize("form", ["json", "table"])
def test_nothing_is_written_but_the_termination_log(probe: On, form: str) -> None:
    """No other file, no process, no socket: the interpreter's own audit events say so."""
    on = probe("h100-sxm-8")
    run = on.python(AUDIT, "health", "--window", "0", "--format", form)
    assert run.returncode == 0
    assert run.stderr.splitlines() == [f"open {on.termination_log}"]


SIZE = r"""
import re, sys
from nodegauge_probes.__main__ import main
main()
peak = re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1]
print(peak, *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def test_the_probe_is_small(probe: On) -> None:
    """Under 60 MB of memory, and nothing of Kubernetes, YAML or asyncio in the process."""
    on = probe("h100-sxm-8")
    run = on.python(SIZE, "health", "--window", "0")
    kib, *modules = run.stderr.split()
    assert int(kib) < 60 * 1024
    assert not {"kubernetes", "kopf", "yaml", "asyncio", "nodegauge_judge", "nodegauge_operator"} & set(
        modules
    )
    assert "pynvml" in modules


CLOSING = """
import sys, pynvml
from nodegauge_probes import sampling
from nodegauge_probes.__main__ import main
shutdown = pynvml.nvmlShutdown
pynvml.nvmlShutdown = lambda: (shutdown(), print("closed", file=sys.stderr))
if sys.argv.pop() == "broken":
    sampling.watch = None
main()
"""


@pytest.mark.parametrize(("state", "problem"), [("sound", None), ("broken", "crashed")])
def test_the_driver_is_let_go_of_once(probe: On, state: str, problem: str | None) -> None:
    """An open client blocks driver unload and GPU reset, so a crash in between closes it as well."""
    run = probe("titan-rtx-nv2").python(CLOSING, "health", "--window", "0", state)
    assert run.stderr == "closed\n"
    result = decode(run.stdout)
    assert (result.problem and result.problem.kind) == problem
