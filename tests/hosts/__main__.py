"""`make hosts`, `python -m hosts`: simulated GPU hosts behind real sshd, until Ctrl-C or `down`."""

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hosts import fleet
from testbed import daemon
from testbed.cli import CHECKOUT, add_command, call_again, faults, heal_all, start_fault
from testbed.errors import TestbedError
from testbed.profiles import names as profile_names
from testbed.table import table

Options = argparse.Namespace
COUNT = 8
USAGE = """\
{count} hosts take logins.  Every command from this folder:
  export ANSIBLE_CONFIG={config}
  {playbook} {play}
  {me} fault {first} gpu-lost gpu=2     # `faults` lists them
  {playbook} {play} --limit {first}
  {me} heal {first}
  {me} status
The inventory is {inventory}.  Ctrl-C, or `{me} down`, ends the hosts."""


def default_directory() -> Path:
    return Path(os.environ.get("NODEGAUGE_HOSTS") or CHECKOUT / ".hosts")


def up(options: Options) -> None:
    """Start the hosts; Ctrl-C or `down` ends them."""
    machines = fleet.named(options.hosts, options.machine or fleet.MACHINES)
    with daemon.until_stopped() as wait, fleet.serving(options.dir, machines, _say):
        _say(usage(options.dir, machines))
        wait()


def usage(directory: Path, machines: dict[str, str]) -> str:
    def shown(path: Path) -> str:
        return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))

    return USAGE.format(
        count=len(machines),
        config=shown(directory / "ansible.cfg"),
        playbook=shown(Path(sys.executable).parent / "ansible-playbook"),
        play=shown(directory / "accept.yml"),
        inventory=shown(directory / "hosts.yml"),
        first=next(iter(machines)),
        me=_me(directory),
    )


def down(options: Options) -> None:
    """End the hosts."""
    print("stopped" if daemon.stop(options.dir) else "not running")


def status(options: Options) -> None:
    """List the hosts, with their machines and faults."""
    ports = fleet.ports(options.dir)
    rows = [("HOST", "PORT", "MACHINE", "GPUS", "FAULTS")]
    for name, port in ports.items():
        hardware = fleet.hardware_of(options.dir, name)
        faulty = ",".join(hardware.faults()) or "-"
        rows.append((name, str(port), hardware.profile.name, str(hardware.gpu_count), faulty))
    print(table(rows))


def fault(options: Options) -> None:
    """Start a fault on a host (`faults` lists them)."""
    start_fault(fleet.hardware_of(options.dir, options.node), options)


def heal(options: Options) -> None:
    """End a fault on a host, or all of them."""
    heal_all(fleet.hardware_of(options.dir, options.node), options)


def _me(directory: Path) -> str:
    return call_again("hosts", directory, usual=default_directory())


def _say(message: str) -> None:
    print(message, flush=True)


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="make hosts", description="Simulated GPU hosts behind real sshd on this machine."
    )
    root.add_argument("--dir", type=Path, default=default_directory(), help="default: %(default)s")
    root.add_argument("--hosts", type=int, default=COUNT, help="how many (default: %(default)s)")
    root.add_argument(
        "--machine", action="append", help=f"a profile; more than one in turn: {', '.join(profile_names())}"
    )
    root.set_defaults(run=up)
    commands = root.add_subparsers(metavar="COMMAND")

    command = partial(add_command, commands)
    for plain in (down, status, faults):
        command(plain)
    command(fault, "node", "name").add_argument("values", nargs="*", metavar="key=value")
    command(heal, "node").add_argument("name", nargs="?", help="of one fault (default: all)")
    return root


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    options.dir = options.dir.resolve()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it as ignored
    try:
        known = daemon.holder(options.dir)
        if options.run in (status, fault, heal) and not (known and known.ready):
            raise TestbedError(f"no hosts run in {options.dir}: start some with `make hosts`")
        options.run(options)
    except TestbedError as error:
        print(f"hosts: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
