"""Reads a file on the node's own disk past the page cache: what a model that is offloaded to NVMe gets.

It reads a file of its own in a folder that the policy names, and writes only where the policy allows it: the
file is made once and kept, since writing wears a disk out.  Everything that touches the folder runs in a
daemon thread with a deadline, because a call on a dead disk never returns.  ADR 0052.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec.structs import replace

from nodegauge_contract import Storage
from nodegauge_probes.host import mounts
from nodegauge_probes.host.mounts import Backing
from nodegauge_probes.load.statistics import short
from nodegauge_probes.load.storage_options import Options

FILE = "nodegauge-read-test"
"""In the policy's folder."""
BLOCK = 1 << 20
THREADS = 8
"""As DeepNVMe's tuner: blocks of 1 MiB, up to 8 threads (deepspeed/nvme/ds_aio_args.py)."""
PASSES = 16
"""At most so often the file is read: 4 GiB at 12 GB/s take 5 s.  Chosen by this project."""
WRITE_S, MORE_S = 60.0, 10.0
"""Longest time of making the file, and of everything beside reading and writing.  Chosen by this project."""
FREE_SHARE = 0.15
"""Of the file system that stays free: below it the kubelet's defaults evict pods (nodefs 10 %, imagefs 15 %,
kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction)."""
FROM_DISK_SHARE = 0.9
"""Of what was read, the least that the device must have delivered.  Chosen by this project."""
MAX_PROBLEM = 400


class NotRead(Exception):
    """Why there is no number, and what to do."""


def measure(options: Options, *, sysfs: Path, procfs: Path, most: float) -> Storage:
    """Read, and make the file if that is allowed; `most`: seconds until it is given up."""
    backing = mounts.backing_of(options.folder, sysfs=sysfs, procfs=procfs)
    seen = Storage(
        path=options.path,
        filesystem=backing.filesystem,
        device=backing.device[:128],
        numa_node=backing.numa_node,
    )
    if backing.problem:
        return _failed(seen, f"{options.path} is not local NVMe storage: {backing.problem}")
    limit = options.seconds + MORE_S + (WRITE_S if options.write else 0.0)
    if most < limit:
        return _failed(seen, f"the run had {max(0.0, most):.0f} s left, and reading may take {limit:g}")
    outcome: list[Storage] = []

    def work() -> None:
        outcome.append(_outcome(seen, options, backing))

    thread = threading.Thread(target=work, daemon=True, name="storage")
    thread.start()
    thread.join(limit)
    return outcome[0] if outcome else _failed(seen, f"the disk did not answer within {limit:g} s")


def _failed(seen: Storage, problem: str) -> Storage:
    return replace(seen, problem=" ".join(problem.split())[:MAX_PROBLEM])


def _outcome(seen: Storage, options: Options, backing: Backing) -> Storage:
    try:
        if os.path.realpath(options.folder) != str(options.folder):
            raise NotRead(f"{options.path} is a link, and links are not followed: name the folder itself")
        with _opened(options.folder, os.O_DIRECTORY) as folder:
            if options.write:
                seen = replace(seen, write_gbps=made) if (made := _make(folder, options)) else seen
            return _read(seen, folder, options, backing)
    except NotRead as error:
        return _failed(seen, str(error))
    except PermissionError:
        right = "written to" if options.write else "read"
        return _failed(seen, f"{options.path} may not be {right}: let user {os.getuid()} do so")
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else type(error).__name__
        return _failed(seen, f"{options.path}: {why}")


