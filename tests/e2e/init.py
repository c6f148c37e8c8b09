"""The first process of the run's PID namespace: starts one program, reaps what is left to it, ends with it,
or when its standard input, a pipe that the outer program holds, closes.  The kernel then ends everything else
in the namespace.  Standard library only."""

import os
import select
import sys

LOOK_MILLISECONDS = 50


def main(command: list[str]) -> int:
    child = os.fork()
    if child == 0:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.execv(command[0], command)
    pipe = select.poll()
    pipe.register(0, select.POLLHUP | select.POLLIN)
    while not pipe.poll(LOOK_MILLISECONDS):
        pid = -1
        while pid:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
    return 130


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
