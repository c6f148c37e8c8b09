"""One result for a person: the matrix as `nvidia-smi topo -m` prints it, and a compact table of health.

At most about 120 columns wide beside the matrix, plain ASCII, no colours: it is read over serial consoles and
pasted into tickets.  A cell without a value is "-", and a note below says why.  It shows and never judges.
"""

from __future__ import annotations

from nodegauge_contract import Gpu, Problem, Result, Span, Unavailable, render_matrix
from nodegauge_probes.page import error_tables, host_tables, nccl_tables, nvml_names
from nodegauge_probes.page.layout import columns, of, paragraph, shown, with_unit
from nodegauge_probes.page.missing_values import notes
from nodegauge_probes.page.nvml_names import NOTHING

NAME_WIDTH = 24


def render(result: Result, *, terminal: int | None = None) -> str:
    """The whole page, ending in a newline.  `terminal`: its columns, where one reads along."""
    blocks = [_title(result), *_problem(result.problem, result)]
    if result.nccl is not None:
        matrix = _matrix(result, terminal) if result.gpus else []
        return (
            "\n\n".join(block for block in [*blocks, *nccl_tables.blocks(result.nccl), *matrix] if block)
            + "\n"
        )
    blocks += _matrix(result, terminal)
    if result.gpus:
        blocks += [_health(result), _links(result), _p2p_legend(result)]
        blocks += [error_tables.held_back(result.gpus), error_tables.damage(result.gpus)]
    blocks += [
        host_tables.bus(result),
        host_tables.ports(result),
        host_tables.sensors(result.sensors),
        *notes(result),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _title(result: Result) -> str:
    system = result.system
    versions = (("driver", system.driver), ("NVML", system.nvml), ("CUDA", _cuda(system.cuda)))
    parts = [result.node] if result.node else []
    parts += [f"{name} {value}" for name, value in versions if not isinstance(value, Unavailable)]
    names = [gpu.name for gpu in result.gpus if isinstance(gpu.name, str)]
    parts += [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return "   ".join(parts)


def _cuda(version: int | Unavailable) -> str | Unavailable:
    """NVML's integer as people say it: 12040 is 12.4."""
    if isinstance(version, Unavailable):
        return version
    return f"{version // 1000}.{version % 1000 // 10}"


def _problem(problem: Problem | None, result: Result) -> list[str]:
    if problem is None:
        return []
    head = "INCOMPLETE" if result.gpus or result.nccl is not None else "NOTHING COULD BE READ"
    place = f" in {problem.call}" if problem.call else ""
    return [paragraph(f"{head}: {problem.kind}{place}. {problem.message}.")]


def _matrix(result: Result, terminal: int | None) -> list[str]:
    if not result.gpus and result.problem is None:
        return [
            paragraph(
                "The driver answers and shows no GPU. In a container: is NVIDIA_VISIBLE_DEVICES=all set?"
            )
        ]
    return [render_matrix(result, width=terminal)]


def _health(result: Result) -> str:
    head = ("GPU", "Name", "Temp", "Limit", "Memory", "Power", "SM MHz", "P", "Util", "Clocks event reasons")
    return columns([head, *(_health_row(gpu) for gpu in result.gpus)], right={0, 2, 4, 5, 6, 8})


def _health_row(gpu: Gpu) -> tuple[str, ...]:
    name = str(shown(gpu.name)).removeprefix("NVIDIA ")[:NAME_WIDTH]
    if gpu.error is not None:
        return (f"{gpu.index}", name, *[NOTHING] * 7, f"{gpu.error.kind}: {gpu.error.message}")
    temperature, clocks = gpu.temperature, gpu.clocks
    return (
        f"{gpu.index}",
        name,
        with_unit(temperature.gpu, " C"),
        _limit(gpu),
        with_unit(temperature.memory, " C"),
        of(_watts(gpu.power.usage_mw), _watts(gpu.power.enforced_limit_mw), between=" / ", unit=" W"),
        of(str(shown(clocks.sm_mhz)), str(shown(clocks.max_sm_mhz)), between=" / "),
        with_unit(clocks.pstate, "", before="P"),
        _span(gpu.window.utilization if gpu.window else None),
        nvml_names.reasons(gpu.events),
    )


def _limit(gpu: Gpu) -> str:
    """The distance that the GPU itself reports, or the lowest threshold that it knows."""
    temperature = gpu.temperature
    if isinstance(temperature.margin, int):
        return f"{temperature.margin} C left"
    known = [limit for limit in (temperature.gpu_max, temperature.slowdown) if isinstance(limit, int)]
    return f"max {min(known)} C" if known else NOTHING


def _links(result: Result) -> str:
    head = ("GPU", "PCI", "PCIe", "NUMA", "NVLinks", "P2P read", "write", "NVLink", "Fabric")
    rows: list[tuple[str, ...]] = [head]
    for i, gpu in enumerate(result.gpus):
        grids = (result.pairs.read, result.pairs.write, result.pairs.nvlink)
        rows.append(
            (
                f"{gpu.index}",
                str(shown(gpu.pci)),
                _pcie(gpu),
                str(shown(gpu.numa_node)),
                nvml_names.links(gpu),
                *(nvml_names.p2p(grid[i], i) if i < len(grid) else NOTHING for grid in grids),
                nvml_names.fabric(gpu.fabric),
            )
        )
    return columns(rows, right={0, 3})


def _pcie(gpu: Gpu) -> str:
    pcie = gpu.pcie
    generation = of(str(shown(pcie.generation)), str(shown(pcie.max_generation)), between="/")
    width = of(str(shown(pcie.width)), str(shown(pcie.max_width)), between="/")
    return NOTHING if generation == width == NOTHING else f"gen {generation} x{width}"


def _p2p_legend(result: Result) -> str:
    """The meaning of the P2P statuses that the table shows."""
    grids = (result.pairs.read, result.pairs.write, result.pairs.nvlink)
    codes = {status for grid in grids for row in grid for status in row if isinstance(status, int)}
    names = [nvml_names.P2P[code] for code in sorted(codes) if code in nvml_names.P2P]
    return ", ".join(
        f"{name} = {nvml_names.P2P_LEGEND[name]}" for name in names if name in nvml_names.P2P_LEGEND
    )


def _watts(milliwatts: int | Unavailable) -> str:
    return NOTHING if isinstance(milliwatts, Unavailable) else f"{milliwatts / 1000:.0f}"


def _span(span: Span | None) -> str:
    return NOTHING if span is None else f"{shown(span.median):g} %"
