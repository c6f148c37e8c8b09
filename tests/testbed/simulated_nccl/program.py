"""One arm as simulated NCCL runs it; exit code 1 after `failed`, 2 for an unreadable order."""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from nodegauge_contract.nccl import Cell, Collective, Phase
from nodegauge_contract.values import NOT_READ, Int
from nodegauge_probes.nccl.protocol import CellOrder, EngineInfo, Line, Order, decode_order
from testbed.simulated_nccl import debuglog, pace, pathfinding, trouble
from testbed.simulated_nccl.machine import Machine, MachineMissing, load
from testbed.simulated_nccl.trouble import Emitter, Exit, Troubles

ENGINE, VERSION = "simulated", "1"
BAD_ORDER = 2
LATENCY_BYTES = 64 * 1024
"""Up to this size calls take what they take, whatever the bandwidth."""
CALL_NAMES = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter"}


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(prog="simulated-nccl", description=__doc__)
    parser.add_argument("--order", required=True)
    try:
        order = decode_order(parser.parse_args(arguments).order)
        machine = load(environment)
    except (MachineMissing, msgspec.MsgspecError) as error:
        print(f"simulated NCCL: {error}", file=sys.stderr)
        return BAD_ORDER
    try:
        Child(order, machine, environment).run()
    except Exit as stopped:
        return stopped.code
    return 0


