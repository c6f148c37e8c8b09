"""The program around an engine: it reads its order, does what it is told, and says why where it cannot.

Exit codes: 0 after `done`, 1 after `failed`, 2 for an order that nobody can read.  Anything else is a crash,
with a traceback where the parent looks for it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec

from nodegauge_probes.nccl.emitter import Failure, Speaker
from nodegauge_probes.nccl.protocol import Order, decode_order

FAILED, BAD_ORDER = 1, 2


def serve(
    work: Callable[[Order, Speaker], None], arguments: Sequence[str], environment: Mapping[str, str]
) -> int:
    """Have `work` do what the order says; gives the exit code of the module's docstring."""
    parser = argparse.ArgumentParser(description="One arm of the NCCL benchmark; started by the probe.")
    parser.add_argument("--order", required=True)
    try:
        order = decode_order(parser.parse_args(arguments).order)
        speaker = Speaker.of(environment)
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        print(f"no order, or nowhere to speak: {error!r}", file=sys.stderr)
        return BAD_ORDER
    try:
        work(order, speaker)
    except Failure as failure:
        speaker.failed(failure)
        return FAILED
    return 0
