"""`python -m testbed`: a simulated GPU cluster to try things on.  Errors say what to do, and end with 1."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from testbed import daemon, playground
from testbed.binaries import build_kubectl, find_or_build
from testbed.cluster import CONTROL_PLANE
from testbed.controlplane_config import Layout
from testbed.demo.fleet import FLEET
from testbed.errors import TestbedError
from testbed.hardware import FAULTS, HardwareError
from testbed.matrix.needs import able, needs
from testbed.nodes import Nodes, Offer
from testbed.profiles import names as profile_names
from testbed.rest import Rest
from testbed.table import table

Options = argparse.Namespace

CHECKOUT = Path(__file__).resolve().parents[2]
CALLED = "import sys; sys.argv[0] = '{name}'; from nodegauge_cli.__main__ import start; start()"
"""nodegauge by this name, in which it speaks of itself."""
SHOWN_LABELS = ("interconnect", "nodegauge.dev/nvlink-gbps", "nodegauge.dev/health")


def default_directory() -> Path:
    """$NODEGAUGE_TESTBED, or `.testbed` in the checkout."""
    return Path(os.environ.get("NODEGAUGE_TESTBED") or CHECKOUT / ".testbed")


def up(options: Options) -> None:
    """Start the demo's machines with nodegauge, or find the testbed that runs."""
    directory = options.dir
    if unknown := [name for name in options.nodes if name not in FLEET]:
        raise TestbedError(f"no machine {', '.join(unknown)}: there are {', '.join(FLEET)}")
    if (known := daemon.holder(directory)) is None:
        find_or_build(progress=_say)
        _say("starting the control plane and the simulated nodes")
        daemon.start(directory, ["--bare"] * options.bare + options.nodes, _say)
    elif known.ready:
        _say(f"already running (pid {known.pid})")
    else:
        daemon.wait_ready(directory, lambda: daemon.holder(directory) is not None, _say)
    node = options.nodes[0] if options.nodes else "gpu-h100"
    tries = "kubectl get nodes" if options.bare else "kubectl nodegauge status"
    print(f"""\
  eval "$({call_again(directory)} env)"   # KUBECONFIG; kubectl, helm, nodegauge and testbed on PATH
Then try:
  {tries}
  testbed fault {node} gpu-lost            # `testbed faults` lists all of them
  {"testbed nodes" if options.bare else f"kubectl nodegauge explain {node}"}
docs/practice.md has more. To stop it: testbed down""")


def call_again(directory: Path) -> str:
    """How to call this program for a testbed in the directory."""
    program = Path(sys.executable)
    with contextlib.suppress(ValueError):
        program = program.relative_to(Path.cwd())
    command = [str(program), "-m", "testbed"]
    if directory != default_directory().resolve():
        command += ["--dir", str(directory)]
    return shlex.join(command)


def down(options: Options) -> None:
    """Stop the testbed and everything in it."""
    stopped = daemon.stop(options.dir)
    daemon.clear(options.dir)
    print("stopped" if stopped else "not running")


def status(options: Options) -> None:
    """Show whether the testbed runs, and where."""
    known, count = daemon.holder(options.dir), len(Nodes(options.dir).specs())
    print(f"running: pid {known.pid if known else ''}, {count} nodes, in {options.dir}")
    if (options.dir / CONTROL_PLANE).exists():
        print(f"kubeconfig: {_kubeconfig(options)}")


def serve(options: Options) -> None:
    """Run a testbed in the foreground (`up` starts this)."""
    nodes = playground.profiles(options.nodes or FLEET)
    daemon.serve(options.dir, nodes, None if options.bare else playground.furnished)


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
    rows = [("FAULT", "PARAMETERS", "SHOWS WITH", "EFFECT")]
    shown = needs()
    for name, one in sorted(FAULTS.items()):
        given = " ".join(f"{key}={value}" for key, value in one.parameters().items())
        rows.append((name, given or "-", ", ".join(shown[name]) or "-", one.does))
    print(table(rows))


def fault(options: Options) -> None:
    """Start a fault on a node (`faults` lists them)."""
    if wrong := [item for item in options.values if "=" not in item]:
        raise TestbedError(f"{wrong[0]!r} is not KEY=VALUE")
    given = dict(item.split("=", 1) for item in options.values)
    plugged = Nodes(options.dir)
    hardware = plugged.hardware(options.node)
    try:
        hardware.fault(options.name, **given)
    except HardwareError as error:
        others = {name: spec.profile for name, spec in plugged.specs().items() if spec.profile}
        can = [name for name, profile in others.items() if able(options.name, profile)]
        if options.node in can or not can:
            raise
        raise TestbedError(f"{error}. Nodes that can have it: {', '.join(sorted(can))}") from error

    print(f"{options.node}: {', '.join(hardware.faults())}")


def heal(options: Options) -> None:
    """End a fault on a node, or all of them: what is broken is repaired."""
    hardware = Nodes(options.dir).hardware(options.node)
    hardware.heal(options.name)
    print(f"{options.node}: {', '.join(hardware.faults()) or 'healthy'}")


def load(options: Options) -> None:
    """Put the GPUs of a node under this load, until told otherwise or rebooted."""
    Nodes(options.dir).hardware(options.node).load(options.percent, gpu=options.gpu)
    which = "all GPUs" if options.gpu is None else f"GPU {options.gpu}"
    print(f"{options.node}: {which} at {options.percent} %")


