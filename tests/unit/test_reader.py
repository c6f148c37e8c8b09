"""The BMC reader among hostile BMCs and an API server that is away; its secrets, process and inventory."""

import asyncio
import logging
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodegauge_bmc.inventory import Entry, Inventory, Plan
from nodegauge_contract.chassis import ChassisReading
from nodegauge_operator.api.chassis import parse_chassis
from nodegauge_operator.bmc_reader import poller
from nodegauge_operator.bmc_reader.outcome import Reason, reason_of
from nodegauge_operator.bmc_reader.poller import pause_after
from nodegauge_operator.bmc_reader.settings import parse
from nodegauge_operator.kube.client import APPLY
from nodegauge_operator.kube.errors import Forbidden, Unavailable, Unreachable
from nodegauge_operator.settings import SettingsError
from support.bmc_access import Bmcs
from support.reading import Rig, reader
from support.virtual_time import in_virtual_time
from testbed.hardware import ipmibmc
from testbed.hardware.bmc import PASSWORD, USER, Bmc
from testbed.hardware.ipmimachine import server

LOGIN = {"username": USER, "password": PASSWORD, "ca": "ca.pem"}


@pytest.fixture
def folder(bmcs: Bmcs, tmp_path: Path) -> Path:
    """An inventory that has the authority's certificate alone."""
    shutil.copy(bmcs.ca, tmp_path)
    return tmp_path


async def read_both(rig: Rig, good: Bmc, bad: Bmc, **fields: Any) -> None:
    """Both in the inventory, the good one read three times and the other tried."""
    rig.file("gpu-1", url=good.url, **LOGIN)
    rig.file("gpu-2", **({"url": bad.url} | LOGIN | fields))
    await rig.look()
    await rig.until(lambda: rig.status("gpu-1").get("number", 0) >= 3)
    await rig.until(lambda: rig.status("gpu-2").get("triedAt"))


@in_virtual_time
async def test_a_reading_becomes_the_node_s_object(bmcs: Bmcs, folder: Path) -> None:
    async with bmcs() as good, bmcs() as other, reader(folder) as rig:
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
        ({"says": {"/redfish/v1": (200, {}, b"x" * 5_000_000)}}, {}, Reason.ANSWER),
        ({}, {"password": "wrong"}, Reason.CREDENTIALS),
        ({"says": {"/redfish/v1/Chassis": (403, {}, b"no certificate")}}, {}, Reason.CREDENTIALS),
        ({}, {"ca": None}, Reason.CERTIFICATE),
        ({}, {"ca": None, "fingerprint": "00" * 32}, Reason.CERTIFICATE),
        ({}, {"url": "https://127.0.0.1:1"}, Reason.CONNECTION),
        ({}, {"url": "ftp://127.0.0.1:1"}, Reason.INVENTORY),
    ],
    ids=lambda value: str(value)[:40],
)
@in_virtual_time
async def test_a_bad_bmc_delays_and_hides_nothing(
    behaviour: Any, fields: Any, reason: Reason, bmcs: Bmcs, folder: Path, caplog: Any
) -> None:
    """The good one is read at its pace; the bad one's object says why, in a log line and a metric too."""
    caplog.set_level(logging.INFO)
    async with bmcs() as good, bmcs(**behaviour) as bad, reader(folder, deadline=3.0) as rig:
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
    async with reader(folder) as rig:
        rig.nodes = {f"gpu-{i}": f"uid-{i}" for i in range(30)}
        tried: set[str] = set()

        async def read(access: Any, deadline: float) -> Any:
            if int(access.url.rpartition("-")[2]) < 20:
                if access.url in tried:
                    await asyncio.sleep(3600)
                tried.add(access.url)
                raise poller.BmcError("no answer within 0.3 s")
            return ChassisReading()

        monkeypatch.setattr(rig.poller, "_read", read)
        rig.file("_defaults", url="https://bmc-{node}")
        await rig.look()
        await rig.until(lambda: all(rig.status(f"gpu-{i}").get("number", 0) >= 20 for i in range(20, 30)))
        await rig.until(lambda: all(rig.status(f"gpu-{i}").get("problem") for i in range(20)))