@contextmanager
def _opened(name: Path | str, flags: int, *, within: int | None = None) -> Iterator[int]:
    """A descriptor; links are not followed, and what is no file does not block."""
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(name, flags, 0o640, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(seen: Storage, folder: int, options: Options, backing: Backing) -> Storage:
    name = f"{options.path.rstrip('/')}/{FILE}"
    command = f"head -c {options.size >> 20}M /dev/urandom > {name}"
    how = f"make it with `{command}`, readable for user {os.getuid()}"
    try:
        _check_own(folder, options)
        with _opened(FILE, os.O_RDONLY | os.O_DIRECT, within=folder) as file:
            about = os.fstat(file)
            if about.st_dev != os.fstat(folder).st_dev:
                raise NotRead(f"{name} is a mount of its own; unmount it")
            if about.st_size < options.size:
                raise NotRead(f"{name} has {about.st_size} bytes, and {options.size} are read: {how}")
            return _rate(seen, file, options, backing)
    except FileNotFoundError:
        raise NotRead(f"there is no {name}, and the policy allows no writing (nvme.write): {how}") from None
    except PermissionError:
        raise NotRead(f"{name} may not be read: {how}") from None
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        raise NotRead(
            f"{backing.filesystem} refuses reads past the page cache (O_DIRECT) of {name}"
        ) from None


def _check_own(folder: int, options: Options) -> os.stat_result:
    """What is known of the file; raises `NotRead` for a link, a pipe or a device."""
    about = os.stat(FILE, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISREG(about.st_mode):
        raise NotRead(f"{options.path.rstrip('/')}/{FILE} is no file; remove it")
    return about


def _rate(seen: Storage, file: int, options: Options, backing: Backing) -> Storage:
    """Read for the time asked for, and believe it only if the device delivered it."""
    before = mounts.bytes_read(backing.folder) if backing.folder is not None else None
    blocks, zeros = options.size // BLOCK, [0] * THREADS
    began = time.monotonic()
    until = began + options.seconds

    def read(number: int, block: int, buffer: mmap.mmap) -> int:
        if time.monotonic() >= until or block >= PASSES * blocks:
            return 0
        count = os.preadv(file, [buffer], block % blocks * BLOCK)
        zeros[number] += not any(buffer[:64])
        return count

    count = _in_threads(read)
    taken = time.monotonic() - began
    after = mounts.bytes_read(backing.folder) if backing.folder is not None else None
    seen = replace(seen, bytes=count, seconds=round(taken, 3))
    if not count:
        raise NotRead("nothing could be read")
    if sum(zeros) * BLOCK * 100 > count:
        raise NotRead(f"{FILE} holds zeros, which a disk need not read: fill it with random data")
    if before is not None and after is not None and after - before < FROM_DISK_SHARE * count:
        share = max(0.0, (after - before) / count)
        raise NotRead(f"only {share:.0%} of what was read came from {backing.device}: the rest was cached")
    return replace(seen, read_gbps=short(count / max(taken, 1e-9) / 1e9))


def _in_threads(step: Callable[[int, int, mmap.mmap], int]) -> int:
    """Bytes that `step` moved until it returned 0 in each thread, with blocks counted over all of them."""
    numbers, lock = iter(range(1 << 62)), threading.Lock()
    moved, errors = [0] * THREADS, list[Exception]()

    def work(number: int) -> None:
        buffer = mmap.mmap(-1, BLOCK)  # page-aligned, as O_DIRECT wants it
        try:
            while not errors:
                with lock:
                    block = next(numbers)
                if not (count := step(number, block, buffer)):
                    return
                moved[number] += count
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,), daemon=True, name=f"io-{n}") for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(moved)


def _make(folder: int, options: Options) -> float | None:
    """Make the file unless one is large enough; GB/s of writing it, None if nothing was written."""
    with suppress(FileNotFoundError):
        if _check_own(folder, options).st_size >= options.size:
            return None
        os.unlink(FILE, dir_fd=folder)
    part = f"{FILE}.part"
    with suppress(FileNotFoundError):
        os.unlink(part, dir_fd=folder)
    space = os.fstatvfs(folder)
    free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    if free - options.size < FREE_SHARE * total:
        raise NotRead(
            f"{free / 2**30:.0f} GiB are free, and {FREE_SHARE:.0%} must stay so beside {FILE}: "
            "make room, or lower nvme.sizeGib"
        )
    try:
        seconds = _write(folder, part, options.size)
        os.rename(part, FILE, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise
    return short(options.size / max(seconds, 1e-9) / 1e9)


def _write(folder: int, name: str, size: int) -> float:
    """Seconds to write random data past the page cache and to have it on the disk."""
    random, began = os.urandom(BLOCK - 8), time.monotonic()
    with _opened(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, within=folder) as file:

        def write(_: int, block: int, buffer: mmap.mmap) -> int:
            if block >= size // BLOCK:
                return 0
            if time.monotonic() - began > WRITE_S:
                raise NotRead(f"{FILE} was not written within {WRITE_S:g} s: lower nvme.sizeGib")
            buffer[:] = block.to_bytes(8, "little") + random  # no two alike, or a disk might keep one
            return os.pwritev(file, [buffer], block * BLOCK)

        _in_threads(write)
        os.fsync(file)
    return time.monotonic() - began
