"""The log that NCCL would write.  Formats from NVIDIA/nccl 5067397c: src/transport/*.cc (channels, NVLS),
src/init.cc, src/enqueue.cc 822 (TUNING)."""

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

ENV_PREFIX = "NCCL_"


class DebugLog:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._speaks = environment.get("NCCL_DEBUG") == "INFO"
        self._subsystems = set(environment.get("NCCL_DEBUG_SUBSYS", "INIT,P2P,SHM").split(","))
        self._host, self._pid = socket.gethostname().partition(".")[0], os.getpid()
        named = environment.get("NCCL_DEBUG_FILE", "")
        self._file = self._open(named) if self._speaks and named else sys.stdout

    def info(self, subsystems: str, text: str, *, device: int = 0) -> None:
        if self._speaks and self._subsystems & {*subsystems.split(",")}:
            self._write(f"[{device}] NCCL INFO {text}")

    def warn(self, text: str) -> None:
        if self._speaks:
            self._write(f"\n[0] NCCL WARN {text}")

    def environment(self, environment: Mapping[str, str]) -> None:
        for name in sorted(environment):
            if name.startswith(ENV_PREFIX) and not name.startswith("NCCL_DEBUG"):
                self.info("ENV", f"{name} set by environment to {environment[name]}.")

    def _write(self, text: str) -> None:
        blank = "\n" if text.startswith("\n") else ""
        print(f"{blank}{self._host}:{self._pid}:{self._pid} {text.lstrip()}", file=self._file, flush=True)

    def _open(self, named: str) -> TextIO:
        path = named.replace("%h", self._host).replace("%p", str(self._pid))
        return Path(path).open("a", encoding="utf-8")


def log_init(log: DebugLog, ranks: int, *, transport: str, nvls: bool | None, nccl: str) -> None:
    p2p = transport.startswith("P2P")
    channels = 16 if p2p else 4
    log.info("INIT", f"NCCL version {nccl}")
    for rank in range(ranks):
        given = "is not" if nvls is None else "is"
        log.info("INIT,NVLS", f"NVLS multicast support {given} available on dev {rank}", device=rank)
    for rank in range(ranks):
        peer = (rank + 1) % ranks
        for channel in range(channels):
            way = f"{channel:02d}{'/0' if p2p else ''} : {rank}[{rank}] -> {peer}[{peer}] via {transport}"
            log.info("INIT,P2P" if p2p else "INIT,SHM", f"Channel {way}", device=rank)
        if transport.startswith("SHM"):
            where = f"/dev/shm/nccl-{rank:06x} size 9637888 ptr 0x7f0000000000"
            log.info("SHM", f"MMAP allocated shareable buffer {where}", device=rank)
    for rank in range(ranks):
        others = f"0 collnet channels, {16 if nvls else 0} nvls channels, {channels} p2p channels"
        text = f"{channels} coll channels, {others}, {max(1, channels // 4)} p2p channels per peer"
        log.info("INIT", text, device=rank)


def log_call(log: DebugLog, name: str, size: int, *, algorithm: str, protocol: str) -> None:
    log.info(
        "TUNING", f"{name}: {size} Bytes -> Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{0..15}}"
    )