@in_virtual_time
async def test_a_failed_try_keeps_the_last_reading(bmcs: Bmcs, folder: Path) -> None:
    async with bmcs() as good, reader(folder) as rig:
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
async def test_a_new_reader_counts_on(bmcs: Bmcs, folder: Path) -> None:
    async with bmcs() as good, reader(folder, interval=60) as rig:
        rig.objects["gpu-1"] = {"metadata": {"name": "gpu-1", "uid": "o"}, "status": {"number": 41}}
        rig.poller._pace = poller.Pace(interval=1.0, deadline=5, concurrency=1)
        rig.file("gpu-1", url=good.url, **LOGIN)
        await rig.look()
        await rig.until(lambda: rig.status("gpu-1").get("readAt"))
        written = [call.body["status"]["number"] for call in rig.client.calls if call.content_type == APPLY]
        assert written[0] == 42


@in_virtual_time
async def test_a_rotated_password_is_used_at_once(bmcs: Bmcs, folder: Path) -> None:
    async with bmcs() as good, reader(folder, interval=2.0) as rig:
        rig.file("gpu-1", **({"url": good.url} | LOGIN | {"password": "of last week"}))
        await rig.look()
        await rig.until(lambda: "password" in rig.status("gpu-1").get("problem", ""))
        rig.file("gpu-1", url=good.url, **LOGIN)
        await rig.loop.one_pass()
        await rig.until(lambda: rig.status("gpu-1").get("number") == 1)
        assert rig.most == 1


@pytest.mark.parametrize("gone", ["node", "file"])
@in_virtual_time
async def test_what_left_is_deleted_and_read_no_more(gone: str, bmcs: Bmcs, folder: Path) -> None:
    async with bmcs() as good, bmcs() as other, reader(folder) as rig:
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
async def test_an_api_server_that_is_away_stops_no_reading(error: Any, bmcs: Bmcs, folder: Path) -> None:
    async with bmcs() as good, bmcs() as other, reader(folder) as rig:
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
async def test_a_reading_waits_for_the_api_server(bmcs: Bmcs, folder: Path) -> None:
    async with bmcs() as good, reader(folder, interval=10.0) as rig:
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
    bmcs: Bmcs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "STOP_SECONDS", 0.3)
    patient = {"timeout": 600.0, "deadline": 1200.0}
    async with bmcs() as good, bmcs(delay=0.2) as bad, reader(folder, **patient) as rig:
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


NODES = {"gpu-1": "u1", "gpu-2": "u2", "gpu-3.example.com": "u3"}
SECRET = "s3cret-of-the-bmc"
OWN_LOGIN = {"username": "reader", "password": SECRET}


def plan(folder: Path, selected: frozenset[str] = frozenset(NODES), **files: Any) -> Plan:
    """What follows from files with these names; texts are written as they are, `__` is a dot."""
    for name, content in files.items():
        text = content if isinstance(content, str) else yaml.safe_dump(content)
        (folder / name.replace("__", ".").replace("gpu_", "gpu-")).write_text(text)
    inventory = Inventory(folder)
    inventory.changed()
    result = inventory.plan(NODES, selected=selected, timeout=3.0)
    assert SECRET not in repr(result)
    assert SECRET not in str([*result.problems.values(), *result.unused])
    return result


