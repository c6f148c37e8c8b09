"""What commands print: tables, JSON and YAML alike, colour on terminals alone, nothing into a closed pipe."""

import os
import subprocess
import sys

import pytest
import yaml

from nodegauge_cli import output


def test_a_table_has_columns_as_wide_as_their_widest_cell_and_no_control_characters() -> None:
    rows = [["gpu-1", output.verdict("fail"), "x"], ["gpu-22\x1b[2J", output.verdict("pass"), ""]]
    assert output.table(["NODE", "HEALTH", "WHY"], rows).splitlines() == [
        "NODE        HEALTH  WHY",
        "gpu-1       fail    x",
        "gpu-22?[2J  pass",
    ]


@pytest.mark.parametrize(
    ("terminal", "no_color", "colour"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_colour_goes_to_terminals_alone(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, no_color: str, colour: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert ("\x1b[" in output.styled("fail", output.BAD)) is colour


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_document_for_programs_is_whole_and_shows_a_terminal_no_control_characters(form: str) -> None:
    document = {"why": "45 °C \x1b[2J\u202e\x9b", "steps": ["a", "b"]}
    text = output.dump(document, form)
    assert yaml.safe_load(text) == document
    assert text.replace("\n", "").isprintable()


def test_a_closed_pipe_ends_a_command_without_a_word() -> None:
    code = "import sys; from nodegauge_cli.output import quiet_pipe\nwith quiet_pipe():\n print('x' * 10**6)"
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (output.CLOSED_PIPE, b"")
