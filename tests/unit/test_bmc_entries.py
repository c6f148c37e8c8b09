"""`nodegauge bmc --entries`: an inventory in one table, pins on first use, and the docs' way from a table."""

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from nodegauge_bmc.inventory import Inventory, WrongEntry
from nodegauge_bmc.pins import pin, pinned
from nodegauge_cli.__main__ import main
from support.bmc_access import Bmcs
from testbed.hardware.bmc import PASSWORD, USER

LOGIN = {"username": USER, "password": PASSWORD}
PIN = "ab" * 32


async def run(folder: Path, *arguments: str, stdin: str = "") -> Result:
    command = ["bmc", "--entries", str(folder), *arguments]
    return await asyncio.to_thread(CliRunner().invoke, main, command, input=stdin)


def write(folder: Path, **entries: Any) -> None:
    for name, fields in entries.items():
        text = fields if isinstance(fields, str) else yaml.safe_dump(fields)
        (folder / name.replace("gpu_", "gpu-")).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


async def test_every_entry_is_a_row_and_the_worst_is_the_exit_code(bmcs: Bmcs, tmp_path: Path) -> None:
    """One that is wrong and one that is refused hide none of the others; no row has a secret."""
    async with bmcs("supermicro") as good, bmcs() as other:
        mine = LOGIN | {"insecure": True}
        write(tmp_path, gpu_1={"url": good.url} | mine)
        fine = await run(tmp_path)
        write(tmp_path, gpu_2={"url": other.url} | mine | {"password": "wrong"}, gpu_3="url: [", Bad="url: x")
        bad = await run(tmp_path)
        machine = await run(tmp_path, "--format", "json")
        few = await run(tmp_path, "--nodes", "-", stdin="node/gpu-1\n\nnode/gpu-9\n")
    assert fine.exit_code == 0, fine.output
    assert re.search(r"(?m)^pass  gpu-1  https://\S+  [\d.]+ s  .*6 of 6 supplies", fine.stdout)
    assert "[1/1] gpu-1: pass\n" in fine.stderr
    assert [line.split()[:2] for line in bad.stdout.splitlines()] == [
        ["entry", "Bad"], ["entry", "gpu-3"], ["unread", "gpu-2"], ["pass", "gpu-1"], ["4", "BMCs:"],
    ]  # fmt: skip
    assert "gpu-3: no YAML from line" in bad.stdout
    assert "check username and password" in bad.stdout
    rows = json.loads(machine.stdout)
    assert rows["counts"] == {"entry": 2, "unread": 1, "pass": 1}
    assert len(rows["bmcs"][3]["reading"]["supplies"]) == 8
    assert "there is no node 'gpu-2'" in few.stdout
    assert [bad.exit_code, machine.exit_code, few.exit_code] == [2, 2, 2]
    assert PASSWORD not in bad.output + machine.output


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["https://a", "--entries", "."], "give no URL"),
        (["--yes", "https://a"], "need --entries"),
        ([], "give the URL of a BMC, or --entries FOLDER"),
        (["--entries", "."], "no entries; write a file for each node"),
        (["bmc-1", "--user", "reader"], "--user needs --password-file"),
        (["bmc-1", "--user", "reader", "--password-file", "-"], "its first line is empty"),
        (["bmc-1", "--deadline", "soon"], "soon"),
    ],
)
def test_bad_input_is_exit_code_2_and_names_the_way_out(
    arguments: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = CliRunner().invoke(main, ["bmc", *arguments], input="\n")
    assert (outcome.exit_code, part in outcome.output) == (2, True), outcome.output


async def test_certificates_are_pinned_after_a_yes_and_never_replaced(bmcs: Bmcs, tmp_path: Path) -> None:
    """Nothing of the login is sent before; a pin that does not fit any more is said and stays."""
    async with bmcs("supermicro") as one, bmcs("supermicro") as two:
        write(tmp_path, _defaults=LOGIN, gpu_1=f"# rack 7\nurl: {one.url}  # ours\n")
        write(tmp_path, gpu_2={"url": two.url, "fingerprint": PIN}, gpu_3={"url": "ipmi://127.0.0.1"})
        before = contents(tmp_path)
        for stdin in ("n\n", ""):
            refused = await run(tmp_path, "--collect-fingerprints", stdin=stdin)
            assert (refused.exit_code, "nothing is written" in refused.stderr) == (2, True)
        assert contents(tmp_path) == before
        agreed = await run(tmp_path, "--collect-fingerprints", stdin="y\n")
        assert one.asked + two.asked == []
        assert "1 pins written" in agreed.stdout
        assert "1 pins do not fit any more (gpu-2)" in agreed.stderr
        after = contents(tmp_path)
        pinned_one = before["gpu-1"] + r'fingerprint: "[0-9a-f]{64}"\n'
        assert re.fullmatch(pinned_one, after.pop("gpu-1"))
        assert after == {name: text for name, text in before.items() if name != "gpu-1"}
        assert (await run(tmp_path, "--nodes", "-", stdin="gpu-1")).stdout.count("pass") == 2
        (tmp_path / "gpu-2").unlink()
        again = await run(tmp_path, "--collect-fingerprints")
    assert (agreed.exit_code, again.exit_code) == (2, 0), again.output


NEW = f'fingerprint: "{PIN}"'


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("url: https://a\n", f"url: https://a\n{NEW}\n"),
        ("# one\r\nurl: https://a", f"# one\r\nurl: https://a\r\n{NEW}\r\n"),
        ('{"url": "https://a"}\n', f'{{"url": "https://a", "fingerprint": "{PIN}"}}\n'),
        ('{\n  "url": "https://a"\n}', f'{{\n  "url": "https://a", "fingerprint": "{PIN}"\n}}'),
        ("{}", f'{{ "fingerprint": "{PIN}"}}'),
        ('url: https://a\nfingerprint: ""  # later\n', f"url: https://a\n{NEW}  # later\n"),
        ('{"fingerprint": null, "url": "https://a"}', f'{{"fingerprint": "{PIN}", "url": "https://a"}}'),
        ("---\n  url: https://a\n...\n", f"---\n  {NEW}\n  url: https://a\n...\n"),
        ("", f"{NEW}\n"),
        (NEW, None),
        ("- url", None),
    ],
)
def test_a_pin_leaves_all_else_of_a_file(text: str, changed: str | None) -> None:
    if changed is None:
        with pytest.raises(WrongEntry, match="there is one already"):
            pinned(text, PIN)
    else:
        assert pinned(text, PIN) == changed


