"""`python -m testbed`: a simulated GPU cluster to try things on.  Errors say what to do, and end with 1."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from testbed import daemon
from testbed.binaries import build_kubectl, find_or_build
from testbed.cluster import CONTROL_PLANE
from testbed.controlplane_config import Layout
from testbed.errors import TestbedError
from testbed.hardware import FAULTS, Hardware
from testbed.nodes import DEFAULT_NODES, Nodes
from testbed.profiles import names as profile_names
from testbed.rest import Rest
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
    directory = options.dir
    if (known := daemon.holder(directory)) is None:
        find_or_build(progress=_say)
        _say("starting the control plane and the simulated nodes")
        daemon.start(directory, dict(DEFAULT_NODES))
    elif known.ready:
        _say(f"already running (pid {known.pid})")
    else:
        daemon.wait_ready(directory, lambda: daemon.holder(directory) is not None)
    me = _command(directory)
    print(f"""\
  eval "$({me} env)"   # KUBECONFIG, and kubectl and helm on PATH
  kubectl get nodes
  {me} nodes
  {me} fault gpu-h100 p2p-refused
  {me} heal gpu-h100
  {me} down""")


def call_again(module: str, directory: Path, *, usual: Path) -> str:
    program = Path(sys.executable)
    with contextlib.suppress(ValueError):
        program = program.relative_to(Path.cwd())
    message = [str(program), "-m", module]
    if directory != usual.resolve():
        message += ["--dir", str(directory)]
    return shlex.join(message)


def _command(directory: Path) -> str:
    return call_again("testbed", directory, usual=default_directory())


def down(options: Options) -> None:
    """Stop the testbed and everything in it."""
    stopped = daemon.stop(options.dir)
    daemon.clear(options.dir)
    print("stopped" if stopped else "not running")


def status(options: Options) -> None:
    """Show whether the testbed runs, and where."""
    known, count = daemon.holder(options.dir), len(Nodes(options.dir).specs())
    print(f"running: pid {known.pid if known else ''}, {count} nodes, in {options.dir}")
    print(f"kubeconfig: {_kubeconfig(options)}")


def serve(options: Options) -> None:
    """Run a testbed in the foreground (`up` starts this)."""
    plugs = (plug.partition("=") for plug in options.nodes)
    daemon.serve(options.dir, {name: profile or None for name, _, profile in plugs})


def nodes(options: Options) -> None:
    """List the nodes."""
    listed = Rest.of(_kubeconfig(options)).get("/api/v1/nodes")["items"]
    objects = {node["metadata"]["name"]: node for node in listed}
    plugged = Nodes(options.dir)
    shown = [label.rpartition("/")[2].upper() for label in SHOWN_LABELS]
    rows = [("NODE", "READY", "PROFILE", "GPUS", "FAULTS", *shown)]
    for name, spec in sorted(plugged.specs().items()):
        faults = ",".join(plugged.hardware(name).faults()) if spec.profile else ""
        gpus = str(spec.hardware.gpu_count) if spec.hardware else ""
        node = objects.get(name, {"metadata": {}, "status": {}})
        conditions = node["status"].get("conditions", [])
        ready = next((c["status"] for c in conditions if c["type"] == "Ready"), "")
        labels = [node["metadata"].get("labels", {}).get(label) for label in SHOWN_LABELS]
        cells = (name, "Ready" if ready == "True" else "NotReady", spec.profile, gpus, faults, *labels)
        rows.append(tuple(cell or "-" for cell in cells))
    print(table(rows))


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
    start_fault(Nodes(options.dir).hardware(options.node), options)


def start_fault(hardware: Hardware, options: Options) -> None:
    if wrong := [item for item in options.values if "=" not in item]:
        raise TestbedError(f"{wrong[0]!r} is not KEY=VALUE")
    hardware.fault(options.name, **dict(item.split("=", 1) for item in options.values))
    print(f"{options.node}: {', '.join(hardware.faults())}")


def heal(options: Options) -> None:
    """End all faults on a node."""
    heal_all(Nodes(options.dir).hardware(options.node), options)


def heal_all(hardware: Hardware, options: Options) -> None:
    hardware.heal()
    print(f"{options.node}: healthy")


def plug(options: Options) -> None:
    """Add a node with the hardware of a profile."""
    Nodes(options.dir).add({options.node: options.profile})
    print(options.node)


def unplug(options: Options) -> None:
    """Remove a node."""
    Nodes(options.dir).remove(options.node)
    print(f"{options.node}: removed")


def logs(options: Options) -> None:
    """Print the logs of a pod, also of one that is gone."""
    print(Nodes(options.dir).logs(options.namespace, options.pod), end="")


def env(options: Options) -> None:
    """Print KUBECONFIG, and a PATH with kubectl and helm, for `eval "$(python -m testbed env)"`."""
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
    print(f"export KUBECONFIG={shlex.quote(str(_kubeconfig(options)))}")
    print(f'export PATH="$PATH":{shlex.quote(str(programs))}')


def _kubeconfig(options: Options) -> Path:
    return Layout(options.dir / CONTROL_PLANE).admin_kubeconfig


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def add_command(commands: Any, run: Callable[[Options], None], *arguments: str) -> argparse.ArgumentParser:
    """A command of `commands`, as its function is called and explained."""
    added: argparse.ArgumentParser = commands.add_parser(run.__name__, help=run.__doc__)
    for argument in arguments:
        added.add_argument(argument)
    added.set_defaults(run=run)
    return added


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="python -m testbed", description="A simulated GPU cluster on this machine."
    )
    root.add_argument(
        "--dir", type=Path, default=default_directory(), help="its directory (default: %(default)s)"
    )
    commands = root.add_subparsers(metavar="COMMAND", required=True)

    command = partial(add_command, commands)
    for plain in (up, down, status, nodes, faults, env):
        command(plain)
    command(fault, "node", "name").add_argument("values", nargs="*", metavar="key=value")
    command(heal, "node")
    command(plug).add_argument("profile", help=", ".join(profile_names()))
    commands.choices["plug"].add_argument("node")
    command(unplug, "node")
    command(logs, "pod").add_argument("-n", "--namespace", default="default")
    command(serve).add_argument("nodes", nargs="*", metavar="NODE=PROFILE")
    return root


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    options.dir = options.dir.resolve()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it as ignored
    try:
        known = daemon.holder(options.dir)
        if options.run not in (up, down, serve, faults) and not (known and known.ready):
            command = f"{_command(options.dir)} up"
            raise TestbedError(f"no testbed runs in {options.dir}: start one with `{command}`")
        options.run(options)
    except TestbedError as error:
        _say(f"testbed: {error}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    return 0
