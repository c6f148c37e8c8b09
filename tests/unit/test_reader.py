"""The BMC reader at work: good BMCs among hostile ones, an API server that is away, secrets, its process."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from nodegauge_operator.api.chassis import parse_chassis
from nodegauge_operator.bmc_reader import poller
from nodegauge_operator.bmc_reader.outcome import Reason, reason_of
from nodegauge_operator.bmc_reader.poller import pause_after
from nodegauge_operator.bmc_reader.settings import parse
from nodegauge_operator.kube.client import APPLY
from nodegauge_operator.kube.errors import Forbidden, Unavailable, Unreachable
from nodegauge_operator.settings import SettingsError
from support.reading import Rig, reader
from support.virtual_time import in_virtual_time
from testbed.hardware import ipmibmc
from testbed.hardware.bmc import PASSWORD, USER, Behaviour, Bmc, serving, tree
from testbed.hardware.ipmimachine import server

LOGIN = {"username": USER, "password": PASSWORD, "ca": "ca.pem"}


@pytest.fixture
def folder(authority: trustme.CA, tmp_path: Path) -> Path:
    """An inventory that has the authority's certificate alone."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return tmp_path


@asynccontextmanager
async def two_bmcs(authority: trustme.CA, **behaviour: Any) -> AsyncIterator[tuple[Bmc, Bmc]]:
    async with (
        serving(tree("hpe"), authority=authority) as good,
        serving(tree("hpe"), authority=authority, behaviour=Behaviour(**behaviour)) as bad,
    ):
        yield good, bad


async def read_both(rig: Rig, good: Bmc, bad: Bmc, **fields: Any) -> None:
    """Both in the inventory, the good one read three times and the other tried."""
    rig.file("gpu-1", url=good.url, **LOGIN)
    rig.file("gpu-2", **({"url": bad.url} | LOGIN | fields))
    await rig.look()
    await rig.until(lambda: rig.status("gpu-1").get("number", 0) >= 3)
    await rig.until(lambda: rig.status("gpu-2").get("triedAt"))


