"""Run a part of the suite many times beside busy loops, and say which tests failed how often.

    python .ci/flaky.py tests/probes -k standing --times 20 --load 8

What is not an option of this program goes to pytest.  A test that fails here lost against a busy machine: it
waits in a wrong way, or it measures the machine.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence

LOOP = """
import os, sys, time
parent, until = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while os.getppid() == parent and time.monotonic() < until:
    for number in range(100_000):
        number * number
"""
"""Computes until its parent is gone, however that ended, or the time is over."""
LONGEST = 4 * 3600
"""Seconds after which a busy loop ends by itself."""
LOST = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - (.*))?$", re.MULTILINE)
RAN = (0, 1)
"""What pytest ends with after tests have run."""


class Failed(Exception):
    """No test ran: the message says why."""


def run(arguments: Sequence[str]) -> dict[str, str]:
    """One run of pytest: the error by the id of each test that failed, or could not be set up."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    lost = {test: error or "" for test, error in LOST.findall(done.stdout)} if done.returncode in RAN else {}
    if done.returncode and not lost:  # an error outside of every test, or no run at all
        raise Failed(done.stdout[-2000:])
    return lost


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make flaky", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--times", type=int, default=20, metavar="N", help="runs; default: 20")
    parser.add_argument("--load", type=int, default=8, metavar="N", help="busy loops; default: 8")
    options, tests = parser.parse_known_args(arguments)
    loop = [sys.executable, "-c", LOOP, str(os.getpid()), str(LONGEST)]
    loops = [subprocess.Popen(loop) for _ in range(options.load)]
    failed: defaultdict[str, list[str]] = defaultdict(list)
    made = 0
    try:
        while made < options.times:
            began = time.monotonic()
            lost = run(tests)
            made += 1
            for test, error in lost.items():
                failed[test].append(error)
            what = f"{len(lost)} failed" if lost else "passed"
            print(f"run {made:3} of {options.times}: {what} in {time.monotonic() - began:.1f} s", flush=True)
    except Failed as error:
        print(f"pytest ran no test:\n{error}")
        return 2
    except KeyboardInterrupt:
        print()
    finally:
        for process in loops:
            process.send_signal(signal.SIGTERM)
            process.wait()
    for test, errors in sorted(failed.items(), key=lambda item: -len(item[1])):
        print(f"FAILED {len(errors):3} of {made}  {test}\n{'':15} {errors[-1]}")
    return 130 if made < options.times else 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
