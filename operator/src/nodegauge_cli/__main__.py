"""`nodegauge`, the group of all subcommands: name, line of help and module of each.

A subcommand is imported only when it is called, so that `nodegauge --help` works without its libraries.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from nodegauge_cli.output import quiet_pipe

PROGRAM, PLUGIN = "nodegauge", "kubectl nodegauge"
"""How users call it; kubectl finds the plugin by its file, `kubectl-nodegauge`."""


class Lazy(NamedTuple):
    """A subcommand: its module (the function has the subcommand's name), line of help, and pip extra."""

    module: str
    help: str
    extra: str


SUBCOMMANDS = {
    "apply": Lazy("nodegauge_cli.apply", "Create or update a GPUValidationPolicy.", "operator"),
    "bmc": Lazy("nodegauge_cli.bmc", "Read a server's BMC and judge its power and cooling.", "bmc"),
    "check": Lazy("nodegauge_cli.check", "Check that an installed operator is healthy.", "operator"),
    "cleanup": Lazy(
        "nodegauge_cli.cleanup.command", "Remove everything nodegauge wrote to a cluster.", "operator"
    ),
    "diff": Lazy("nodegauge_cli.diff", "What differs between two nodes.", ""),
    "explain": Lazy("nodegauge_cli.explain", "What a node carries, why, and what to do.", ""),
    "history": Lazy("nodegauge_cli.history", "What has changed on a node, day by day.", ""),
    "judge": Lazy(
        "nodegauge_cli.judge",
        "Judge probe results, NodeReports, nccl-tests logs or pasted text.",
        "cli",
    ),
    "node": Lazy("nodegauge_cli.node.command", "Measure and judge this machine.", "probes,cli"),
    "nodes": Lazy("nodegauge_cli.nodes", "A line per node, chosen and sorted as asked.", ""),
    "override": Lazy("nodegauge_cli.override", "Overrule nodegauge on one node for a time.", ""),
    "pause": Lazy("nodegauge_cli.pause", "Pause a policy, or end that.", ""),
    "report": Lazy("nodegauge_cli.page.command", "Write one HTML file about all GPU nodes.", ""),
    "run": Lazy("nodegauge_cli.run", "Measure a node now, and wait for the result.", ""),
    "status": Lazy("nodegauge_cli.status", "The fleet on one screen.", ""),
    "ticket": Lazy(
        "nodegauge_cli.ticket.command", "What a vendor needs to replace a part of a node.", "operator"
    ),
    "watch": Lazy("nodegauge_cli.watch", "A line per change, as it happens.", ""),
    "why": Lazy("nodegauge_cli.why", "Why a pending pod does not get a node.", ""),
    "zero": Lazy("nodegauge_cli.zero.command", "Bigger GPUs, more GPUs or offload, for a model.", "cli"),
}


JUDGES = frozenset({"bmc", "judge", "node"})
"""Subcommands whose exit code 1 says that hardware is bad."""


class CannotJudge(click.ClickException):
    """One of them could not begin."""

    exit_code = 2


class LazyGroup(click.Group):
    """A group whose subcommands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in alphabetical order."""
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand; a missing library ends in an error that names the pip extra to install."""
        lazy = SUBCOMMANDS.get(cmd_name)
        if lazy is None:
            return None
        try:
            command = getattr(import_module(lazy.module), cmd_name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("nodegauge_"):
                raise
            refusal = CannotJudge if cmd_name in JUDGES else click.ClickException
            raise refusal(
                f"`{cmd_name}` needs the Python package {error.name}. In a checkout of nodegauge: "
                f"pip install '.[{lazy.extra}]'"
            ) from None
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """The subcommand; a pipe that was closed ends it quietly."""
        with quiet_pipe():
            return super().invoke(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of subcommands by their lines of help, and options of the group; imports no subcommand."""
        known = [(name, SUBCOMMANDS[name].help) for name in self.list_commands(ctx)]
        own = [CompletionItem(name, help=text) for name, text in known if name.startswith(incomplete)]
        return own + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of subcommands in `--help`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUBCOMMANDS[name].help) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nodegauge", prog_name="nodegauge")
def main() -> None:
    """Measure and judge the GPU nodes of a Kubernetes cluster."""


def start() -> None:
    """The programs `nodegauge` and `kubectl-nodegauge`: help and errors name the one that was called."""
    plugin = Path(sys.argv[0]).name.startswith("kubectl-")
    main(prog_name=PLUGIN if plugin else PROGRAM, complete_var="_NODEGAUGE_COMPLETE")


if __name__ == "__main__":
    start()