@in_virtual_time
async def test_a_reading_becomes_the_node_s_object(authority: trustme.CA, folder: Path) -> None:
    """Owned by the node, labelled, counted, with what `kubectl get` shows; the document is the contract's."""
    async with two_bmcs(authority) as (good, other), reader(folder) as rig:
        await read_both(rig, good, other)
        body = rig.objects["gpu-1"]
    assert body["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert body["metadata"]["labels"]["nodegauge.dev/bmc-reader"] == "release"
    parsed = parse_chassis(body)
    assert parsed.left_out == ()
    assert len(parsed.reading.supplies) == parsed.status.supplies_present == 2
    assert (parsed.status.source, parsed.status.address) == ("redfish", good.url)
    assert (parsed.status.problem, parsed.status.read_at) == ("", parsed.status.tried_at)


@in_virtual_time
async def test_a_machine_without_redfish_is_read_by_ipmi(folder: Path) -> None:
    """Its object says by what; a wrong password and a closed port are named as for Redfish."""
    login = {"username": ipmibmc.USER, "password": ipmibmc.PASSWORD}
    async with ipmibmc.answering(server()) as bmc, reader(folder) as rig:
        rig.file("gpu-1", url=bmc.url, **login)
        rig.file("gpu-2", **login | {"url": bmc.url.replace("127.0.0.1", "127.0.0.2")})
        await rig.look()
        await rig.until(lambda: rig.status("gpu-1").get("number"))
        await rig.until(lambda: rig.status("gpu-2").get("triedAt"))
        rig.file("gpu-1", url=bmc.url, **login | {"password": "wrong"})
        await rig.look()
        await rig.until(lambda: rig.status("gpu-1").get("problem"))
    status = rig.status("gpu-1")
    assert (status["source"], status["address"], status["suppliesPresent"]) == ("ipmi", bmc.url, 4)
    assert reason_of(status["problem"]) is Reason.CREDENTIALS
    assert reason_of(rig.status("gpu-2")["problem"]) is Reason.CONNECTION


@pytest.mark.parametrize(
    ("behaviour", "fields", "reason"),
    [
        ({"hang": {"/redfish/v1/SessionService/Sessions"}}, {}, Reason.TIMEOUT),
        ({"delay": 1.5}, {}, Reason.TIMEOUT),
        ({"broken": {"/redfish/v1": 500}}, {}, Reason.ANSWER),
        ({"body": {"/redfish/v1": b"x" * 5_000_000}}, {}, Reason.ANSWER),
        ({}, {"password": "wrong"}, Reason.CREDENTIALS),
        ({}, {"ca": None}, Reason.CERTIFICATE),
        ({}, {"ca": None, "fingerprint": "00" * 32}, Reason.CERTIFICATE),
        ({}, {"url": "https://127.0.0.1:1"}, Reason.CONNECTION),
        ({}, {"url": "ftp://127.0.0.1:1"}, Reason.INVENTORY),
    ],
    ids=lambda value: str(value)[:40],
)
@in_virtual_time
async def test_a_bad_bmc_delays_and_hides_nothing(
    behaviour: Any, fields: Any, reason: Reason, authority: trustme.CA, folder: Path, caplog: Any
) -> None:
    """The good one is read at its pace; the bad one's object says why, in a log line and a metric too."""
    caplog.set_level(logging.INFO)
    async with two_bmcs(authority, **behaviour) as (good, bad), reader(folder, deadline=3.0) as rig:
        await read_both(rig, good, bad, **fields)
        problem = rig.status("gpu-2")["problem"]
        shown = rig.metrics.render().decode()
    assert problem
    assert "--" not in problem, "options of the command are none of the inventory"
    assert f'nodegauge_bmc_bmcs{{state="{reason}"}} 1.0' in shown, problem
    failed = f'nodegauge_bmc_failures_total{{reason="{reason}"}}'
    for counted in (failed, "nodegauge_bmc_readings_total", "nodegauge_bmc_reading_seconds_count"):
        refused = counted == failed and reason is Reason.INVENTORY  # it never tries such an entry
        assert bool(re.search(rf"(?m)^{re.escape(counted)} [1-9]", shown)) is not refused, counted
    assert rig.status("gpu-2").get("number") is None
    assert sum("gpu-2" in line for line in caplog.messages) == 1
    assert PASSWORD not in caplog.text + shown + str(rig.objects) + repr(rig.poller._tasks)


@in_virtual_time
async def test_hanging_bmcs_leave_slots_for_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty of them and eight slots: those that failed once wait for slots of their own, for ever here."""
    async with reader(folder) as rig:
        rig.nodes = {f"gpu-{i}": f"uid-{i}" for i in range(30)}

        tried: set[str] = set()

        async def read(access: Any, deadline: float) -> Any:
            if int(access.url.rpartition("-")[2]) < 20:
                if access.url in tried:
                    await asyncio.sleep(3600)
                tried.add(access.url)
                raise poller.BmcError("no answer within 0.3 s")
            from nodegauge_contract.chassis import ChassisReading

            return ChassisReading()

        monkeypatch.setattr(rig.poller, "_read", read)
        rig.file("_defaults", url="https://bmc-{node}")
        await rig.look()
        await rig.until(lambda: all(rig.status(f"gpu-{i}").get("number", 0) >= 20 for i in range(20, 30)))
        await rig.until(lambda: all(rig.status(f"gpu-{i}").get("problem") for i in range(20)))


@in_virtual_time
async def test_a_failed_try_keeps_the_last_reading(authority: trustme.CA, folder: Path) -> None:
    """And the next one that works goes on counting and takes the problem away."""
    async with two_bmcs(authority) as (good, _), reader(folder) as rig:
        rig.file("gpu-1", url=good.url, **LOGIN)
        await rig.look()
        await rig.until(lambda: rig.status("gpu-1").get("number", 0) >= 2)
        good.behaviour.broken["/redfish/v1"] = 500
        await rig.until(lambda: rig.status("gpu-1")["problem"])
        failed = rig.status("gpu-1")
        assert failed["reading"]["supplies"]
        assert failed["number"] >= 2
        good.behaviour.broken.clear()
        await rig.until(lambda: not rig.status("gpu-1")["problem"])
        assert rig.status("gpu-1")["number"] > failed["number"]


@in_virtual_time
async def test_a_new_reader_counts_on(authority: trustme.CA, folder: Path) -> None:
    """The number is in the object; a reader that starts anew does not begin at 1."""
    async with two_bmcs(authority) as (good, _), reader(folder, interval=60) as rig:
        rig.objects["gpu-1"] = {"metadata": {"name": "gpu-1", "uid": "o"}, "status": {"number": 41}}
        rig.poller._pace = poller.Pace(interval=1.0, deadline=5, concurrency=1)
        rig.file("gpu-1", url=good.url, **LOGIN)
        await rig.look()
        await rig.until(lambda: rig.status("gpu-1").get("readAt"))
        written = [call.body["status"]["number"] for call in rig.client.calls if call.content_type == APPLY]
        assert written[0] == 42


@in_virtual_time
async def test_a_rotated_password_is_used_at_once(authority: trustme.CA, folder: Path) -> None:
    """A BMC that was refused does not wait once its file changed, and is never read twice at a time."""
    async with two_bmcs(authority) as (good, _), reader(folder, interval=2.0) as rig:
        rig.file("gpu-1", **({"url": good.url} | LOGIN | {"password": "of last week"}))
        await rig.look()
        await rig.until(lambda: "password" in rig.status("gpu-1").get("problem", ""))
        rig.file("gpu-1", url=good.url, **LOGIN)
        await rig.loop.one_pass()
        await rig.until(lambda: rig.status("gpu-1").get("number") == 1)
        assert rig.most == 1


@pytest.mark.parametrize("gone", ["node", "file"])
@in_virtual_time
async def test_what_leaves_is_deleted_and_read_no_more(
    gone: str, authority: trustme.CA, folder: Path
) -> None:
    """A node without its file, or a file without its node; an emptied Secret deletes nothing."""
    async with two_bmcs(authority) as (good, other), reader(folder) as rig:
        await read_both(rig, good, other)
        if gone == "node":
            del rig.nodes["gpu-2"]
        else:
            (folder / "gpu-2").unlink()
        await rig.look()
        assert set(rig.objects) == {"gpu-1"}
        unused = rig.metrics.registry.get_sample_value("nodegauge_bmc_unused_entries")
        assert unused == (gone == "node")
        asked = len(other.asked)
        (folder / "gpu-1").unlink()
        (folder / "gpu-2").unlink(missing_ok=True)
        await rig.look()
        assert set(rig.objects) == {"gpu-1"}
        assert "empty" in rig.loop.unready()
        assert len(other.asked) == asked


@pytest.mark.parametrize("error", [Unavailable("429"), Unreachable("refused"), Forbidden("no")])
@in_virtual_time
async def test_an_api_server_that_is_away_stops_no_reading(
    error: Any, authority: trustme.CA, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_bmcs(authority) as (good, other), reader(folder) as rig:
        await read_both(rig, good, other)
        rig.refuse = error
        number, asked = rig.status("gpu-1")["number"], len(good.asked)
        await rig.until(lambda: len(good.asked) > asked + 30)
        with pytest.raises(type(error)):
            await rig.look()
        assert rig.status("gpu-1")["number"] == number
        rig.refuse = None
        await rig.look()
        await rig.until(lambda: rig.status("gpu-1")["number"] > number)


@in_virtual_time
async def test_a_reading_waits_for_the_api_server(authority: trustme.CA, folder: Path) -> None:
    """It is written once the API server is back; the BMC is not asked again for it."""
    async with two_bmcs(authority) as (good, _), reader(folder, interval=10.0) as rig:
        rig.file("gpu-1", url=good.url, **LOGIN)
        await rig.look()
        rig.refuse = Unavailable("429")
        await rig.until(lambda: good.ended)
        asked = len(good.asked)
        await rig.until(lambda: "nodegauge_bmc_unwritten_total 1.0" in rig.metrics.render().decode())
        rig.refuse = None
        await rig.until(lambda: rig.status("gpu-1").get("number") == 1)
        assert len(good.asked) == asked


@in_virtual_time
async def test_it_stops_within_seconds_in_the_middle_of_reading(
    authority: trustme.CA, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions are closed; a BMC that hangs in its logout is cut off."""
    monkeypatch.setattr(poller, "STOP_SECONDS", 0.3)
    async with AsyncExitStack() as stack:
        good, bad = await stack.enter_async_context(two_bmcs(authority, delay=0.2))
        rig = await stack.enter_async_context(reader(folder, timeout=600.0, deadline=1200.0))
        bad.behaviour.hang.add("/redfish/v1/SessionService/Sessions/token-0")
        rig.file("gpu-1", url=good.url, **LOGIN)
        rig.file("gpu-2", url=bad.url, **LOGIN)
        good.behaviour.hang.add("/redfish/v1/Chassis")
        bad.behaviour.hang.add("/redfish/v1/Chassis")
        await rig.look()
        await rig.until(lambda: good.tokens and bad.tokens and len(bad.asked) > 2)
        loop, tasks = asyncio.get_running_loop(), [task for _, task in rig.poller._tasks.values()]
        started = loop.time()
        await rig.poller.stop()
        assert [task.done() for task in tasks] == [True, True]
        assert loop.time() - started < 60, "it waited for an answer"
        assert len(good.ended) == 1


@in_virtual_time
async def test_a_defect_of_the_reader_costs_one_bmc(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that the code cannot handle: the object says so, and the task goes on."""
    async with reader(folder) as rig:

        async def read(access: Any, deadline: float) -> Any:
            raise KeyError("Members")

        monkeypatch.setattr(rig.poller, "_read", read)
        rig.file("gpu-1", url="https://a")
        await rig.look()
        await rig.until(lambda: "the reader failed (KeyError)" in rig.status("gpu-1").get("problem", ""))


def test_the_pause_doubles_to_half_an_hour_and_never_falls_below_the_interval() -> None:
    pauses = [pause_after(n, interval=300) for n in (0, 1, 2, 3, 4, 9, 10_000)]
    assert pauses == [300, 300, 600, 1200, 1800, 1800, 1800]
    assert pause_after(5, interval=7200) == 7200


def test_an_unknown_problem_has_a_reason() -> None:
    assert reason_of("something new") is Reason.ANSWER


def test_its_memory_is_its_own() -> None:
    """No core dump, and only root may look into it (prctl(2), PR_GET_DUMPABLE)."""
    code = (
        "import ctypes, resource; from nodegauge_operator.bmc_reader.__main__ import keep_memory_private; "
        "keep_memory_private(); "
        "print(resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(0, 0) 0"


def test_wrong_settings_are_listed_together() -> None:
    with pytest.raises(SettingsError) as caught:
        parse({"NODEGAUGE_BMC_INTERVAL": "1s", "NODEGAUGE_BMC_CONCURRENCY": "many"})
    for name in ("NODEGAUGE_BMC_INVENTORY", "NODEGAUGE_BMC_INTERVAL", "NODEGAUGE_BMC_CONCURRENCY"):
        assert name in str(caught.value)
