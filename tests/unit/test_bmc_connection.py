"""A BMC over Redfish: slow, wrong or not one, what stays secret, and GPUs as a baseboard shows them."""

import asyncio
import copy
import hashlib
import json
import ssl
from typing import Any, cast

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.bmc.table import Served, recorded
from nodegauge_bmc import connection, growth, values
from nodegauge_bmc.connection import Access, BmcError, Connection, Unreadable, checked
from nodegauge_bmc.redfish import read_tree
from nodegauge_bmc.refusals import refusal
from nodegauge_bmc.tree import Tree
from nodegauge_cli.__main__ import main
from nodegauge_contract.chassis import BoardGpu, ChassisReading
from nodegauge_contract.values import Unavailable
from nodegauge_judge.chassis.judge import judge_chassis
from support.bmc_access import Bmcs
from support.virtual_time import in_virtual_time
from testbed.hardware.bmc import PASSWORD, SESSIONS, USER, tree

POWER = "/redfish/v1/Chassis/1/Power"
ROOT = "/redfish/v1"


@in_virtual_time
async def test_a_session_ends_with_the_reading(bmcs: Bmcs) -> None:
    async with bmcs() as bmc:
        await bmcs.read(bmc)
        bmc.behaviour.broken[ROOT] = 500
        await bmcs.error(bmc)
    assert bmc.ended == {f"{SESSIONS}/token-0", f"{SESSIONS}/token-1"}


@pytest.mark.parametrize(
    "behaviour", [{"sessions": False}, {"busy": 1}], ids=["old firmware answers 404 to a login", "busy once"]
)
@in_virtual_time
async def test_a_bmc_that_is_old_or_boots_a_part_of_itself_is_read(behaviour: Any, bmcs: Bmcs) -> None:
    async with bmcs(**behaviour) as bmc:
        assert len((await bmcs.read(bmc)).supplies) == 2
        assert bmc.behaviour.busy == 0


LOGIN = "refuses the user or the password"


@pytest.mark.parametrize(
    ("resources", "behaviour", "changed", "parts"),
    [
        ("hpe", {}, {"user": "nobody"}, (LOGIN, "--password-file")),
        ("hpe", {"sessions": False}, {"user": "nobody"}, (LOGIN, "--password-file")),
        *(("hpe", {}, {"ca": "", "fingerprint": wrong}, ["SHA-256"]) for wrong in ("12", "xyz", "00" * 20)),
        ({}, {"sessions": False}, {}, ["is this the address of a BMC?", "answer as ipmi://HOST"]),
        ("dgx-h100", {"delay": 0.2}, {"deadline": 1.0}, ["--deadline", "the slowest was /redfish/v1"]),
        ("hpe", {"hang": {SESSIONS}}, {"timeout": 0.5}, ["--deadline", "no answer within 0.5 s", SESSIONS]),
        ("hpe", {}, {"url": "https://127.0.0.1:1"}, ["no connection"]),
    ],
    ids=["user", "user, no sessions", "short", "no hex", "SHA-1", "no BMC", "slow", "hangs", "closed port"],
)
@in_virtual_time
async def test_what_is_wrong_is_named_with_the_way_out(
    resources: Any, behaviour: Any, changed: Any, parts: list[str], bmcs: Bmcs
) -> None:
    async with bmcs(resources, **behaviour) as bmc:
        message = await bmcs.error(bmc, **changed)
    assert all(part in message for part in parts), message


async def test_a_certificate_that_nobody_trusts_is_refused(bmcs: Bmcs) -> None:
    """Nothing is sent to such a BMC; `insecure` is the only way to go without verification."""
    async with bmcs() as bmc:
        assert "not trusted" in await bmcs.error(bmc, ca="")
        assert bmc.asked == []
        assert len((await bmcs.read(bmc, ca="", insecure=True)).supplies) == 2


