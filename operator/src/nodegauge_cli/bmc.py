"""`nodegauge bmc URL`: read one server's BMC, over Redfish or IPMI, and judge its power and cooling.

For a person or a script; `bmc_entries` reads a whole inventory.  The password comes from a file or from
standard input, never from the command line, where every user of the machine would see it.  Exit codes are
those of `nodegauge judge`: 0 pass or warn, 1 fail, 2 bad input or no answer, 3 unknown.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TextIO

import click
import msgspec
from msgspec.structs import replace

from nodegauge_bmc.connection import Access, BmcError
from nodegauge_bmc.protocols import read
from nodegauge_bmc.redfish import DEADLINE
from nodegauge_cli.inputs import BadInput, duration
from nodegauge_cli.judging import EXIT_CODES, EXIT_UNKNOWN, outside_cluster
from nodegauge_contract.chassis import ChassisReading
from nodegauge_judge.chassis.judge import ChassisJudgement, judge_chassis

MAX_PASSWORD = 1024
CONCURRENCY = 64
"""BMCs at a time, as in the chart's values."""
REQUESTS_IN_DEADLINE = 6
"""One request may take this part of the deadline, and at least 10 s: a slow BMC needs more of both."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What `--format json` prints."""

    judgement: ChassisJudgement
    reading: ChassisReading


@click.command()
@click.argument("url", required=False, default="")
@click.option("--user", default="", help="The BMC's user. A read-only one is enough.")
@click.option(
    "--password-file",
    type=click.File("r"),
    help="A file whose first line is the password; - for standard input.",
)
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A CA bundle (PEM) that signed the BMC's certificate.",
)
@click.option("--fingerprint", default="", help="SHA-256 of a self-signed certificate, in hex.")
@click.option("--insecure", is_flag=True, help="Do not verify the certificate, and allow http://.")
@click.option(
    "--deadline",
    callback=duration,
    default=f"{DEADLINE:g}s",
    show_default=True,
    help="How long the whole reading may take; one request may take a sixth of it, and at least 10s.",
)
@click.option(
    "--entries",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read all BMCs of a folder with entries as the chart's Secret has them, instead of URL.",
)
@click.option(
    "--nodes",
    type=click.File("r"),
    help="With --entries: a file with the nodes' names, one a line (kubectl get nodes -o name); - for "
    "standard input. Without it, the nodes that have a file are read.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1, max=200),
    default=CONCURRENCY,
    show_default=True,
    help="With --entries: BMCs that are read at a time.",
)
@click.option(
    "--collect-fingerprints",
    is_flag=True,
    help="With --entries: show the certificates of entries without fingerprint, ca and insecure, and write "
    "their fingerprints into the entries after a yes.",
)
@click.option("--yes", is_flag=True, help="With --collect-fingerprints: ask nobody.")
@click.option(
    "--needed",
    type=click.IntRange(min=1, max=64),
    help="Supplies that carry the machine under full load, if you know (a DGX H100 needs 4 of 6).",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Print text, or judgement and reading as JSON.",
)
def bmc(
    url: str,
    user: str,
    password_file: TextIO | None,
    ca: Path | None,
    fingerprint: str,
    insecure: bool,
    deadline: float,
    entries: Path | None,
    nodes: TextIO | None,
    concurrency: int,
    collect_fingerprints: bool,
    yes: bool,
    needed: int | None,
    form: str,
) -> None:
    """Read the BMC at URL (https://HOST[:PORT], or ipmi://HOST[:PORT]) and judge its power and cooling.

    It reads power supplies, voltages, fans, pumps, inlet air, leak detectors and the GPUs that the BMC
    sees, and changes nothing. The certificate is verified against the system's CAs unless you say
    otherwise. For a machine without Redfish, ipmi:// reads IPMI 2.0 over LAN, which tells less, has no
    certificates and is trusted less; auto:// tries Redfish first.

    \b
    Exit code: 0 pass or warn, 1 fail, 2 bad input or no answer, 3 unknown. With --entries that of the worst:
    1 before 2 before 3.

    \b
    Examples:
      nodegauge bmc https://bmc-7.example.com --user reader --password-file ~/.bmc
      nodegauge bmc bmc-7 --user reader --password-file - --fingerprint 9f86d081884c...
      nodegauge bmc ipmi://bmc-8 --user reader --password-file ~/.bmc-ipmi
      nodegauge bmc --entries bmc/ --collect-fingerprints
      nodegauge bmc --entries bmc/
    """
    timeout = max(Access(url="").timeout, deadline / REQUESTS_IN_DEADLINE)
    if entries is not None:
        if url or user or password_file or ca or fingerprint or insecure:
            raise click.UsageError(
                "--entries has address, login and trust in its files: give no URL and no --user"
            )
        from nodegauge_cli import (
            bmc_entries,  # PyYAML and rich are slow to load, and rich is not in the archive
        )

        pace = bmc_entries.Pace(deadline=deadline, timeout=timeout, concurrency=concurrency)
        names = (
            None if nodes is None else [name for line in nodes if (name := line.strip().rpartition("/")[2])]
        )
        inventory, plan = bmc_entries.planned(entries, names=names, pace=pace)
        if collect_fingerprints:
            raise SystemExit(bmc_entries.collect(inventory, plan, pace=pace, yes=yes))
        raise SystemExit(bmc_entries.read_entries(plan, pace=pace, needed=needed, form=form))
    if not url:
        raise click.UsageError("give the URL of a BMC, or --entries FOLDER")
    if nodes or collect_fingerprints or yes:
        raise click.UsageError("--nodes, --collect-fingerprints and --yes need --entries")
    if user and password_file is None:
        raise click.UsageError("--user needs --password-file (- reads standard input)")
    access = Access(
        url=url,
        user=user,
        password=_password(password_file) if password_file is not None else "",
        ca=str(ca) if ca is not None else "",
        fingerprint=fingerprint,
        insecure=insecure,
        timeout=timeout,
    )
    try:
        reading = asyncio.run(read(access, deadline=deadline))
    except BmcError as error:
        raise BadInput(f"{url}: {error}") from None
    judgement = judge_chassis(reading, needed=needed)
    judgement = replace(judgement, findings=outside_cluster(judgement.findings))
    if form == "json":
        encoded = msgspec.json.encode(Outcome(judgement=judgement, reading=reading))
        sys.stdout.write(msgspec.json.format(encoded, indent=2).decode() + "\n")
    else:
        from nodegauge_cli.judge_chassis_text import show_chassis  # rich is not in the archive for Ansible

        show_chassis(reading, judgement)
    raise SystemExit(EXIT_CODES.get(judgement.verdict, EXIT_UNKNOWN))


def _password(file: TextIO) -> str:
    """The first line of the file."""
    try:
        line = file.readline(MAX_PASSWORD)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--password-file: not readable ({type(error).__name__})") from None
    password = line.rstrip("\r\n")
    if not password:
        raise BadInput("--password-file: its first line is empty; write the password there")
    return password
