"""`make e2e`: fetches and builds what is needed, runs the scenario in namespaces of its own, and ends them.
Exit code 0 also where it cannot be run, which it says with the reason (1 with --required)."""

import argparse
import os
import platform
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from e2e import node_parts
from e2e.inside import DRA_STAGES, PROFILE, STAGES, Order, names_of
from e2e.sandbox import cgroup_parents, remove_cgroups, sandboxed
from testbed import profiles
from testbed.binaries import CONTAINERD_TOOLS, DRA_TOOL, build, build_kubelet, cache_folder, find_or_build
from testbed.driver.build import library_folder
from testbed.errors import TestbedError
from testbed.interruption import alone, exit_code, interruptible, scratch
from testbed.processes import Failed

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS = {
    "unshare": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "apt-get": "apt (the container runtime comes from Debian's packages)",
    "dpkg": "dpkg",
    "cc": "gcc libc6-dev",
}
DRA = "dra"
"""The node with DRA alone, and its folder; the other's is the run's own."""
CAP_SYS_ADMIN, CAP_NET_ADMIN = 21, 12
HIDDEN = (Path("/var"), Path("/run"))
"""Folders that the node has as its own: what it needs of the machine must not lie below them."""


def missing() -> str:
    """Why it cannot be run here, in one line; empty when it can."""
    if platform.system() != "Linux":
        return f"it needs Linux, and this is {platform.system()}"
    if os.geteuid() != 0:
        return "it needs root, to make namespaces and run a container runtime in them"
    lines = Path("/proc/self/status").read_text().splitlines()
    capabilities = int(next(line for line in lines if line.startswith("CapEff:")).split()[1], 16)
    for number, name in ((CAP_SYS_ADMIN, "CAP_SYS_ADMIN"), (CAP_NET_ADMIN, "CAP_NET_ADMIN")):
        if not capabilities >> number & 1:
            return f"root has no {name} here (a container without privilege?)"
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            return f"there is no `{program}` on PATH; Debian and Ubuntu: apt-get install {package}"
    return ""


def check_folders(folders: Sequence[Path]) -> None:
    """Raises TestbedError for a folder that the node would not see."""
    for folder in folders:
        for hidden in HIDDEN:
            if folder.resolve().is_relative_to(hidden.resolve()):
                raise TestbedError(
                    f"{folder} is below {hidden}, which the node has as its own: set TMPDIR, NODEGAUGE_CACHE"
                    " or the checkout's place to a folder elsewhere"
                )


def nodes_of(steps: Sequence[str]) -> dict[str, list[str]]:
    """By node, which of its steps to run: none for all of them.  A node of which no step is asked for is
    left out.  TestbedError for a step that there is not."""
    known = {"": names_of(STAGES), DRA: names_of(DRA_STAGES)}
    every = [name for names in known.values() for name in names]
    if unknown := sorted(set(steps) - set(every)):
        raise TestbedError(f"no such step: {', '.join(unknown)}; there are {', '.join(every)}")
    own = {node: [name for name in steps if name in names] for node, names in known.items()}
    return {node: names for node, names in own.items() if names or not steps}


def prepare(directory: Path, *, steps: Sequence[str]) -> list[Path]:
    """The order of each node, in a folder of its own."""
    wanted = nodes_of(steps)
    cache = cache_folder(os.environ)
    check_folders([directory, cache, TESTS, Path(sys.prefix), Path(sys.executable)])
    find_or_build(_say)
    kubelet = build_kubelet(_say)
    try:
        runtime, images = _packaged(cache)
    except Failed as error:
        _say(f"{error}\nTrying again with freshly fetched package lists:")
        node_parts.fetch_lists(cache, progress=_say)
        runtime, images = _packaged(cache)
    library_folder(profiles.load(PROFILE).driver.version)  # compiled now, not on the scenario's time
    orders = []
    for node, own in wanted.items():
        order = Order(
            directory=str(directory / node),
            kubelet=str(kubelet),
            runtime=str(runtime),
            images=tuple(map(str, images)),
            containerd=str(build(*CONTAINERD_TOOLS, progress=_say)[0].parent) if node == DRA else "",
            plugin=str(build(DRA_TOOL, progress=_say)[0]) if node == DRA else "",
            steps=tuple(own),
        )
        orders.append(directory / node / "order.json")
        orders[-1].parent.mkdir(exist_ok=True)
        orders[-1].write_bytes(msgspec.json.encode(order))
    return orders


def _packaged(cache: Path) -> tuple[Path, list[Path]]:
    return node_parts.fetch_runtime(cache, progress=_say).root, node_parts.make_images(cache, progress=_say)


def perform(directory: Path, *, steps: Sequence[str]) -> int:
    began = time.monotonic()
    orders = prepare(directory, steps=steps)
    _say(f"prepared in {time.monotonic() - began:.1f} s")
    lock = cache_folder(os.environ) / "e2e" / "run.lock"
    # Each run would remove the other's cgroups.
    with alone(lock, waits=lambda: _say("another run is under way; waiting for its end")):
        code = _perform(orders)
    _say(f"everything took {time.monotonic() - began:.1f} s")
    return code


def _perform(orders: Sequence[Path]) -> int:
    """Every node at the same time; the first code that is none of success."""
    shared = cgroup_parents()
    environ = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}", "TMPDIR": "/tmp"}
    try:
        with ExitStack() as stack:
            commands = [[sys.executable, "-m", "e2e.inside", str(order)] for order in orders]
            begun = [stack.enter_context(sandboxed(command, environ=environ)) for command in commands]
            return next((code for process in begun if (code := process.wait())), 0)
    finally:
        for order in orders:
            remove_cgroups(order.parent, there_before=shared)


def _say(message: str) -> None:
    print(message, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make e2e", description="Test nodegauge on a real kubelet.")
    parser.add_argument("steps", nargs="*", help="run only these steps once the node is up")
    parser.add_argument("--keep", action="store_true", help="keep the logs also after success")
    parser.add_argument(
        "--required", action="store_true", help="fail instead of skipping where it cannot run"
    )
    options = parser.parse_args(arguments)
    if reason := missing():
        _say(f"make e2e is skipped: {reason}.")
        return int(options.required)
    interruptible(says="interrupted: ending everything that was started")

    def work() -> int:
        with scratch("e2e", keep=options.keep) as directory:
            if code := perform(directory, steps=options.steps):
                raise TestbedError(f"it ended with {code}, see above")
        return 0

    return exit_code("e2e", work)


if __name__ == "__main__":
    sys.exit(main())