async def test_a_pinned_certificate_is_that_one_alone(bmcs: Bmcs) -> None:
    async with bmcs() as bmc:
        port = int(bmc.url.rpartition(":")[2])
        pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
        colons = ":".join(digest[i : i + 2] for i in range(0, 64, 2)).upper()
        assert len((await bmcs.read(bmc, ca="", fingerprint=colons)).supplies) == 2
        bmc.asked.clear()
        assert digest in await bmcs.error(bmc, ca="", fingerprint="00" * 32)
        assert bmc.asked == []


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"url": "https://reader:secret@bmc"}, "contains a user or a password"),
        ({"url": "http://bmc"}, "--insecure"),
        ({"url": "ftp://bmc"}, "no URL of https"),
        ({"url": "https://bmc:port"}, "no URL"),
        ({"url": "https://"}, "no URL"),
        ({"url": "https://bmc", "ca": "x", "insecure": True}, "exclude each other"),
    ],
)
def test_an_access_that_cannot_be_right_is_refused(changed: dict[str, Any], part: str) -> None:
    with pytest.raises(BmcError, match=part):
        checked(Access(**changed))


@in_virtual_time
async def test_one_hanging_resource_costs_its_timeout_and_nothing_else(bmcs: Bmcs) -> None:
    async with bmcs(hang={"/redfish/v1/Chassis/1/Thermal"}) as bmc:
        reading = await bmcs.read(bmc, timeout=0.5)
    assert (len(reading.supplies), reading.fans) == (2, [])
    assert any("no answer within 0.5 s" in one.reason for one in reading.unread)


LIES = {
    "not JSON": b"<html>login</html>",
    "a list": b"[]",
    "a number": b"7",
    "nothing": b"",
    "deep": b"[" * 100_000,
    "too large": b" " * (connection.MAX_BODY + 1),
    "not UTF-8": b'{"Name": "\xff\xfe"}',
}


@pytest.mark.parametrize("lie", LIES)
async def test_an_answer_that_is_no_resource_is_unread(lie: str, bmcs: Bmcs) -> None:
    reading = await bmcs.reading("supermicro", says={POWER: (200, {}, LIES[lie])})
    assert reading.supplies == []
    assert [one.path for one in reading.unread if "Power" in one.path] == [POWER]
    assert judge_chassis(reading).verdict == "unknown"


@in_virtual_time
async def test_a_redirect_to_another_host_is_not_followed(bmcs: Bmcs) -> None:
    """The session's token would go there."""
    async with bmcs() as thief, bmcs() as bmc:
        bmc.behaviour.says[POWER] = (302, {"Location": thief.url + POWER}, b"")
        reading = await bmcs.read(bmc)
    assert reading.supplies == []
    assert thief.asked == []


ACCOUNT = "/redfish/v1/AccountService/Accounts/1"
CHANGE = {"MessageId": "Base.1.13.PasswordChangeRequired", "Message": "Change it.", "MessageArgs": [ACCOUNT]}
FULL = {"MessageId": "IDRAC.2.4.RAC0218", "Message": "The maximum number of user sessions is reached."}
ROLE = {"MessageId": "Base.1.8.1.InsufficientPrivilege", "Message": "Insufficient privileges."}
NEW = {"X-Auth-Token": "token-new", "Location": f"https://its-own-name{SESSIONS}/new"}


def extended(*messages: Any) -> dict[str, Any]:
    general = {"code": "Base.1.5.GeneralError", "message": "See ExtendedInfo."}
    return {"error": general | {"@Message.ExtendedInfo": [*messages]}}


