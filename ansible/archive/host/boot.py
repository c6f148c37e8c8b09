"""The archive's first program: unpacks what a command needs into a private folder, runs it, removes it again.
Where $NODEGAUGE_UNPACKED names a private folder, `judge` and `page` stay there, compiled, for the next start.

Any Python from 3.6 on must be able to read this file, to say what is missing.  The command runs in a child,
because a probe may end its process at once; signals go to the child, and the folder goes when it has ended.
"""

import os
import platform
import shutil
import signal
import sys
import tempfile
import zipfile
from pathlib import Path

ARCHIVE = Path(__file__).resolve().parent
OLDEST = {"probe": (3, 9), "judge": (3, 10), "page": (3, 10), "bmc": (3, 11)}
TRANSLATED_BELOW = (3, 11)
JUDGE = ("nodegauge_contract", "nodegauge_judge", "nodegauge_operator", "nodegauge_cli", "yaml")
PACKAGES = {
    "probe": ("nodegauge_contract", "nodegauge_probes", "pynvml.py"),
    "judge": JUDGE,
    "page": JUDGE,
    "bmc": (*JUDGE, "nodegauge_bmc", "click"),
}
"""What each command imports, and no more: a host reads one of them at a time."""
STAY, STAYS_AS = ("judge", "page"), "judge"  # these two import the same
NEED_NCCL = ("nccl", "pull")
NCCL_LIBRARIES = ("nvidia", "nccl", "lib")
"""Where the package of NCCL has its library, which the dynamic loader must find in the probe's children."""
KEPT = "NODEGAUGE_UNPACKED"
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
USAGE = """usage: python nodegauge-host.pyz COMMAND [OPTION...]

  probe health|load|pull|nccl   read this host's GPUs; the result goes to standard output
  judge                         judge results: a JSON request on standard input, judgements on standard output
  page                          the page of a report: a JSON request on standard input, HTML in JSON on output
  bmc URL                       read and judge a server's BMC
  version                       print the version"""
VERSION = "@VERSION@"
PR_SET_PDEATHSIG = 1
BAD_ARGUMENTS = 2
CANNOT_RUN = 4
"""Exit code when this host or its Python cannot run the command."""


class Unfit(Exception):
    """This host cannot run the command; the message says what is missing."""


def main():
    """Run one command; the exit code."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "version":
        print(VERSION)
        return 0
    if command not in PACKAGES:
        help_wanted = command in ("-h", "--help", "help")
        print(USAGE, file=sys.stdout if help_wanted else sys.stderr)
        return 0 if help_wanted else BAD_ARGUMENTS
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*FORWARDED, signal.SIGCHLD))
    folder = kept = None
    try:
        check(command)
        kept = kept_folder(command)
        if kept is None or not kept.is_dir():
            folder = tempfile.mkdtemp(
                prefix="nodegauge-", dir=str(kept.parent) if kept else programs_folder()
            )
            unpack(command, sys.argv[2] if len(sys.argv) > 2 else "", folder)
            if kept is not None and keep(folder, kept):
                folder = None
        ended = run_in_child(command, folder or str(kept), before)
    except Unfit as unfit:
        print("nodegauge: " + str(unfit), file=sys.stderr)
        return CANNOT_RUN
    except OSError as error:
        print(f"nodegauge: cannot unpack: {error}: set TMPDIR to another folder", file=sys.stderr)
        return CANNOT_RUN
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    if os.WIFSIGNALED(ended):
        end_by(os.WTERMSIG(ended))
    return os.WEXITSTATUS(ended)


def check(command):
    """Raise `Unfit` where this Python or platform cannot run the command."""
    have = ".".join(str(part) for part in sys.version_info[:3])
    oldest = OLDEST[command]
    doing = "the probes need" if command == "probe" else f"`{command}` needs"
    if sys.version_info < oldest:
        raise Unfit(
            "this host's Python is {}; {} {}.{} or newer: set ansible_python_interpreter to one".format(
                have, doing, *oldest
            )
        )
    if sys.implementation.name != "cpython":
        raise Unfit(
            f"this Python is {sys.implementation.name}; {doing} CPython: set ansible_python_interpreter"
        )
    if not sys.platform.startswith("linux") or not platform.libc_ver(sys.executable)[0].startswith("glibc"):
        raise Unfit(f"this system is {platform.system()} without glibc; {doing} Linux with glibc")
    if hasattr(sys, "_is_gil_enabled") and "t" in getattr(sys, "abiflags", ""):
        raise Unfit(f"this Python is a free-threaded build; {doing} the usual one")


def tag():
    """The folder of this Python's compiled package."""
    return f"cp{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}"


