"""How a pod's containers end, and what the API then says."""

from __future__ import annotations

import signal
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from testbed.kubelet.process import ContainerProcess, ProcessSpec
from testbed.podtests import (
    Lab,
    end,
    say,
)

pytestmark = pytest.mark.cluster


async def test_last_words_reach_the_api(lab: Lab) -> None:
    """A pod's termination message, exit code and times are in its status, and it has Succeeded."""
    name = await lab.run(say('{"ok": true}'))
    status = await lab.ended(name)
    assert status["phase"] == "Succeeded"
    assert end(status)["message"] == '{"ok": true}'
    assert end(status)["exitCode"] == 0
    assert end(status)["reason"] == "Completed"
    times = [datetime.fromisoformat(end(status)[key]) for key in ("startedAt", "finishedAt")]
    assert times == sorted(times)


async def test_a_message_is_cut_at_4096_bytes(lab: Lab) -> None:
    """Of a longer message the last 4096 bytes are kept, as by a real kubelet."""
    name = await lab.run(say("a" * 100 + "b" * 4096))
    assert end(await lab.ended(name))["message"] == "b" * 4096


async def test_a_failure_keeps_code_and_message(lab: Lab) -> None:
    """A non-zero exit code makes the pod Failed and its message stays."""
    name = await lab.run(say("bad cable") + "raise SystemExit(3)")
    status = await lab.ended(name)
    assert (status["phase"], end(status)["exitCode"], end(status)["reason"]) == ("Failed", 3, "Error")
    assert end(status)["message"] == "bad cable"


async def test_a_crash_by_signal_is_128_and_more(lab: Lab) -> None:
    """A process killed by SIGSEGV shows as 139, as on a real node."""
    name = await lab.run("import os; os.kill(os.getpid(), 11)")
    assert end(await lab.ended(name))["exitCode"] == 139


async def test_logs_stand_in_for_a_missing_message(lab: Lab) -> None:
    """FallbackToLogsOnError gives the end of the output, after a failure only."""
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    bad = await lab.run("print('x' * 5000); print('the end'); raise SystemExit(1)", container=policy)
    good = await lab.run("print('fine')", container=policy)
    message = end(await lab.ended(bad))["message"]
    assert message.endswith("the end\n")
    assert len(message) == 2048
    assert "message" not in end(await lab.ended(good))


async def test_a_command_that_is_not_there_is_a_start_error(lab: Lab) -> None:
    """An argv[0] that the image lacks ends as StartError with code 128, not as a silent wait."""
    name = await lab.run("", container={"command": ["no-such-program"]})
    status = await lab.ended(name)
    assert (end(status)["reason"], end(status)["exitCode"]) == ("StartError", 128)


async def test_a_deadline_keeps_the_containers_own_words(lab: Lab) -> None:
    """activeDeadlineSeconds sends SIGTERM; the pod is DeadlineExceeded with the container's own end."""
    script = (
        "import signal, sys\n"
        "def stop(*_):\n"
        f"    {say('half done')}\n"
        "    sys.exit(7)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "signal.pause()"
    )
    name = await lab.run(script, activeDeadlineSeconds=2)
    status = await lab.ended(name)
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert (end(status)["exitCode"], end(status)["message"]) == (7, "half done")


async def test_an_old_event_starts_nothing_again(lab: Lab, tmp_path: Path) -> None:
    """An event from before a pod's final status, read after it, does not run the pod a second time."""
    runs = tmp_path / "runs"
    name = await lab.run(f"open({str(runs)!r}, 'a').write('x')")
    await lab.ended(name)
    pod = await lab.pod(name)
    assert pod is not None
    pod["status"] = {"phase": "Running"}
    lab.kubelet._observe("MODIFIED", pod)
    again = await lab.run(say("later"))
    await lab.ended(again)
    assert runs.read_text() == "x"
    assert (await lab.pod(name) or {})["status"]["phase"] == "Succeeded"


async def test_a_signal_does_not_swallow_the_exit_code(tmp_path: Path) -> None:
    """A container that ends while it is being signalled keeps its own exit code."""
    spec = ProcessSpec(
        argv=[sys.executable, "-c", "raise SystemExit(5)"], env={}, cwd=tmp_path, log=tmp_path / "log"
    )
    process = await ContainerProcess.launch(spec)
    block_until_ended(process)
    process.signal(signal.SIGTERM)
    process.signal(signal.SIGKILL)
    assert await process.wait() == 5


def block_until_ended(process: ContainerProcess) -> None:
    """Wait with the event loop standing still, so that the container's last word is not read yet."""
    until = time.monotonic() + 20
    while process._shim.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.005)