@pytest.mark.parametrize(
    ("path", "status", "headers", "body", "parts"),
    [
        (SESSIONS, 403, {}, extended(CHANGE), ["PasswordChangeRequired", ACCOUNT, '"Change it."']),
        (SESSIONS, 400, {}, {"Password@Message.ExtendedInfo": CHANGE}, ["must be changed", ACCOUNT]),
        ("/redfish/v1/Chassis", 403, {}, extended(CHANGE), ["must be changed", ACCOUNT]),
        (SESSIONS, 503, {}, extended({"MessageId": "x"}, FULL), ["RAC0218", "sessions hold all", "restart"]),
        (SESSIONS, 403, {}, {"@Message.ExtendedInfo": {"MessageID": "SessionLimitExceeded"}}, ["sessions"]),
        (SESSIONS, 400, {}, extended({"MessageId": "iLO.CreateLimitReachedForResource"}), ["sessions"]),
        (SESSIONS, 503, {"Content-Type": "text/plain"}, b"Too many sessions", ["sessions hold all"]),
        (SESSIONS, 401, {}, extended({"MessageId": "iLO.2.18.LoginAttemptDelayed"}), ["locked for a while"]),
        (SESSIONS, 401, {}, {"error": f"bad password {PASSWORD}"}, [LOGIN, "bad password ***"]),
        (SESSIONS, 400, {}, {"error": f"cut: {PASSWORD[:6]}"}, [LOGIN, '"cut: ***"']),
        (SESSIONS, 403, {}, extended(ROLE), ["InsufficientPrivilege", "the user's role"]),
        (SESSIONS, 429, {"Retry-After": "120"}, b"<html>", ["HTTP status 429", "try again after 120 s"]),
        (SESSIONS, 307, {"Location": "https://other/x"}, b"", ["lies at https://other", "only the address"]),
        (ROOT, 503, {"Retry-After": "99999999"}, b"", [f"does not give {ROOT}/", "after 86400 s"]),
        (ROOT, 403, {}, extended({"MessageId": "SMC.1.0.OemLicenseNotPassed"}), ["license", "ipmi://HOST"]),
        (ROOT, 500, {}, b"[" * 9000, ["HTTP status 500", "if it stays, restart the BMC"]),
        ("/redfish/v1/Chassis", 403, {}, extended(ROLE), ["no chassis", "the user's role"]),
        ("/redfish/v1/Chassis", 503, {}, extended({"MessageId": "Base.1.ResourceInUse"}), ["is busy"]),
        ("/redfish/v1/Chassis", 401, {}, extended(), ["its own session", "401"]),
        ("/redfish/v1/Chassis", 200, {}, {"Members": []}, ["an empty list"]),
    ],
)  # fmt: skip
@in_virtual_time
async def test_the_bmcs_own_reason_reaches_the_person(
    path: str, status: int, headers: Any, body: Any, parts: list[str], bmcs: Bmcs
) -> None:
    """And the way out that fits; a restart is advised only where it helps."""
    async with bmcs(says={path: (status, headers, body)}) as bmc:
        message = await bmcs.error(bmc)
    assert all(part in message for part in parts), message
    assert ("restart" in message) is any("restart" in part or "sessions" in part for part in parts), message


