"""`nodegauge`, the group of all subcommands: name, line of help and module of each.

A subcommand is imported only when it is called, so that `nodegauge --help` works without its libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import click

from nodegauge_cli.output import quiet_pipe


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
    "judge": Lazy(
        "nodegauge_cli.judge",
        "Judge probe results, NodeReports, nccl-tests logs or pasted text.",
        "cli",
    ),
    "report": Lazy("nodegauge_cli.page.command", "Write one HTML file about all GPU nodes.", "cli"),
    "zero": Lazy("nodegauge_cli.zero.command", "Bigger GPUs, more GPUs or offload, for a model.", "cli"),
}


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
            raise click.ClickException(
                f"`{cmd_name}` needs the Python package {error.name}. In a checkout of nodegauge: "
                f"pip install '.[{lazy.extra}]'"
            ) from None
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """The subcommand; a pipe that was closed ends it quietly."""
        with quiet_pipe():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of subcommands in `--help`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUBCOMMANDS[name].help) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nodegauge", prog_name="nodegauge")
def main() -> None:
    """Measure and judge the GPU nodes of a Kubernetes cluster."""


if __name__ == "__main__":
    main(prog_name="nodegauge")
