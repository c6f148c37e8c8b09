"""A BMC that is slow, wrong, in between, or not one: what a reading of it ends in, and what stays secret."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import ssl
from typing import Any, cast

import pytest
import trustme
from aiohttp import web
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from nodegauge_bmc import connection
from nodegauge_bmc.connection import Access, BmcError, Connection, Unreadable, checked
from nodegauge_bmc.redfish import read, read_tree
from nodegauge_bmc.tree import Tree
from nodegauge_cli.__main__ import main
from nodegauge_judge.chassis.judge import judge_chassis
from support.virtual_time import in_virtual_time
from testbed.hardware.bmc import PASSWORD, SESSIONS, USER, Behaviour, Bmc, recorded, serving, tree

POWER = "/redfish/v1/Chassis/1/Power"
ROOT = "/redfish/v1"


def access(bmc: Bmc, **changed: Any) -> Access:
    """The right access to a BMC, but for what is changed."""
    return Access(**{"url": bmc.url, "user": USER, "password": PASSWORD, "timeout": 2.0} | changed)


async def error_of(bmc: Bmc, **changed: Any) -> str:
    """Why a BMC could not be read; no secret is in it."""
    with pytest.raises(BmcError) as caught:
        await read(access(bmc, **changed))
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


@in_virtual_time
async def test_a_session_ends_with_the_reading(authority: trustme.CA, ca: str) -> None:
    """BMCs have few of them; it ends also when the reading fails."""
    async with serving(tree("hpe"), authority=authority) as bmc:
        await read(access(bmc, ca=ca))
        bmc.behaviour.broken[ROOT] = 500
        with pytest.raises(BmcError):
            await read(access(bmc, ca=ca))
    assert bmc.ended == {f"{SESSIONS}/token-0", f"{SESSIONS}/token-1"}


async def test_a_bmc_without_sessions_is_read_with_basic_authentication(
    authority: trustme.CA, ca: str
) -> None:
    """Old firmware answers 404 to a login."""
    async with serving(tree("hpe"), authority=authority, behaviour=Behaviour(sessions=False)) as bmc:
        assert len((await read(access(bmc, ca=ca))).supplies) == 2


@pytest.mark.parametrize("sessions", [True, False])
async def test_wrong_credentials_are_named(sessions: bool, authority: trustme.CA, ca: str) -> None:
    """The way out names the two options."""
    async with serving(tree("hpe"), authority=authority, behaviour=Behaviour(sessions=sessions)) as bmc:
        message = await error_of(bmc, ca=ca, user="nobody")
    assert "refuses the user or the password" in message
    assert "--password-file" in message


async def test_a_certificate_that_nobody_trusts_is_refused(authority: trustme.CA) -> None:
    """Nothing is sent to such a BMC; `insecure` is the only way to go without verification."""
    async with serving(tree("hpe"), authority=authority) as bmc:
        assert "not trusted" in await error_of(bmc)
        assert bmc.asked == []
        assert len((await read(access(bmc, insecure=True))).supplies) == 2


async def test_a_pinned_certificate_is_that_one_alone(authority: trustme.CA) -> None:
    """The pin is the SHA-256 that openssl prints, with or without colons."""
    async with serving(tree("hpe"), authority=authority) as bmc:
        port = int(bmc.url.rpartition(":")[2])
        pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
        colons = ":".join(digest[i : i + 2] for i in range(0, 64, 2)).upper()
        assert len((await read(access(bmc, fingerprint=colons))).supplies) == 2
        bmc.asked.clear()
        assert digest in await error_of(bmc, fingerprint="00" * 32)
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
    """Before anything is sent."""
    with pytest.raises(BmcError, match=part):
        checked(Access(**changed))


@pytest.mark.parametrize("fingerprint", ["12", "xyz", "00" * 20])
async def test_a_fingerprint_of_another_kind_is_refused(fingerprint: str, authority: trustme.CA) -> None:
    """SHA-1 and MD5 are none."""
    async with serving(tree("hpe"), authority=authority) as bmc:
        assert "SHA-256" in await error_of(bmc, fingerprint=fingerprint)


@in_virtual_time
async def test_nobody_at_the_address(authority: trustme.CA, ca: str) -> None:
    """A closed port, and a server that is no BMC."""
    async with serving({}, authority=authority) as bmc:
        assert "is this the address of a BMC?" in await error_of(bmc, ca=ca)
        url = bmc.url
    with pytest.raises(BmcError, match="no connection"):
        await read(Access(url=url, ca=ca))


@in_virtual_time
async def test_one_hanging_resource_costs_its_timeout_and_nothing_else(
    authority: trustme.CA, ca: str
) -> None:
    """It is unread; the rest is there."""
    behaviour = Behaviour(hang={"/redfish/v1/Chassis/1/Thermal"})
    async with serving(tree("hpe"), authority=authority, behaviour=behaviour) as bmc:
        reading = await read(access(bmc, ca=ca, timeout=0.5))
    assert (len(reading.supplies), reading.fans) == (2, [])
    assert any("no answer within 0.5 s" in one.reason for one in reading.unread)


@in_virtual_time
async def test_a_bmc_that_hangs_for_good_ends_by_the_deadline(authority: trustme.CA, ca: str) -> None:
    """However many resources it has."""
    async with serving(tree("dgx-h100"), authority=authority, behaviour=Behaviour(delay=0.2)) as bmc:
        with pytest.raises(BmcError, match="--deadline"):
            await read(access(bmc, ca=ca), deadline=1.0)


@in_virtual_time
async def test_a_busy_bmc_is_asked_once_more(authority: trustme.CA, ca: str) -> None:
    """503 while it boots a part of itself."""
    async with serving(tree("hpe"), authority=authority) as bmc:
        bmc.behaviour.busy = 1
        assert len((await read(access(bmc, ca=ca))).supplies) == 2
        assert bmc.behaviour.busy == 0


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
async def test_an_answer_that_is_no_resource_is_unread(lie: str, authority: trustme.CA, ca: str) -> None:
    """And accuses nobody."""
    behaviour = Behaviour(body={POWER: LIES[lie]})
    async with serving(tree("supermicro"), authority=authority, behaviour=behaviour) as bmc:
        reading = await read(access(bmc, ca=ca))
    assert reading.supplies == []
    assert [one.path for one in reading.unread if "Power" in one.path] == [POWER]
    assert judge_chassis(reading).verdict == "unknown"


@in_virtual_time
async def test_a_redirect_to_another_host_is_not_followed(authority: trustme.CA, ca: str) -> None:
    """The session's token would go there."""
    async with (
        serving(tree("hpe"), authority=authority) as thief,
        serving(tree("hpe"), authority=authority) as bmc,
    ):
        real = bmc.answer

        async def redirect(request: Any) -> Any:
            if request.path.rstrip("/") == POWER:
                return web.Response(status=302, headers={"Location": thief.url + POWER})
            return await real(request)

        bmc.answer = redirect  # type: ignore[method-assign]
        reading = await read(access(bmc, ca=ca))
    assert reading.supplies == []
    assert thief.asked == []


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