@in_virtual_time
async def test_a_login_that_only_lets_the_password_change_says_so(bmcs: Bmcs) -> None:
    """Such a session may do nothing else; it is closed, though the BMC calls itself by another name."""
    closed = dict.fromkeys(["/redfish/v1/Chassis", "/redfish/v1/Systems"], 403)
    async with bmcs(says={SESSIONS: (201, NEW, extended(CHANGE))}, broken=closed) as bmc:
        assert ACCOUNT in await bmcs.error(bmc)
        bmc.behaviour.broken.clear()
        assert (await bmcs.read(bmc)).supplies
    assert bmc.ended == {f"{SESSIONS}/new"}


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (
            (403, {}, extended(ROLE)),
            "HTTP status 403 (InsufficientPrivilege): the user's role may not read this",
        ),
        ((401, {}, extended()), "HTTP status 401: the user's role may not read this"),
        ((503, {"Retry-After": "60"}, b"\xff"), "HTTP status 503 (it asks to wait 60 s): the BMC is busy"),
        ((410, {}, extended({"MessageId": "V.1.Odd", "Message": 'a "b"\n' + "c" * 999})), "Odd)"),
    ],
    ids=["role", "role by 401", "busy", "unknown"],
)
@in_virtual_time
async def test_one_refused_resource_says_why_and_the_rest_is_read(answer: Any, part: str, bmcs: Bmcs) -> None:
    async with bmcs("supermicro", says={POWER: answer}) as bmc:
        reading = await bmcs.read(bmc)
    [reason] = [unread.reason for unread in reading.unread if unread.path == POWER]
    assert reason.startswith("HTTP status")
    assert part in reason
    assert len(reason) < 400
    assert reading.fans
    assert [f for f in judge_chassis(reading).findings if part in str(f.evidence.get("reason"))]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "Sat, 28 Nov 2026 01:00:30 GMT", "Date": "Sat, 28 Nov 2026 01:00:00 GMT"}, 30),
        ({"Retry-After": "Sat, 28 Nov 2020 01:00:30 GMT"}, 0),
        *(({"Retry-After": odd}, None) for odd in ("", "soon", "-1", "1e9", "٣", "9" * 99)),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert refusal(503, headers, b"").wait == seconds


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("https://BMC-7/redfish/v1/x?a=1#/2", "/redfish/v1/x?a=1#/2"),
        ("https://bmc-7.:443/redfish/v1/x", "/redfish/v1/x"),
        ("//bmc-7/redfish/v1/x", "/redfish/v1/x"),
        *(
            (f"{other}/redfish/v1/x", None)
            for other in (
                "https://10.0.0.7", "https://bmc-7:8443", "http://bmc-7", "https://bmc-7@thief",
                "https://thief@bmc-7", "//thief", "https://bmc-7:port", "https://[bmc-7",
            )
        ),
    ],
)  # fmt: skip
def test_an_absolute_address_is_followed_on_its_own_origin_alone(address: str, path: str | None) -> None:
    if path is not None:
        assert connection.own_path(address, origin="https://bmc-7") == path
    else:
        with pytest.raises(Unreadable, match=r"lies at|is none"):
            connection.own_path(address, origin="https://bmc-7")


def rehosted(value: Any, host: str) -> Any:
    """The resources with every address made absolute."""
    text = json.dumps(value)
    return json.loads(text.replace('"@odata.id": "/', f'"@odata.id": "{host}/'))


@in_virtual_time
async def test_a_tree_of_absolute_addresses_is_read_on_its_own_host_alone(bmcs: Bmcs) -> None:
    async with bmcs("supermicro") as bmc, bmcs() as thief:
        plain = await bmcs.read(bmc)
        bmc.behaviour.says = {
            path: (200, {}, rehosted(body, bmc.url.upper().replace("HTTPS", "https")))
            for path, body in bmc.resources.items()
        }
        again = await bmcs.read(bmc)
        assert (again.supplies, again.fans, again.unread) == (plain.supplies, plain.fans, plain.unread)
        chassis = rehosted(bmc.resources[POWER.rpartition("/")[0]], thief.url)
        bmc.behaviour.says = {POWER.rpartition("/")[0]: (200, {}, chassis)}
        foreign = await bmcs.read(bmc)
    assert thief.asked == []
    assert foreign.supplies == []
    assert any(thief.url in one.path and "lies at" in one.reason for one in foreign.unread)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=400)
@given(data=st.data())
async def test_no_tree_breaks_the_reader(data: st.DataObject) -> None:
    resources = dict(recorded(data.draw(st.sampled_from(["dell", "hpe", "supermicro", "lenovo"]))))
    for _ in range(data.draw(st.integers(1, 6))):
        path = data.draw(st.sampled_from(sorted(resources)))
        value: Any = copy.deepcopy(resources[path])
        resources[path] = value
        while isinstance(value, dict | list) and value:
            keys = sorted(value) if isinstance(value, dict) else range(len(value))
            key = data.draw(st.sampled_from(list(keys)))
            if not isinstance(value[key], dict | list) or data.draw(st.booleans()):
                value[key] = json.loads(json.dumps(data.draw(JUNK)))
                break
            value = value[key]
    try:
        reading = await read_tree(Tree(cast(Connection, Served(resources, {}))))
    except BmcError:
        return
    assert judge_chassis(reading).summary


