"""`make hosts`: simulated GPU hosts behind real sshd, until Ctrl-C or `down`.  `python -m testbed` breaks and
heals them, and has `down`."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hosts import fleet
from testbed import daemon
from testbed.cli import CHECKOUT, call_again
from testbed.errors import TestbedError

USAGE = """\
{count} hosts take logins.  Every command from this folder:
  export ANSIBLE_CONFIG={config}
  {playbook} {play}
  {me} fault {first} gpu-lost gpu=2     # `faults` lists them
  {playbook} {play} --limit {first}
  {me} heal {first}
The inventory is {inventory}.  Ctrl-C, or `{me} down`, ends the hosts."""


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
        me=call_again(directory),
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make hosts", description="Simulated GPU hosts behind real sshd on this machine."
    )
    parser.add_argument("--dir", type=Path, default=CHECKOUT / ".hosts", help="default: %(default)s")
    parser.add_argument("--hosts", type=int, default=8, help="how many (default: %(default)s)")
    options = parser.parse_args(argv)
    directory, machines = options.dir.resolve(), fleet.named(options.hosts)
    try:
        with daemon.until_stopped() as wait, fleet.serving(directory, machines, _say):
            _say(usage(directory, machines))
            wait()
    except TestbedError as error:
        print(f"hosts: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _say(message: str) -> None:
    print(message, flush=True)


if __name__ == "__main__":
    sys.exit(main())
