# nodegauge: Apache-2.0, see LICENSE
"""Reads one BMC by the archive, where the task runs.  The password goes by standard input alone.

Must not judge; the controller does.
"""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ARGUMENTS = {
    "url": {"type": "str", "required": True},
    "username": {"type": "str", "default": ""},
    "password": {"type": "str", "no_log": True, "default": ""},
    "ca": {"type": "path"},
    "ca_content": {"type": "str"},
    "fingerprint": {"type": "str"},
    "insecure": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 60},
    "needed": {"type": "int"},
    "policy": {"type": "dict"},
    "archive": {"type": "path"},
}
PACKAGES = ("aiohttp", "cryptography")
OLDEST = (3, 11)
MARGIN_S = 20
"""Seconds beyond `timeout` for the program's own start and end."""
SHOWN = 600
"""Characters of the program's text in a message."""


class NotRead(Exception):
    """There is no reading; the message says why, and what to do."""


def lacks(version, known):
    """What this Python lacks to read a BMC, in a sentence.  `known`: whether it has a package."""
    missing = [package for package in PACKAGES if not known(package)]
    where = "Run the task on the controller (delegate_to: localhost), or give it"
    if tuple(version) < OLDEST:
        running = ".".join(str(part) for part in version[:3])
        return f"This Python is {running}; reading a BMC needs 3.11 or newer. {where} a newer one."
    if missing:
        names = " ".join(missing)
        return f"This Python lacks {' and '.join(missing)}: {sys.executable} -m pip install {names}"
    return ""


def has_package(name):
    """Whether this Python has a package."""
    return importlib.util.find_spec(name) is not None


def read(params):
    """What the archive prints of a BMC: `reading` and `judgement`.  Raises `NotRead`."""
    if not params["archive"]:
        raise NotRead(
            "The option archive is missing: without the collection's action plugin nothing copies it."
        )
    problem = lacks(sys.version_info, has_package)
    if problem:
        raise NotRead(problem)
    with _ca_file(params) as ca:
        return _run(_command(params, ca), params)


def _command(params, ca):
    command = [sys.executable, params["archive"], "bmc", f"--deadline={params['timeout']}s"]
    if params["username"]:
        command += [f"--user={params['username']}", "--password-file=-"]
    if ca:
        command.append(f"--ca={ca}")
    if params["fingerprint"]:
        command.append(f"--fingerprint={params['fingerprint']}")
    if params["insecure"]:
        command.append("--insecure")
    return [*command, "--", params["url"]]


def _run(command, params):
    try:
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            command,
            input=(params["password"] + "\n").encode(),
            capture_output=True,
            timeout=params["timeout"] + MARGIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotRead(f"The BMC was not read within {params['timeout'] + MARGIN_S} s.") from None
    except OSError as error:
        raise NotRead(f"The archive cannot be started: {error}.") from None
    try:
        answer = json.loads(done.stdout.decode("utf-8", "replace"))
        if isinstance(answer, dict) and "reading" in answer:
            return answer
    except ValueError:
        pass
    text = " ".join(done.stderr.decode("utf-8", "replace").split())
    text = text[text.rfind("Error: ") + 7 :] if "Error: " in text else text
    if params["password"]:
        text = text.replace(params["password"], "********")
    raise NotRead(text[-SHOWN:] or f"The archive ended with code {done.returncode} and said nothing.")


@contextlib.contextmanager
def _ca_file(params):
    """The path of the CA; one that is given as text stands in a file until the reading ends."""
    if not params["ca_content"]:
        yield params["ca"]
        return
    handle, path = tempfile.mkstemp(prefix="nodegauge-ca-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(params["ca_content"])
        yield path
    finally:
        Path(path).unlink()
