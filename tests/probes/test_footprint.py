"""What a run leaves and costs: what it writes, its memory, and that it lets go of the driver."""

from __future__ import annotations

import pytest

from nodegauge_contract import decode
from support.probing import On, last_message

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
def test_nothing_is_written_but_why_there_is_no_reading(probe: On, form: str) -> None:
    """No file, process or socket, and of a problem the termination log, by the interpreter's audit events."""
    on = probe("h100-sxm-8")
    run = on.python(AUDIT, "health", "--window", "0", "--format", form)
    assert (run.returncode, run.stderr) == (0, "")
    on.environment["LD_LIBRARY_PATH"] = str(on.folder)
    run = on.python(AUDIT, "health", "--window", "0", "--format", form)
    assert (run.returncode, run.stderr.splitlines()) == (0, [f"open {on.termination_log}"])
    assert last_message(on.termination_log).startswith("library-not-found: ")


SIZE = r"""
import re, sys
from nodegauge_probes.cli import main
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
from nodegauge_probes.collectors import sampling
from nodegauge_probes.cli import main
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