class Child:
    def __init__(self, order: Order, machine: Machine, environment: Mapping[str, str]) -> None:
        self._order, self._machine, self._environment = order, machine, environment
        self._arm = pathfinding.arm(environment)
        self._troubles = Troubles(machine.troubles, arm=self._arm, environment=environment)
        paces = [each.percent / 100 for each in self._troubles.of(trouble.PACE)]
        self._emitter = Emitter(environment, self._troubles, pace=[machine.pace, *paces][-1])
        self._log = debuglog.DebugLog(environment)
        self._gpus: list[int] = []

    def run(self) -> None:
        self._spawn()
        if not self._order.uuids:
            self._emitter.emit(Line(done=True))
            return
        chosen = self._init()
        self._emitter.phase(Phase.LOAD)
        self._emitter.spend(self._machine.load_seconds)
        for cell in self._order.cells[:1]:
            self._log_call(cell, chosen)
        self._emitter.phase(Phase.MEASURE)
        self._emitter.spend(self._order.warm_up_ms / 1000, measuring=True)
        for cell in self._order.cells:
            self._measure(cell, chosen)
        if self._order.pairs_bytes:
            self._pairs()
        self._emitter.phase(Phase.TEARDOWN)
        self._emitter.spend(self._machine.teardown_seconds)
        self._emitter.emit(Line(done=True))

    def _spawn(self) -> None:
        if self._troubles.has(trouble.NO_ENGINE):
            self._emitter.fail("no-engine", "libnccl.so.2: cannot open shared object file")
        known = {gpu.uuid: number for number, gpu in enumerate(self._machine.gpus) if gpu.there}
        seen = visible(known, self._environment)
        versions = {"version": VERSION, "nccl": self._machine.nccl, "cuda": self._machine.cuda}
        self._emitter.emit(Line(engine=EngineInfo(name=ENGINE, uuids=list(seen), **versions)))
        if absent := [uuid for uuid in self._order.uuids if uuid not in seen]:
            self._emitter.fail("cuda-error", f"CUDA_ERROR_INVALID_DEVICE: not visible: {', '.join(absent)}")
        self._gpus = [known[uuid] for uuid in self._order.uuids]

    def _init(self) -> pathfinding.Chosen:
        self._emitter.phase(Phase.INIT)
        for each in self._troubles.of(trouble.COLD_INIT):
            self._emitter.wait(each.seconds)
        self._log.environment(self._environment)
        chosen = pathfinding.choose(
            self._machine,
            self._environment,
            ranks=len(self._gpus),
            links_dead=self._troubles.has(trouble.LINKS_DEAD),
        )
        if not self._machine.ways:
            self._emitter.fail("nccl-error", f"there is no simulated bandwidth for {self._machine.name}")
        multicast = pathfinding.NVLS in self._machine.ways
        debuglog.log_init(
            self._log,
            len(self._gpus),
            transport=chosen.way.transport,
            nvls=chosen.nvls if multicast else None,
            nccl=f"{self._machine.nccl}+cuda{self._machine.cuda}",
        )
        if chosen.nvls:
            self._break_nvls()
        self._emitter.spend(self._machine.init_seconds)
        return chosen

    def _break_nvls(self) -> None:
        for each in self._troubles.of(trouble.NVLS_BROKEN):
            if each.phase == trouble.OUT_OF_MEMORY:
                self._log.warn("Failed to allocate NVLS multicast memory: out of memory")
                self._emitter.fail(trouble.OUT_OF_MEMORY, "NVLS: Cuda failure 2 'out of memory'")
            self._log.warn("Cuda failure 1 'invalid argument' in ncclNvlsInit")
            self._emitter.fail(
                "nccl-error", "ncclUnhandledCudaError: failed to bind NVLink SHARP (NVLS) memory"
            )

    def _measure(self, cell: CellOrder, chosen: pathfinding.Chosen) -> None:
        if self._emitter.measured_seconds * 1000 >= self._order.budget_ms:
            self._emitter.emit(Line(cut=f"{cell.collective}/{cell.bytes}"))
            return
        wrong: Int = NOT_READ
        if cell.check:
            self._emitter.phase(Phase.CHECK)
            self._emitter.spend(0.05, measuring=True)
            wrong = trouble.WRONG_ELEMENTS if self._troubles.has(trouble.WRONG_DATA) else 0
            self._emitter.phase(Phase.MEASURE)
        way, ranks = chosen.of(cell.collective), len(self._gpus)
        try:
            us = pace.call_us(way, cell.collective, cell.bytes, ranks=ranks) / self._share(cell.bytes, chosen)
        except pace.NotMeasured as error:
            self._emitter.fail("nccl-error", str(error))
        run = self._environment.get(trouble.RUN_VARIABLE, "")
        random = Random(f"{self._machine.seed}/{self._arm}/{cell.collective}/{cell.bytes}/{run}")
        made = pace.batches(cell, us, random=random)
        self._emitter.spend(made.seconds, measuring=True)
        self._log_call(cell, chosen)
        measured = Cell(
            collective=cell.collective,
            bytes=cell.bytes,
            us=round(statistics.median(made.times), 3),
            us_min=round(min(made.times), 3),
            us_max=round(max(made.times), 3),
            spread=round(made.spread, 5),
            batches=len(made.times),
            calls=made.calls,
            wrong=wrong,
        )
        self._emitter.emit(Line(cell=measured))
        if self._troubles.has(trouble.GARBAGE):
            self._emitter.write(b'{"cell": {"collective": "all_reduce", "by\x00\xff\xfe# out of place\n')
        if self._troubles.has(trouble.GARBAGE) or self._troubles.has(trouble.PARTIAL):
            raise Exit(0)

    def _share(self, size: int, chosen: pathfinding.Chosen) -> float:
        if size <= LATENCY_BYTES:
            return 1.0
        left = self._troubles.share()
        for each in self._troubles.of(trouble.SLOW_LINK):
            if chosen.joined == pathfinding.P2P and set(each.gpus) <= set(self._gpus):
                left *= each.percent / 100
        return left

    def _pairs(self) -> None:
        """Copies between every ordered pair: what NCCL is told not to use does not matter to them."""
        self._emitter.phase(Phase.PAIRS)
        random = Random(f"{self._machine.seed}/pairs")
        rows: list[list[int | float]] = []
        for one in self._gpus:
            row = [self._pair(one, other) * (1 + random.gauss(0, pace.NOISE)) for other in self._gpus]
            rows.append(
                [-1 if one == other else round(gbps, 2) for other, gbps in zip(self._gpus, row, strict=True)]
            )
            copies = self._order.pair_copies * self._order.pairs_bytes
            self._emitter.spend(sum(copies / (gbps * 1e9) for gbps in row if gbps > 0), measuring=True)
        self._emitter.emit(Line(pairs=[list(row) for row in rows]))

    def _pair(self, one: int, other: int) -> float:
        gbps = self._machine.gpus[one].pairs[other]
        for each in self._troubles.of(trouble.SLOW_LINK):
            gbps *= each.percent / 100 if {one, other} == set(each.gpus) else 1.0
        if one != other and self._troubles.has(trouble.LINKS_DEAD):
            host = self._machine.ways[pathfinding.HOST]
            gbps = min(gbps, pace.by_ranks(host.busbw["all_reduce"], 2))
        return gbps

    def _log_call(self, cell: CellOrder, chosen: pathfinding.Chosen) -> None:
        """NCCL's log names the bytes that one rank puts in, and its choice; the engine never learns of it."""
        algorithm, protocol = chosen.algorithm(cell.collective, cell.bytes)
        name = CALL_NAMES.get(cell.collective, cell.collective)
        size = cell.bytes if cell.collective == Collective.ALL_REDUCE else cell.bytes // len(self._gpus)
        debuglog.log_call(self._log, name, size, algorithm=algorithm, protocol=protocol)


def visible(known: Mapping[str, int], environment: Mapping[str, str]) -> list[str]:
    given = environment.get("NVIDIA_VISIBLE_DEVICES", "all")
    # A claim comes with `void`, so that a container runtime adds nothing to it; CUDA reads neither.
    there = [uuid for uuid in known if given in ("all", "void") or uuid in given.split(",")]
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return there
    return [uuid for uuid in chosen.split(",") if uuid in there]
