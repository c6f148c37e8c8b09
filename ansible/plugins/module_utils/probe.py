# nodegauge: Apache-2.0, see LICENSE
"""Runs one probe of the archive on this host: in time, with one document, and without leaving anything.

Must not judge; the controller does.  Any Python that Ansible can use must be able to read this file,
so that an old one gets a sentence: no annotations.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

COMMON = {
    "policy": {"type": "dict"},
    "before": {"type": "dict"},
    "expected_gpus": {"type": "int", "default": 0},
    "name": {"type": "str"},
    "archive": {"type": "path"},
    "keep_archive": {"type": "path"},
    "bring_python": {"type": "path"},
}
"""Options of every probe's module.  The action plugin gives the module the archive's path on this host."""
ARGUMENTS = {
    "health": dict(
        COMMON,
        timeout={"type": "int", "default": 55},
        window={"type": "float", "default": 3.0},
        hz={"type": "float", "default": 4.0},
    ),
    "nccl": dict(
        COMMON,
        timeout={"type": "int", "default": 820},
        engine={"type": "str", "choices": ["nccl4py", "nccl-tests"], "default": "nccl4py"},
        nccl_tests={"type": "path"},
        nccl_variables={"type": "dict", "default": {}},
        budget={"type": "float", "default": 60.0},
    ),
    "load": dict(
        COMMON,
        timeout={"type": "int", "default": 0},
        seconds={"type": "float", "default": 30.0},
        hz={"type": "float", "default": 4.0},
        stop_below={"type": "int", "default": 3},
    ),
}
"""Each probe's options, with the defaults of the probe."""
MARGIN_S = 10.0
"""Seconds between the probe's own deadline and ours; a third of `timeout` if that is less."""
WRITE_S, CLEAN_S, LAST_S = 3.0, 1.0, 1.0
"""After SIGTERM the probe may write its document, then its parent may remove its files."""
POLL_S = 0.05
DOCUMENT_LIMIT = 1 << 20
"""Bytes.  A document of 16 GPUs has at most 32,768."""
SHOWN = 400
"""Characters of a probe's output in a message."""
CANNOT_RUN, BAD_ARGUMENTS = 4, 2
"""Exit codes of the archive."""
MAPPING_REFUSED = ("failed to map segment", "cannot enable executable stack")
"""What the dynamic loader says where a file system or a security module forbids to map a library's code."""
OTHER_FOLDER = (
    "Choose another folder for temporary files: `remote_tmp` (ansible_remote_tmp) of Ansible for this host, "
    "and TMPDIR in the task's `environment`. Its file system must have 30 MB free and no `noexec`."
)


class CannotMeasure(Exception):
    """No document; the message says why, `steps` what to do."""

    def __init__(self, message, steps):
        super().__init__(message)
        self.steps = steps


def _end(*_ignored):
    """A signal ends the module in the way that cleans up."""
    raise SystemExit(1)


def main(module, probe, options, timeout=0):
    """Run the probe and leave the module with its document.  `timeout`: seconds, if the task says nothing."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    if not module.params["archive"]:
        module.fail_json(
            msg="The option `archive` is missing: without the collection's action plugin nothing copies it.",
            steps=[],
        )
    archive = Path(module.params["archive"])
    limit = module.params["timeout"] or timeout
    environment = probe_environment(module.params, os.environ)
    try:
        document = measure([str(archive), "probe", probe, *options], environment, limit, archive)
    except CannotMeasure as error:
        module.fail_json(msg=str(error), steps=error.steps)
    module.exit_json(changed=False, document=document)


def probe_environment(params, environment):
    """The probe's environment: the task's, and what the options say.  A variable of the task comes first."""
    own = {"NODEGAUGE_TERMINATION_LOG": os.devnull}  # never that of a pod in which Ansible runs
    if params.get("name"):
        own["NODEGAUGE_NODE"] = params["name"]
    if params.get("expected_gpus"):
        own["NODEGAUGE_GPUS"] = str(params["expected_gpus"])
    if params.get("nccl_tests"):
        own["NODEGAUGE_NCCL_TESTS"] = params["nccl_tests"]
    return {**own, **environment}


def measure(command, environment, timeout, archive):
    """The probe's document, within `timeout` seconds and a little.  Raises `CannotMeasure`."""
    deadline = max(1.0, timeout - min(MARGIN_S, timeout / 3.0))
    command = [sys.executable, *command, "--deadline", f"{deadline:g}"]
    folder = private_folder(environment)
    try:
        if folder is not None:
            environment = {**environment, "TMPDIR": folder}
        run = Run(command, environment)
        try:
            stopped = run.wait(timeout, archive)
        finally:
            stuck = run.stop()
        return document_of(run, timeout if stopped else 0, stuck)
    except OSError as error:
        raise CannotMeasure(f"The probe cannot be started: {error}.", [OTHER_FOLDER]) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def private_folder(environment):
    """A folder for all that the archive unpacks, so that it goes even if the archive is killed."""
    try:
        return tempfile.mkdtemp(prefix="nodegauge-", dir=environment.get("TMPDIR") or None)
    except OSError:  # the archive tries other folders, and says what is wrong with them
        return None