async def test_the_command_prints_the_judgement(bmcs: Bmcs) -> None:
    async with bmcs("supermicro") as bmc:
        command = ["bmc", bmc.url, "--user", USER, "--password-file", "-", "--ca", bmcs.ca]
        text, machine = [
            await asyncio.to_thread(CliRunner().invoke, main, [*command, "--format", form], input=PASSWORD)
            for form in ("text", "json")
        ]
    assert (text.exit_code, machine.exit_code) == (0, 0), text.output
    assert "6 of 6 supplies work, 2161 W now" in text.output
    assert "Power Supply Bay 1  OK Enabled  3000 W  361 W  329 W" in text.output
    assert json.loads(machine.output)["judgement"]["psu"] == "ok"
    shown = repr(Access(url="https://bmc", user=USER, password=PASSWORD))
    assert PASSWORD not in text.output + machine.output + shown


BOARD = "/redfish/v1/Systems/HGX_Baseboard_0"
METRICS = f"{BOARD}/Processors/GPU_SXM_3/ProcessorMetrics"
MEMORY = f"{BOARD}/Memory/GPU_SXM_3_DRAM_0"
SENSORS = "/redfish/v1/Chassis/HGX_GPU_SXM_3/ThermalSubsystem/ThermalMetrics"


async def third_gpu(resources: dict[str, Any], bmcs: Bmcs) -> BoardGpu:
    [gpu] = [gpu for gpu in (await bmcs.reading(resources)).gpus if gpu.name == "GPU_SXM_3"]
    return gpu


def memory(*celsius: Any) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    for number, value in enumerate(celsius):
        path = f"{MEMORY}{number or ''}"
        metrics = f"{path}/EnvironmentMetrics"
        resources[path] = {"@odata.id": path, "EnvironmentMetrics": {"@odata.id": metrics}}
        resources[metrics] = {"@odata.id": metrics, "TemperatureCelsius": {"Reading": value}}
    return resources


async def test_memory_is_as_hot_as_its_hottest_part(bmcs: Bmcs) -> None:
    resources = tree("dgx-h100") | memory(81, 94.5)
    links = resources[f"{BOARD}/Processors/GPU_SXM_3"]["Links"]
    links["Memory"] = [{"@odata.id": MEMORY}, {"@odata.id": f"{MEMORY}1"}]
    assert (await third_gpu(resources, bmcs)).memory_celsius == 94.5


async def test_memory_without_a_resource_is_read_from_the_chassis_sensors(bmcs: Bmcs) -> None:
    """The recorded DGX lists it there as text; the margin to the GPU's limit (54.6) beside it is none."""
    gpu = await third_gpu(tree("dgx-h100"), bmcs)
    assert (gpu.memory_celsius, gpu.throttled_seconds) == (40, {})


async def heat(bmcs: Bmcs, **sensor: Any) -> Any:
    path = "/redfish/v1/Chassis/HGX_GPU_SXM_3/Sensors/GPU"
    resources = tree("dgx-h100") | {path: {"@odata.id": path, "Reading": 71.5} | sensor}
    environment = resources[f"{BOARD}/Processors/GPU_SXM_3/EnvironmentMetrics"]
    environment["TemperatureCelsius"] = {"DataSourceUri": path, "Reading": 71.5}
    return (await third_gpu(resources, bmcs)).celsius


async def test_a_margin_to_the_limit_is_no_temperature(bmcs: Bmcs) -> None:
    """By its name the recorded tree's, by Redfish's `ReadingBasis` any other's; no basis is a temperature."""
    assert (await third_gpu(tree("dgx-h100"), bmcs)).celsius == 32.406
    assert [await heat(bmcs), await heat(bmcs, ReadingBasis="Zero")] == [71.5, 71.5]
    for basis in ("Headroom", "Delta"):
        assert isinstance(await heat(bmcs, ReadingBasis=basis), Unavailable)
    alone = tree("dgx-h100") | {SENSORS: {"@odata.id": SENSORS}}
    assert isinstance((await third_gpu(alone, bmcs)).celsius, Unavailable)