def bmc(options: Options) -> None:
    """Read a node's BMC: supplies, fans, air."""
    Nodes(options.dir).hardware(options.node)
    folder = options.dir / playground.BMCS
    if not (folder / options.node).exists():
        there = sorted(file.name for file in folder.glob("*") if file.suffix != ".pem")
        raise TestbedError(f"{options.node} has no BMC here: {', '.join(there) or 'no node'} has one")
    entry = yaml.safe_load((folder / options.node).read_text())
    command = [sys.executable, "-P", "-m", "nodegauge_cli", "bmc", entry["url"], "--user", entry["username"]]
    access = ["--password-file", "-", "--ca", str(folder / entry["ca"])]
    subprocess.run([*command, *access], input=entry["password"], text=True, check=False)


def reboot(options: Options) -> None:
    """Reboot a node: its containers end, counters begin anew; what is broken stays broken."""
    plugged = Nodes(options.dir)
    hardware = plugged.hardware(options.node)
    plugged.kubelet(options.node, stopped=True)
    hardware.reboot()
    plugged.kubelet(options.node, stopped=False)
    print(f"{options.node}: rebooted")


def kubelet(options: Options) -> None:
    """Stop the kubelet of a node, with its containers, or start it again."""
    Nodes(options.dir).kubelet(options.node, stopped=options.what == "stop")
    print(f"{options.node}: kubelet {'stopped' if options.what == 'stop' else 'runs'}")


def plug(options: Options) -> None:
    """Add a node with the hardware of a profile."""
    offers = Offer.DRA if options.dra else Offer.PLUGIN
    Nodes(options.dir).add({options.node: options.profile}, offers=offers)
    print(options.node)


def unplug(options: Options) -> None:
    """Remove a node."""
    Nodes(options.dir).remove(options.node)
    print(f"{options.node}: removed")


def logs(options: Options) -> None:
    """Print the logs of a pod, also of one that is gone."""
    print(Nodes(options.dir).logs(options.namespace, options.pod), end="")


def env(options: Options) -> None:
    """Print KUBECONFIG and PATH, for `eval "$(python -m testbed env)"`: kubectl, helm, nodegauge, testbed."""
    programs = options.dir / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("nodegauge", "kubectl-nodegauge"):
        _script(programs / name, [sys.executable, "-P", "-c", CALLED.format(name=name)])
    _script(programs / "testbed", [sys.executable, "-P", "-m", "testbed", "--dir", str(options.dir)])
    wanted: dict[str, Callable[[], Path]] = {
        "helm": lambda: find_or_build(_say).helm,
        "kubectl": lambda: build_kubectl(_say),
    }
    for name, find in wanted.items():
        if shutil.which(name) is None:  # one that is there serves as well, and building takes time
            (programs / name).unlink(missing_ok=True)
            (programs / name).symlink_to(find())
    print(f"export KUBECONFIG={shlex.quote(str(_kubeconfig(options)))}")
    print(f'export PATH={shlex.quote(str(programs))}:"$PATH"')


def _script(path: Path, command: Sequence[str]) -> None:
    """A program that is this command, with the Python path that this process has."""
    python = f"PYTHONPATH={shlex.quote(os.environ.get('PYTHONPATH', ''))}"
    path.write_text(f'#!/bin/sh\n{python} exec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)


def _kubeconfig(options: Options) -> Path:
    path = Layout(options.dir / CONTROL_PLANE).admin_kubeconfig
    if not path.exists():
        known = "status, faults, fault, heal and load"
        raise TestbedError(f"{options.dir} has hosts without Kubernetes: only {known} are for them")
    return path


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="python -m testbed", description="A simulated GPU cluster on this machine."
    )
    root.add_argument(
        "--dir", type=Path, default=default_directory(), help="its directory (default: %(default)s)"
    )
    commands = root.add_subparsers(metavar="COMMAND", required=True)

    def command(run: Callable[[Options], None], *arguments: str) -> argparse.ArgumentParser:
        """A command as its function is called and explained."""
        added: argparse.ArgumentParser = commands.add_parser(run.__name__, help=run.__doc__)
        for argument in arguments:
            added.add_argument(argument)
        added.set_defaults(run=run)
        return added

    for plain in (down, status, nodes, faults, env):
        command(plain)
    for starts in (up, serve):
        added = command(starts)
        added.add_argument("nodes", nargs="*", metavar="NODE", help="only these of the demo's machines")
        added.add_argument("--bare", action="store_true", help="without nodegauge, and without faults")
    command(fault, "node", "name").add_argument("values", nargs="*", metavar="key=value")
    command(heal, "node").add_argument("name", nargs="?", help="of one fault (default: all)")
    command(load, "node").add_argument("percent", type=int)
    commands.choices["load"].add_argument("--gpu", type=int, help="this one alone (default: all)")
    command(bmc, "node")
    command(reboot, "node")
    command(kubelet, "node").add_argument("what", choices=("stop", "start"))
    command(plug).add_argument("profile", help=", ".join(profile_names()))
    commands.choices["plug"].add_argument("node")
    commands.choices["plug"].add_argument(
        "--dra", action="store_true", help="offer the GPUs by ResourceSlices and claims alone"
    )
    command(unplug, "node")
    command(logs, "pod").add_argument("-n", "--namespace", default="default")
    return root


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    options.dir = options.dir.resolve()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it as ignored
    try:
        known = daemon.holder(options.dir)
        if options.run not in (up, down, serve, faults) and not (known and known.ready):
            command = f"{call_again(options.dir)} up"
            raise TestbedError(f"no testbed runs in {options.dir}: start one with `{command}`")
        options.run(options)
    except TestbedError as error:
        _say(f"testbed: {error}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    return 0
