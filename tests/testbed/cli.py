"""The command `python -m testbed`: a simulated GPU cluster to try things on.

Each command is a few lines over `daemon` (the process that stays), `nodes` (plugging) and the hardware's own
files.  Errors go to standard error, say what to do, and end with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from testbed import daemon
from testbed.binaries import build_kubectl, find_or_build
from testbed.cluster import read_logs
from testbed.errors import TestbedError
from testbed.hardware import FAULTS
from testbed.kubelet.api import Api
from testbed.nodes import DEFAULT_NODES, Nodes
from testbed.profiles import names as profile_names
from testbed.table import table

Object = dict[str, Any]
Options = argparse.Namespace

CHECKOUT = Path(__file__).resolve().parents[2]
SHOWN_LABELS = ("interconnect", "nodegauge.dev/nvlink-gbps", "nodegauge.dev/health")


def default_directory() -> Path:
    """$NODEGAUGE_TESTBED, or `.testbed` in the checkout."""
    return Path(os.environ.get("NODEGAUGE_TESTBED") or CHECKOUT / ".testbed")


def up(options: Options) -> None:
    """Start a testbed, or find the one that runs."""
    with daemon.only_one(options.dir):
        result = daemon.holder(options.dir)
        if result is None:
            find_or_build(progress=_say)
            _say("starting the control plane and the simulated nodes")
            result = daemon.start(options.dir, dict(DEFAULT_NODES))
        elif not result.ready:
            result = daemon.wait_ready(options.dir, result.alive)
        else:
            _say(f"already running (pid {result.pid})")
    print(_usage(result, options.dir))


def _usage(result: daemon.Holder, directory: Path) -> str:
    """What to type next."""
    me = _command(directory)
    lines = [
        f'eval "$({me} env)"   # KUBECONFIG, and kubectl and helm on PATH',
        "kubectl get nodes",
        f"{me} nodes",
        f"{me} fault gpu-h100 p2p-refused",
        f"{me} heal gpu-h100",
        f"{me} down",
    ]
    return "\n".join(f"  {line}" for line in lines)


def _command(directory: Path) -> str:
    """How to call this program again, from where it was called."""
    program = Path(sys.executable)
    with contextlib.suppress(ValueError):
        program = program.relative_to(Path.cwd())
    message = [str(program), "-m", "testbed"]
    if directory != default_directory().resolve():
        message += ["--dir", str(directory)]
    return shlex.join(message)


def down(options: Options) -> None:
    """Stop the testbed and everything in it."""
    with daemon.only_one(options.dir):
        print("stopped" if daemon.stop(options.dir) else "not running")
        daemon.clear(options.dir)


def status(options: Options) -> None:
    """Show whether the testbed runs, and where."""
    result = _running(options)
    specs = Nodes(options.dir).specs()
    print(f"running: pid {result.pid}, {len(specs)} nodes, in {options.dir}")
    print(f"kubeconfig: {result.kubeconfig}")


def serve(options: Options) -> None:
    """Run a testbed in the foreground (`up` starts this)."""
    plugs = (plug.partition("=") for plug in options.nodes)
    daemon.serve(options.dir, {name: profile or None for name, _, profile in plugs})


def nodes(options: Options) -> None:
    """List the nodes."""
    result = _running(options)
    objects = asyncio.run(_fetch_nodes(Path(result.kubeconfig)))
    plugged = Nodes(options.dir)
    heading = (
        "NODE",
        "READY",
        "PROFILE",
        "GPUS",
        "FAULTS",
        *(label.rpartition("/")[2].upper() for label in SHOWN_LABELS),
    )
    rows = [heading]
    for name, spec in sorted(plugged.specs().items()):
        faults = ",".join(plugged.hardware(name).faults()) if spec.profile else ""
        gpus = str(spec.hardware.gpu_count) if spec.hardware else ""
        node = objects.get(name, {})
        labels = node.get("metadata", {}).get("labels", {})
        cells = (
            name,
            _ready(node),
            spec.profile,
            gpus,
            faults,
            *(labels.get(label) for label in SHOWN_LABELS),
        )
        rows.append(tuple(cell or "-" for cell in cells))
    print(table(rows))


async def _fetch_nodes(kubeconfig: Path) -> dict[str, Object]:
    async with await Api.connect(kubeconfig, agent="testbed") as api:
        listed = await api.get("/api/v1/nodes")
    return {node["metadata"]["name"]: node for node in listed["items"]}


def _ready(node: Object) -> str:
    """The Ready condition in the words of `kubectl get nodes`."""
    if not node:
        return "absent"
    conditions = {
        condition["type"]: condition["status"] for condition in node["status"].get("conditions", [])
    }
    return "Ready" if conditions.get("Ready") == "True" else "NotReady"


def faults(options: Options) -> None:
    """List the faults, with their parameters and defaults."""
    del options
    rows = [("FAULT", "PARAMETERS", "EFFECT")]
    for name, one in sorted(FAULTS.items()):
        given = " ".join(f"{key}={value}" for key, value in one.parameters().items())
        rows.append((name, given or "-", one.does))
    print(table(rows))


def fault(options: Options) -> None:
    """Start a fault on a node (`faults` lists them)."""
    _running(options)
    values = dict(_pair(item) for item in options.values)
    hardware = Nodes(options.dir).hardware(options.node)
    hardware.fault(options.name, **values)
    print(f"{options.node}: {', '.join(hardware.faults())}")


def _pair(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not (key and equals):
        raise TestbedError(f"{item!r} is not KEY=VALUE")
    return key, value


def heal(options: Options) -> None:
    """End all faults on a node."""
    _running(options)
    Nodes(options.dir).hardware(options.node).heal()
    print(f"{options.node}: healthy")


def plug(options: Options) -> None:
    """Add a node with the hardware of a profile."""
    _running(options)
    plugged = Nodes(options.dir)
    name = options.node or _free_name(options.profile, taken=set(plugged.specs()))
    plugged.add({name: options.profile})
    print(name)


def _free_name(profile: str, *, taken: set[str]) -> str:
    numbered = (f"{profile}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in numbered if name not in taken)


def unplug(options: Options) -> None:
    """Remove a node."""
    _running(options)
    Nodes(options.dir).remove(options.node)
    print(f"{options.node}: removed")


def logs(options: Options) -> None:
    """Print the logs of a pod, also of one that is gone."""
    _running(options)
    print(read_logs(Nodes(options.dir).pods, namespace=options.namespace, pod=options.pod), end="")


def env(options: Options) -> None:
    """Print KUBECONFIG, and a PATH with kubectl and helm, for `eval "$(python -m testbed env)"`."""
    kubeconfig = _running(options).kubeconfig
    programs = options.dir / "bin"
    programs.mkdir(exist_ok=True)
    wanted: dict[str, Callable[[], Path]] = {
        "helm": lambda: find_or_build(_say).helm,
        "kubectl": lambda: build_kubectl(_say),
    }
    for name, find in wanted.items():
        if shutil.which(name) is None:  # one that is there serves as well, and building takes time
            (programs / name).unlink(missing_ok=True)
            (programs / name).symlink_to(find())
    print(f"export KUBECONFIG={shlex.quote(kubeconfig)}")
    print(f'export PATH="$PATH":{shlex.quote(str(programs))}')


def _running(options: Options) -> daemon.Holder:
    result = daemon.holder(options.dir)
    if result is None or not result.ready:
        raise TestbedError(f"no testbed runs in {options.dir}: start one with `{_command(options.dir)} up`")
    return result


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(
        prog="python -m testbed", description="A simulated GPU cluster on this machine."
    )
    root.add_argument(
        "--dir", type=Path, default=default_directory(), help="its directory (default: %(default)s)"
    )
    commands = root.add_subparsers(metavar="COMMAND", required=True)

    def command(run: Callable[[Options], None], *arguments: str) -> argparse.ArgumentParser:
        added = commands.add_parser(run.__name__, help=run.__doc__, description=run.__doc__)
        for argument in arguments:
            added.add_argument(argument)
        added.set_defaults(run=run)
        return added

    for plain in (up, down, status, nodes, faults, env):
        command(plain)
    command(fault, "node", "name").add_argument("values", nargs="*", metavar="key=value")
    command(heal, "node")
    command(plug).add_argument("profile", help=", ".join(profile_names()))
    commands.choices["plug"].add_argument("node", nargs="?", help="default: the profile and a number")
    command(unplug, "node")
    command(logs, "pod").add_argument("-n", "--namespace", default="default")
    command(serve).add_argument("nodes", nargs="*", metavar="NODE=PROFILE")
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    options = parser().parse_args(argv)
    options.dir = options.dir.resolve()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it as ignored
    try:
        options.run(options)
    except TestbedError as error:
        _say(f"testbed: {error}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    return 0