def test_a_file_per_node_and_a_pattern_for_the_rest(tmp_path: Path) -> None:
    result = plan(
        tmp_path,
        _defaults={"url": "https://{short}-bmc.example.com", **OWN_LOGIN, "insecure": True},
        gpu_1__json='{"url": "https://10.0.0.7:8443/", "fingerprint": "' + "ab" * 32 + '"}',
    )
    access = {node: target.access for node, target in result.targets.items()}
    assert result.problems == {}
    assert access["gpu-1"].url == "https://10.0.0.7:8443"
    first = access["gpu-1"]
    assert (first.insecure, first.password, first.timeout) == (False, SECRET, 3.0)
    assert access["gpu-3.example.com"].url == "https://gpu-3-bmc.example.com"
    assert access["gpu-3.example.com"].insecure
    assert plan(tmp_path, frozenset({"gpu-2"})).targets.keys() == {"gpu-1", "gpu-2"}, "selected, or its own"


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (f"url: https://a\npassword: {SECRET}", "username: missing"),
        ("url: https://a\nusername: reader", "password: missing"),
        ("username: a\npassword: b", "url: missing; write https://HOST"),
        ("url: https://a\nusername: r\npassword: 12345678", "password: of the wrong type"),
        (f"url: https://a\npasword: {SECRET}", "pasword: no such field; the fields are url"),
        (f"url: https://a\npassword: [{SECRET}", "no YAML from line"),
        (f"- {SECRET}", "no fields"),
        ("", "no fields"),
        (f"url: https://r:{SECRET}@a", "contains a user or a password"),
        ("url: http://a", "insecure"),
        ("url: https://a\nca: other.pem", "ca: no such file"),
        ("url: https://a\nca: ../../etc/passwd", "ca: no such file"),
        ("x" * 70_000, "more than 65536 bytes"),
        ("\x00", "no YAML"),
    ],
)
def test_a_wrong_file_names_its_field_and_costs_its_node(content: str, part: str, tmp_path: Path) -> None:
    result = plan(tmp_path, gpu_1=content, gpu_2={"url": "https://good", **OWN_LOGIN})
    assert part in result.problems["gpu-1"]
    assert result.problems["gpu-1"].startswith("gpu-1")
    assert "--" not in result.problems["gpu-1"]
    assert list(result.targets) == ["gpu-2"]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("IPMI://10.0.0.7:623", "ipmi://10.0.0.7"),
        ("ipmi://[fd00::7]:6623/", "ipmi://[fd00::7]:6623"),
        ("auto://bmc:8443/", "auto://bmc:8443"),
        ("bmc-7", "https://bmc-7"),
    ],
)
def test_the_scheme_names_the_protocol(url: str, address: str, tmp_path: Path) -> None:
    for tls in ({"ca": "ca.pem"}, {"insecure": True}):
        result = plan(tmp_path, _defaults=tls | OWN_LOGIN, gpu_1={"url": url}, ca__pem="bundle")
        access = result.targets["gpu-1"].access
        assert access.url == address
        assert (bool(access.ca) or access.insecure) == (not address.startswith("ipmi"))


def test_two_files_for_one_node_and_two_nodes_with_one_bmc_are_refused(tmp_path: Path) -> None:
    twice = plan(tmp_path, gpu_1={"url": "https://a"}, gpu_1__yaml={"url": "https://b"})
    assert "another file for the node gpu-1" in twice.problems["gpu-1"]
    (tmp_path / "gpu-1.yaml").unlink()
    for url in ("https://A", "ipmi://a"):
        shared = plan(tmp_path, gpu_1={"url": "https://a"} | OWN_LOGIN, gpu_2={"url": url} | OWN_LOGIN)
        assert (shared.targets, set(shared.problems)) == ({}, {"gpu-1", "gpu-2"})
        assert "several nodes" in shared.problems["gpu-2"]


def test_files_without_a_node_are_named_and_nothing_else(tmp_path: Path) -> None:
    own = {"url": "https://b", "ca": "ca.pem"}
    result = plan(tmp_path, gone={"url": "https://a"}, README_FIRST="read me", ca__pem="bundle", gpu_1=own)
    assert [text.partition(":")[0] for text in result.unused] == ["README_FIRST", "gone"]
    assert result.targets["gpu-1"].access.ca == str(tmp_path / "ca.pem")


def test_wrong_defaults_are_said_for_every_node_that_needs_them(tmp_path: Path) -> None:
    result = plan(tmp_path, _defaults="url: [", gpu_1={"url": "https://a"})
    assert set(result.problems) == set(NODES)
    assert result.targets == {}


def test_only_changed_files_are_read_again(tmp_path: Path) -> None:
    for version in ("one", "two"):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "gpu-1").write_text(f"url: https://{version}")
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "gpu-1").symlink_to("..data/gpu-1")
    inventory = Inventory(tmp_path)
    assert [inventory.changed(), inventory.changed()] == [True, False]
    (tmp_path / "..next").symlink_to("..two")
    (tmp_path / "..next").rename(tmp_path / "..data")
    assert inventory.changed()
    assert inventory.plan(NODES, selected=frozenset(), timeout=1).targets["gpu-1"].address == "https://two"


def test_an_entry_shows_no_secret() -> None:
    entry = Entry(url="https://a", username="reader", password=SECRET)
    assert SECRET not in repr(entry) + str(entry) + str(list(entry.__rich_repr__()))
    assert pickle.loads(pickle.dumps(entry)) == entry
