"""One process per GPU: starts an engine for each rank, and says as one what they say.

    python -m nodegauge_probes.nccl.ranks PROGRAM ARGUMENT... --order JSON

It stands between the supervisor and the engines, and speaks `protocol` on both sides.  Every rank sends the
same lines in the same order, so a line goes on once all have sent it: the slowest rank decides the phase.  A
rank that fails or dies ends the others, for NCCL would wait for it for ever; this process then ends as that
rank did.  The ranks die with it, and it dies with the probe, so nobody holds a GPU.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import MsgspecError
from msgspec.structs import replace

from nodegauge_contract.nccl import Cell, Phase
from nodegauge_contract.values import Unavailable
from nodegauge_probes.nccl.process_tree import DIES_WITH_PARENT, how_it_ended
from nodegauge_probes.nccl.protocol import (
    BAD_ORDER,
    FAILED,
    FD_VARIABLE,
    MAX_LINE,
    Emitter,
    Failed,
    Line,
    Order,
    decode_line,
    decode_order,
    encode_line,
    encode_order,
)

OPTION = "--order"
POLL_S, SILENT_POLLS = 0.5, 4
"""How long to wait for a rank before saying which one the others wait for: two seconds."""
CHUNK = 64 * 1024
DYING_S, MEETING_POLL_S = 5.0, 0.01
DISAGREED = 3
"""The exit code if the ranks said different things."""


class Disagreement(Exception):
    """The ranks sent different lines, or one sent something that is no line."""


class Rank:
    """One engine process, and the lines that it has sent."""

    def __init__(self, program: Sequence[str], order: Order, environment: Mapping[str, str]) -> None:
        self.number = order.rank
        self.lines: deque[Line] = deque()
        self.failed: Failed | None = None
        self.done = False
        self.invalid = ""
        self._rest = b""
        self.pipe, writing = os.pipe()
        try:
            self.process = subprocess.Popen(
                [*DIES_WITH_PARENT, str(os.getpid()), *program, OPTION, encode_order(order)],
                env={**environment, FD_VARIABLE: str(writing)},
                stdin=subprocess.DEVNULL,
                pass_fds=(writing,),
            )
        finally:
            os.close(writing)

    def read(self) -> bool:
        """Take what has arrived, up to an invalid line; returns whether more may come."""
        data = os.read(self.pipe, CHUNK)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            self.invalid = f"rank {self.number}: a line of more than {MAX_LINE} bytes"
        for each in lines:
            try:
                line = decode_line(each)
            except (MsgspecError, UnicodeDecodeError, RecursionError):
                self.invalid = f"rank {self.number}: not a protocol line"
                break
            self.done = self.done or line.done
            if line.failed is not None:
                self.failed = line.failed
            else:
                self.lines.append(line)
        return bool(data)


class Ranks:
    """All ranks of one order."""

    def __init__(self, program: Sequence[str], order: Order, environment: Mapping[str, str]) -> None:
        self._emitter = Emitter.from_environment(environment)
        self._ranks = [
            Rank(program, replace(order, rank=rank), environment) for rank in range(len(order.uuids))
        ]
        self._phase, self._silent = str(Phase.SPAWN), 0

    def run(self) -> int:
        """Until all have ended, or one ended badly; returns the exit code.  Raises `Disagreement`."""
        with selectors.DefaultSelector() as selector:
            for rank in self._ranks:
                selector.register(rank.pipe, selectors.EVENT_READ, rank)
            while selector.get_map():
                ready = [key.data for key, _ in selector.select(POLL_S)]
                ended = [rank for rank in ready if not rank.read()]
                self._pass_on()
                if invalid := [rank.invalid for rank in ready if rank.invalid]:
                    raise Disagreement(invalid[0])
                for rank in ended:
                    selector.unregister(rank.pipe)
                    if (code := self._after(rank)) is not None:
                        return code
                self._silent = 0 if ready else self._silent + 1
                if self._silent == SILENT_POLLS:
                    self._say_who_is_late()
        return 0

    def _after(self, rank: Rank) -> int | None:
        """A rank has closed its pipe: None if it ended well, else how this process has to end."""
        code = rank.process.wait()
        if rank.failed is not None:
            time.sleep(POLL_S)  # NCCL reports a rank that died to the others, maybe before it is seen here
            died = (each for each in self._ranks if each.process.poll() not in (None, 0, FAILED))
            rank = next(died, rank)
            code = rank.process.wait()
        if rank.failed is not None:
            failed = replace(rank.failed, message=f"rank {rank.number}: {rank.failed.message}")
            self._emitter.emit(Line(failed=failed))
            return FAILED
        if code == 0 and rank.done:
            return None
        how = how_it_ended(code)
        print(f"rank {rank.number} of {len(self._ranks)} ended in {self._phase}: {how}", file=sys.stderr)
        return code

    def _pass_on(self) -> None:
        """Lines that every rank has sent."""
        while all(rank.lines for rank in self._ranks):
            line = combined([rank.lines.popleft() for rank in self._ranks])
            self._phase = line.phase or self._phase
            self._emitter.emit(line)

    def _say_who_is_late(self) -> None:
        late = [str(rank.number) for rank in self._ranks if not rank.lines and not rank.done]
        if len(late) < len(self._ranks):
            print(f"in {self._phase}, waiting for rank {', '.join(late)}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Kill the ranks that are left; those that do not die are left to the supervisor."""
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            with suppress(subprocess.TimeoutExpired):
                rank.process.wait(DYING_S)


