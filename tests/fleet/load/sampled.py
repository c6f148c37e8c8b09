"""The operator with a sampler: `python -P sampled.py FILE`.

Each 5 ms of its CPU time it notes where its main thread is.  SIGUSR1 writes what was noted since the last
one.  It costs a few per cent, where a tracer such as cProfile would double the time of small functions.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from nodegauge_operator.__main__ import main

SAMPLE_SECONDS = 0.005
own: Counter[str] = Counter()
cumulative: Counter[str] = Counter()


def note(_: int, frame: FrameType | None) -> None:
    """One sample: the innermost function, and each that is on the stack."""
    seen = []
    while frame is not None:
        code = frame.f_code
        module = str(frame.f_globals.get("__name__", ""))
        seen.append(f"{module}.{code.co_qualname}" if module else code.co_qualname)
        frame = frame.f_back
    own.update(seen[:1])
    cumulative.update(set(seen))


def write(*_: object) -> None:
    """Write the samples, and begin anew."""
    part = Path(sys.argv[1] + ".part")
    part.write_text(json.dumps({"own": own, "cumulative": cumulative}))
    part.rename(sys.argv[1])
    own.clear()
    cumulative.clear()


if __name__ == "__main__":
    signal.signal(signal.SIGPROF, note)
    signal.signal(signal.SIGUSR1, write)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
    try:
        sys.exit(main())
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)  # Python takes its handlers back before it ends
