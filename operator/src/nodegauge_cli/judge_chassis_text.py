"""A BMC's reading and its judgement as text: the verdict, whether the machine is on and what was
read, the reasons, what to do, then supplies and GPUs."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from nodegauge_bmc.connection import NO_ANSWER
from nodegauge_bmc.values import is_number
from nodegauge_cli.judge_text import SUPPLIES, grid, head, plain_console, print_findings, write
from nodegauge_cli.output import printable
from nodegauge_contract.chassis import IPMI, BoardGpu, ChassisReading, Supply
from nodegauge_judge.chassis.judge import ChassisJudgement

UNREAD_LINES = 5
"""Resources that a BMC did not give and that the text lists."""


def show_chassis(reading: ChassisReading, judgement: ChassisJudgement) -> None:
    """Print the judgement of a BMC's reading, its supplies and GPUs, and what could not be read."""
    console = plain_console()
    with console.capture() as captured:
        console.print(_chassis_head(reading, judgement))
        print_findings(console, judgement.findings, node="")
        if reading.supplies:
            console.print()
            console.print(_supplies(reading.supplies))
        if reading.gpus:
            console.print()
            console.print(_board_gpus(reading.gpus))
        for unread in reading.unread[:UNREAD_LINES]:
            console.print(Text(printable(f"unread   {unread.path}: {unread.reason}")), soft_wrap=True)
        if any(unread.reason.startswith(NO_ANSWER) for unread in reading.unread):
            console.print("         slow: raise --deadline to wait longer for each")
        if (rest := len(reading.unread) - UNREAD_LINES) > 0:
            console.print(f"         and {rest} more (--format json lists them)")
    write(console, captured.get())


def _chassis_head(reading: ChassisReading, judgement: ChassisJudgement) -> Table:
    table = head(judgement.verdict, judgement.summary)
    table.add_row("power", judgement.power)
    table.add_row("read", printable(judgement.coverage))
    if reading.supplies:
        table.add_row("psu", SUPPLIES[judgement.psu])
    watts = {
        "W now": judgement.load_watts,
        "W at full load of the GPUs": judgement.peak_watts,
        "W from the working supplies": judgement.capacity_watts,
    }
    listed = [f"{value} {what}" for what, value in watts.items() if value is not None]
    listed += [f"not known: {', '.join(what for what, value in watts.items() if value is None)}"]
    table.add_row("watts", "; ".join(part for part in listed if part != "not known: "))
    inlets = [f"{air.celsius:g} °C {air.name}" for air in reading.air if air.inlet and is_number(air.celsius)]
    if inlets:
        table.add_row("air", printable(", ".join(inlets)))
    if reading.gpus:
        table.add_row("gpus", str(len(reading.gpus)))
    maker = [text for text in (reading.vendor, reading.product, reading.serial) if isinstance(text, str)]
    cost = f"{reading.requests} requests in {reading.seconds} s"
    trust = " (trusted less: IPMI does not prove who answers)" if reading.source == IPMI else ""
    table.add_row("source", printable(", ".join([reading.source + trust, *maker, cost])))
    return table


def _supplies(supplies: list[Supply]) -> Table:
    table = grid()
    for column in range(6):
        table.add_column(justify="right" if column in (2, 3, 4) else "left", no_wrap=True)
    table.add_row("supply", "health", "size", "in", "out", "serial", style="bold")
    for supply in supplies:
        status = [text for text in (supply.health, supply.state) if isinstance(text, str)]
        table.add_row(
            printable(supply.name),
            printable("empty bay" if supply.present is False else " ".join(status) or "-"),
            *(
                f"{watts:g} W" if is_number(watts) else "-"
                for watts in (supply.capacity_watts, supply.input_watts, supply.output_watts)
            ),
            printable(supply.serial if isinstance(supply.serial, str) else "-"),
        )
    return table


def _board_gpus(gpus: list[BoardGpu]) -> Table:
    table = grid()
    for column in range(8):
        table.add_column(justify="right" if 2 <= column <= 6 else "left", no_wrap=True)
    table.add_row("gpu", "health", "now", "limit", "heat", "memory", "nvlink", "slowed down by", style="bold")
    for gpu in gpus:
        status = [text for text in (gpu.health, gpu.state) if isinstance(text, str)]
        links = f"{gpu.ports_up} of {gpu.ports}" if is_number(gpu.ports_up) else "-"
        measured = {"W": (gpu.watts, gpu.limit_watts), "°C": (gpu.celsius, gpu.memory_celsius)}
        table.add_row(
            printable(gpu.name),
            printable(" ".join(status) or "-"),
            *(
                f"{value:.0f} {unit}" if is_number(value) else "-"
                for unit, values in measured.items()
                for value in values
            ),
            links,
            printable(", ".join(gpu.throttle_reasons) or "-"),
        )
    return table