@pytest.mark.parametrize("absurd", [None, "", "hot", 4730, True, {}, []])
async def test_a_temperature_that_cannot_be_is_none(absurd: Any, bmcs: Bmcs) -> None:
    resources = tree("dgx-h100") | memory(absurd)
    resources[SENSORS] = resources[SENSORS] | {"TemperatureReadingsCelsius": [absurd]}
    assert isinstance((await third_gpu(resources, bmcs)).memory_celsius, Unavailable)


async def test_each_cause_has_its_seconds(bmcs: Bmcs) -> None:
    resources = tree("dgx-h100")
    nvidia = {"HardwareViolationThrottleDuration": "P1DT1H", "GlobalSoftwareViolationThrottleDuration": 5}
    power, thermal = "PowerLimitThrottleDuration", "ThermalLimitThrottleDuration"
    resources[METRICS] |= {power: "PT7M30.25S", thermal: "PT0S", "Oem": {"Nvidia": nvidia}}
    gpu = await third_gpu(resources, bmcs)
    assert gpu.throttled_seconds == {"power": 450.25, "thermal": 0.0, "hardware": 90_000.0}


def test_a_duration_is_seconds_and_no_other_text_is_one() -> None:
    known = {"PT0S": 0, "PT12.345678901S": 12.346, "P2D": 172_800, "P0DT0H0M1.5S": 1.5, "PT1H": 3600}
    assert {text: values.duration(text) for text in known} == known
    odd = ["", "P", "PT", "12", "-PT1S", "PT1,5S", "P1Y", "PT1S ", "PT٣S", "P999999D", 12, True, ["PT1S"]]
    assert [one for one in odd if not isinstance(values.duration(one), Unavailable)] == []


def reading(seconds: dict[str, float], **changes: Any) -> ChassisReading:
    return ChassisReading(
        gpus=[BoardGpu(**({"name": "GPU_1", "uuid": "a"} | changes), throttled_seconds=seconds)]
    )


@pytest.mark.parametrize(
    ("before", "now", "grew"),
    [
        (reading({"thermal": 5e6}), reading({"thermal": 5e6 + 12}), {"thermal": 12}),
        (reading({"thermal": 7}), reading({"thermal": 7}), {"thermal": 0}),
        (reading({"thermal": 7}), reading({"thermal": 3}), {}),
        (reading({"thermal": 7}), reading({"thermal": 7 + 400}), {}),
        (reading({"thermal": 7}), reading({"thermal": 7 + 305}), {"thermal": 300}),
        (reading({"power": 7}), reading({"thermal": 9}), {}),
        (reading({"thermal": 7}), reading({"thermal": 9}, uuid="b"), {}),
        (reading({"thermal": 7}, serial="1"), reading({"thermal": 9}, serial="2"), {}),
        (ChassisReading(), reading({"thermal": 9}), {}),
        (None, reading({"thermal": 9}), {}),
    ],
    ids=[
        "grew", "stood still", "began anew", "grew more than time", "grew as long as time", "other cause",
        "other GPU", "other board", "no GPU before", "first reading",
    ],
)  # fmt: skip
def test_what_grew_is_new(before: ChassisReading | None, now: ChassisReading, grew: dict[str, float]) -> None:
    after = growth.since(before, now, seconds=300)
    assert after.gpus[0].throttled_lately_seconds == grew
    assert (after.since_seconds == 300) is (before is not None)


async def test_a_failed_try_between_two_readings_counts_as_time() -> None:
    answers: list[Any] = [reading({"thermal": 1}), OSError(), reading({"thermal": 1.5})]

    async def next_answer(_access: Access, _deadline: float) -> ChassisReading:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    read_again = growth.remembering(next_answer)
    access = Access(url="https://127.0.0.1", user="", password="")
    assert not (await read_again(access, 1)).gpus[0].throttled_lately_seconds
    with pytest.raises(OSError):
        await read_again(access, 1)
    assert (await read_again(access, 1)).gpus[0].throttled_lately_seconds.keys() == {"thermal"}