class Run:
    """A probe in a session of its own.  What it prints is kept up to a limit."""

    def __init__(self, command, environment):
        # run_command cannot end a probe's whole session at its time limit.
        self.process = subprocess.Popen(  # pylint: disable=ansible-bad-function
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self.process.pid
        self.stdout, self.stderr = bytearray(), bytearray()
        self._readers = [
            self._read(self.process.stdout, self.stdout),
            self._read(self.process.stderr, self.stderr),
        ]

    @staticmethod
    def _read(stream, kept):
        def read():
            while len(kept) <= DOCUMENT_LIMIT:
                chunk = os.read(stream.fileno(), 65536)
                if not chunk:
                    return
                kept.extend(chunk)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        return reader

    @property
    def code(self):
        return self.process.poll()

    def wait(self, seconds, archive):
        """Until it ends; True if time ran out.  It also ends if Ansible removed the task's files."""
        end = time.monotonic() + seconds
        while self.code is None:
            if len(self.stdout) > DOCUMENT_LIMIT or not archive.exists():
                return False
            if time.monotonic() > end:
                return True
            time.sleep(POLL_S)
        return False

    def stop(self):
        """End all of its processes; those that cannot be ended, as `pid (name)`."""
        if self.code is None:
            self._signal(signal.SIGTERM, self.pid)
            if not self._ended(WRITE_S):
                for pid in processes(self.pid):
                    if pid != self.pid:
                        self._signal(signal.SIGKILL, pid)
                self._ended(CLEAN_S)
        for pid in processes(self.pid):
            self._signal(signal.SIGKILL, pid)
        self._ended(LAST_S)
        for reader in self._readers:
            reader.join(LAST_S)
        return [f"{pid} ({name})" for pid, (name, state) in processes(self.pid).items() if state not in "ZX"]

    @staticmethod
    def _signal(number, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def _ended(self, seconds):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def processes(session):
    """The processes of a session: pid to name and state, as in proc(5)."""
    members = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                head, _end_of_name, tail = (entry / "stat").read_text(errors="replace").rpartition(")")
            except OSError:
                continue
            fields = tail.split()
            if len(fields) > 3 and int(fields[3]) == session:
                members[int(entry.name)] = (head.partition("(")[2], fields[0])
    return members


def document_of(run, timeout, stuck):
    """The document that the run printed.  `timeout`: seconds, if that ended it.  Raises `CannotMeasure`."""
    hung = ""
    if stuck:
        hung = f" Process {', '.join(stuck)} is stuck in the driver and cannot be killed: reboot the host."
    text = bytes(run.stdout).decode("utf-8", "replace")
    if len(run.stdout) <= DOCUMENT_LIMIT:
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        if isinstance(document, dict) and document.get("schema"):
            if hung:
                document = with_stuck(document, hung.strip())
            return document
    raise why(run, timeout, hung, text)


def with_stuck(document, message):
    """The document, which also names processes that cannot be ended."""
    problem = document.get("problem") or {"kind": "call-hung", "call": "", "code": None, "message": ""}
    joined = f"{problem.get('message', '')}. {message}" if problem.get("message") else message
    return {**document, "problem": {**problem, "message": joined}}


def why(run, timeout, hung, text):
    """Why there is no document, and what to do."""
    errors = bytes(run.stderr).decode("utf-8", "replace").strip()
    last = f" It wrote: {errors[-SHOWN:]}" if errors else ""
    if len(run.stdout) > DOCUMENT_LIMIT:
        return CannotMeasure(f"The probe printed more than {DOCUMENT_LIMIT} bytes.", [ANOTHER_ARCHIVE])
    nvidia_smi = "Log in and run `timeout 30 nvidia-smi`. If it hangs too, reboot the host."
    if timeout:
        steps = [nvidia_smi, "If the host is only slow, raise `timeout` of the task."]
        return CannotMeasure(f"The probe did not end within {timeout} s.{hung}{last}", steps)
    if run.code == CANNOT_RUN:
        return CannotMeasure(
            errors.replace("nodegauge: ", "", 1) + ".", [OTHER_FOLDER] if "unpack" in errors else []
        )
    if any(refusal in errors for refusal in MAPPING_REFUSED):
        steps = [
            OTHER_FOLDER,
            "With SELinux: `ausearch -m avc -ts recent` names the rule that refused.",
        ]
        return CannotMeasure(f"The host refused to load the probe's compiled parts.{last}", steps)
    if run.code == BAD_ARGUMENTS:
        return CannotMeasure(f"The probe refused an option.{last}", ["Correct the task's options."])
    if run.code is not None and run.code < 0:
        name = signal.Signals(-run.code).name
        steps = [f"`dmesg | tail -50` on the host says who sent {name}: the kernel, if memory ran out."]
        return CannotMeasure(f"The probe was killed by {name}.{hung}{last}", steps)
    shown = f" It printed: {text[:SHOWN]!r}." if text else " It printed nothing."
    return CannotMeasure(
        f"The probe ended with code {run.code} and without a document.{shown}{last}", [ANOTHER_ARCHIVE]
    )


ANOTHER_ARCHIVE = (
    "Check `archive`: it must be the collection's nodegauge-host.pyz. Run "
    "`python nodegauge-host.pyz probe health` on the host by hand, and report what it prints."
)