def may_hold_programs(folder):
    """We can write there, and its file system has no noexec."""
    return os.access(folder, os.W_OK | os.X_OK) and not os.statvfs(folder).f_flag & os.ST_NOEXEC


def kept_folder(command):
    """Where what the command imports stays unpacked; None where nothing may or can stay."""
    if command not in STAY or not os.environ.get(KEPT):
        return None
    try:
        Path(os.environ[KEPT]).mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return Path(os.environ[KEPT], STAYS_AS) if may_hold_programs(os.environ[KEPT]) else None


def keep(folder, kept):
    """Have the unpacked folder stay as `kept`; False if another start was faster."""
    try:
        Path(folder).rename(kept)
    except OSError:
        return False
    return True


def programs_folder():
    """Where programs may be unpacked: a file system without noexec, or None for the default."""
    for folder in (tempfile.gettempdir(), str(ARCHIVE.parent), "/dev/shm"):
        if may_hold_programs(folder):
            return folder
    raise Unfit(
        "no folder for temporary files may hold programs (mounted noexec): set TMPDIR, or Ansible's "
        "remote_tmp, to one that may"
    )


def unpack(command, probe, folder):
    """Write what the command imports into the folder."""
    ours = "old" if sys.version_info < TRANSLATED_BELOW else "new"
    wanted = (*PACKAGES[command], "nodegauge_host.py", "nodegauge_older.py")
    with zipfile.ZipFile(str(ARCHIVE)) as packed:
        names = packed.namelist()
        if not any(name.startswith(tag() + "/") for name in names):
            tags = sorted({name.split("/")[0] for name in names if name.startswith("cp")})
            raise Unfit(
                "this host is {}, which the archive does not fit ({}): set ansible_python_interpreter to "
                "a Python of one of these, or build an archive for it".format(tag(), ", ".join(tags))
            )
        whole = (tag(), "nccl-" + tag()) if command == "probe" and probe in NEED_NCCL else (tag(),)
        for name in names:
            root, _, inside = name.partition("/")
            if root in whole or (root in (ours, "pure") and inside.split("/")[0] in wanted):
                path = Path(folder, inside)
                path.parent.mkdir(parents=True, exist_ok=True)
                with packed.open(name) as stored, path.open("wb") as file:
                    shutil.copyfileobj(stored, file, 1 << 20)


def run_in_child(command, folder, mask):
    """The wait status of the command, run in a child that gets this process's signals."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        die_with(parent)
        become(command, folder)
    while True:
        info = signal.sigwaitinfo((*FORWARDED, signal.SIGCHLD))
        if info.si_signo != signal.SIGCHLD:
            if info.si_pid:  # the kernel's, as of Ctrl-C, reach the child by themselves
                os.kill(child, info.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status


def die_with(parent):
    """Have the kernel kill this process when its parent is killed, which could no longer end it."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(CANNOT_RUN)


def become(command, folder):
    """Be the command; does not return."""
    sys.path[0] = folder
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    libraries = Path(folder, *NCCL_LIBRARIES)
    if libraries.is_dir():
        paths = (str(libraries), os.environ.get("LD_LIBRARY_PATH"))
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
    code = 1
    try:
        import nodegauge_host

        code = nodegauge_host.run(command, sys.argv[2:])
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else (0 if ending.code is None else 1)
        if isinstance(ending.code, str):
            print(ending.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            code = code or 1
        os._exit(code)


def end_by(number):
    """End as the child did, so that whoever waits sees the signal."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    return 128 + number


if __name__ == "__main__":
    sys.exit(main())