def test_a_pinned_file_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("url: https://a\n")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "gpu-1").symlink_to("real")
    pin(tmp_path / "gpu-1", PIN)
    pin(tmp_path / "gpu-2", PIN)
    assert (tmp_path / "gpu-1").is_symlink()
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"real": 0o640, "gpu-1": 0o640, "gpu-2": 0o600}


def test_the_documents_way_from_a_table_is_repeatable(tmp_path: Path) -> None:
    """As docs/bmc.md has it; a second run keeps pins, and takes what changed."""
    page = (Path(__file__).parents[2] / "docs/bmc.md").read_text()
    [script] = re.findall(r"```\n(python3 - bmcs\.csv bmc <<.*?)```", page, re.DOTALL)
    for password in ('a "b", #1', "12345678"):
        row = '"' + password.replace('"', '""') + '"'
        (tmp_path / "bmcs.csv").write_text(f"node,url,username,password\ngpu-1,https://a,reader,{row}\n")
        subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True)
        inventory = Inventory(tmp_path / "bmc")
        inventory.changed()
        [target] = inventory.plan({"gpu-1": ""}, selected=frozenset(), timeout=1).targets.values()
        assert target.access.password == password
        if not target.access.fingerprint:
            pin(inventory.file_of("gpu-1"), PIN)
    assert target.access.fingerprint == PIN
    assert (tmp_path / "bmc" / "gpu-1").stat().st_mode & 0o077 == 0
