"""The options of `nodegauge zero`, in groups: the model, where the machines come from, and communication
alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from msgspec import Struct

from nodegauge_judge.zero.estimators import Checkpointing, Optimizer, Precision
from nodegauge_judge.zero.shape import parse_params
from nodegauge_judge.zero.ways import Way

POSITIVE = click.FloatRange(min=0, min_open=True)
WAYS = {"node": Way.NODE, "more": Way.MORE, "cpu": Way.CPU, "nvme": Way.NVME}


def _params(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    try:
        return parse_params(text) if text is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _of(kind: Any) -> click.Choice[str]:
    return click.Choice([str(each) for each in kind])


MODEL = (
    click.option("--model", callback=_params, help="Parameters of the model to train: 7B, 124M, 1.5e9."),
    click.option(
        "--precision", type=_of(Precision), default="bf16", show_default=True, help="Of the passes."
    ),
    click.option(
        "--optimizer", type=_of(Optimizer), default="adam", show_default=True, help="Whose state is kept."
    ),
    click.option(
        "--sequence",
        type=click.IntRange(1, 10**7),
        default=4096,
        show_default=True,
        help="Tokens of a sequence.",
    ),
    click.option(
        "--batch",
        type=click.IntRange(1, 10**6),
        default=1,
        show_default=True,
        help="Sequences a step and GPU.",
    ),
    click.option(
        "--checkpointing",
        type=_of(Checkpointing),
        default="full",
        show_default=True,
        help="Activations that the backward pass computes again.",
    ),
    click.option(
        "--compare", nargs=2, metavar="CLASS CLASS", help="Only these two classes, by part of their name."
    ),
    click.option("--manifest", is_flag=True, help="Print only a manifest of what to take."),
    click.option(
        "--way", type=click.Choice(list(WAYS)), help="The manifest's way. Default: the first that fits."
    ),
)
SOURCE = (
    click.option("--node", help="Use only this node of the cluster."),
    click.option(
        "--report",
        "file",
        type=click.File("rb"),
        help="NodeReports; with --params an NCCL probe result or an nccl-tests log, too (- for stdin).",
    ),
    click.option(
        "--reference",
        is_flag=True,
        help="Published bandwidths by GPU model, not measured here; needs no cluster.",
    ),
    click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True),
)
COMMUNICATION = (
    click.option(
        "--params", callback=_params, help="Communication alone, of so many parameters: 7B, 124M, 7e9."
    ),
    click.option(
        "--bytes",
        "width",
        type=POSITIVE,
        default=2.0,
        show_default=True,
        help="Bytes sent per parameter: 2 for fp16 and bf16, 4 for fp32.",
    ),
    click.option("--gpus", type=click.IntRange(2, 64), help="Ranks on the node. Default: all of its GPUs."),
    click.option(
        "--micro-batches",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Micro-batches per step.",
    ),
    click.option(
        "--bucket", help="Bytes per call, for example 25MiB. Default: large enough to ignore latency."
    ),
    click.option(
        "--compute",
        type=POSITIVE,
        help="Seconds of forward and backward pass per step, to see how much communication they hide.",
    ),
    click.option("--busbw", multiple=True, help="GB/s: 230, or all_gather=361. Can be repeated."),
    click.option("--p2p-off", type=POSITIVE, help="GB/s with P2P disabled. Requires --busbw."),
)


def with_options(*groups: tuple[Callable[[Any], Any], ...]) -> Callable[[Any], Any]:
    """A decorator that adds the groups, the first one first in `--help`."""

    def add(command: Any) -> Any:
        for option in reversed([option for group in groups for option in group]):
            command = option(command)
        return command

    return add


class Options(Struct, frozen=True, kw_only=True):
    """What the user gave."""

    model: float | None
    precision: str
    optimizer: str
    sequence: int
    batch: int
    checkpointing: str
    compare: tuple[str, str] | None
    manifest: bool
    way: str | None
    node: str | None
    file: Any
    reference: bool
    form: str
    params: float | None
    width: float
    gpus: int | None
    micro_batches: int
    bucket: str | None
    compute: float | None
    busbw: tuple[str, ...]
    p2p_off: float | None


GROUPS = {
    "params": ("width", "gpus", "micro_batches", "bucket", "compute", "busbw", "p2p_off"),
    "model": ("precision", "optimizer", "sequence", "batch", "checkpointing", "compare", "manifest", "way"),
}


def check(context: click.Context) -> None:
    """Refuse options of the one question that were given with the other.  Raises `click.UsageError`."""
    names = {p.name: p.opts[0] for p in context.command.params}

    def given(name: str) -> bool:
        source = context.get_parameter_source(name)
        return source is not None and source is not click.core.ParameterSource.DEFAULT

    if given("params") and given("model"):
        raise click.UsageError("use --model (what fits, and how) or --params (communication alone), not both")
    for leader, followers in GROUPS.items():
        wrong = [names[name] for name in followers if given(name) and not given(leader)]
        if wrong:
            raise click.UsageError(f"{wrong[0]} requires --{leader}")