class Recorded:
    """A connection to resources in memory."""

    def __init__(self, resources: dict[str, Any]) -> None:
        self._resources = resources

    async def get(self, path: str) -> dict[str, Any]:
        """The resource, as `Connection.get` gives it."""
        resource = self._resources.get(path.partition("?")[0].rstrip("/"))
        if not isinstance(resource, dict):
            raise Unreadable("HTTP status 404")
        return resource


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(data=st.data())
async def test_no_tree_breaks_the_reader(data: st.DataObject) -> None:
    """Any value of a recorded tree may be anything: the reading ends, and a judgement follows."""
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
        reading = await read_tree(Tree(cast(Connection, Recorded(resources))))
    except BmcError:
        return
    assert judge_chassis(reading).summary


def run(*arguments: str, stdin: str = "") -> Result:
    """The command `nodegauge bmc`."""
    return CliRunner().invoke(main, ["bmc", *arguments], input=stdin)


async def test_the_command_prints_the_judgement(authority: trustme.CA, ca: str) -> None:
    """As text for a person, as JSON for a script."""
    async with serving(tree("supermicro"), authority=authority) as bmc:
        login = (bmc.url, "--user", USER, "--password-file", "-", "--ca", ca)
        text = await asyncio.to_thread(run, *login, stdin=f"{PASSWORD}\n")
        machine = await asyncio.to_thread(run, *login, "--format", "json", stdin=f"{PASSWORD}\n")
    assert (text.exit_code, machine.exit_code) == (0, 0), text.output
    assert "6 of 6 supplies work, 2161 W now" in text.output
    assert "Power Supply Bay 1  OK Enabled  3000 W  361 W  329 W" in text.output
    assert json.loads(machine.output)["judgement"]["psu"] == "ok"
    assert PASSWORD not in text.output + machine.output


@pytest.mark.parametrize(
    ("arguments", "stdin", "part"),
    [
        (("bmc-1", "--user", "reader"), "", "--user needs --password-file"),
        (("bmc-1", "--user", "reader", "--password-file", "-"), "\n", "its first line is empty"),
        (("http://bmc-1",), "", "--insecure"),
        (("bmc-1", "--deadline", "soon"), "", "soon"),
    ],
)
def test_bad_input_is_exit_code_2(arguments: tuple[str, ...], stdin: str, part: str) -> None:
    """With the way out."""
    outcome = run(*arguments, stdin=stdin)
    assert (outcome.exit_code, part in outcome.output) == (2, True), outcome.output


def test_the_password_is_in_no_representation() -> None:
    """A traceback shows arguments."""
    assert PASSWORD not in repr(Access(url="https://bmc", user=USER, password=PASSWORD))