def shared_id(meeting: str, *, rank: int, make: Callable[[], bytes]) -> bytes:
    """What rank 0 makes, for every rank: through a file that appears complete.  The supervisor ends a rank
    that waits for too long."""
    path = Path(meeting)
    if rank == 0:
        draft = path.with_suffix(".draft")
        draft.write_bytes(make())
        draft.replace(path)
    while not path.exists():
        time.sleep(MEETING_POLL_S)
    return path.read_bytes()


def combined(lines: Sequence[Line]) -> Line:
    """What all ranks say with these lines, one of each.  Raises `Disagreement` if that is not the same."""
    first = lines[0]
    if first.cell is not None:
        cells = [line.cell for line in lines if line.cell is not None]
        if len(cells) == len(lines) and len({(cell.collective, cell.bytes) for cell in cells}) == 1:
            return Line(cell=_slowest(cells))
    elif first.engine is not None:
        if all(line.engine is not None for line in lines):
            return first
    elif all(line == first for line in lines):
        return first
    raise Disagreement(
        f"the ranks disagree: {[encode_line(line)[:60] for line in lines if line != first][:2]}"
    )


def _slowest(cells: Sequence[Cell]) -> Cell:
    """The cell of the slowest rank, with the wrong elements of all and the slowest launch."""
    slowest = max(cells, key=lambda cell: cell.us if isinstance(cell.us, int | float) else 0.0)
    wrong = [cell.wrong for cell in cells]
    known = [number for number in wrong if not isinstance(number, Unavailable)]
    launches = [cell.launch_us for cell in cells if not isinstance(cell.launch_us, Unavailable)]
    return replace(
        slowest,
        wrong=sum(known) if len(known) == len(wrong) else slowest.wrong,
        launch_us=max(launches, default=slowest.launch_us),
    )


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """The program; returns its exit code, or ends like the rank that ended it."""
    *program, option, text = arguments if len(arguments) > 2 else ("", "", "")
    try:
        if option != OPTION:
            raise ValueError(f"not PROGRAM {OPTION} JSON")
        order = decode_order(text)
        ranks = Ranks(program, order, environment)
    except (MsgspecError, KeyError, ValueError) as error:
        print(f"invalid order, or no {FD_VARIABLE}: {error!r}", file=sys.stderr)
        return BAD_ORDER
    try:
        code = ranks.run()
    except Disagreement as error:
        print(error, file=sys.stderr)
        return DISAGREED
    finally:
        ranks.close()
    if code < 0:
        _end_like(-code)
    return code


def _end_like(number: int) -> None:
    """End by the same signal, so that the probe sees a crash as the crash that it was."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stderr.flush()
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
