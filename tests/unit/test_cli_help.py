"""What is said where nothing was asked for."""

import pytest
from dubito.cli import app
from typer.testing import CliRunner


@pytest.mark.parametrize("command", [[], ["calibrate"]])
def test_a_command_without_arguments_shows_its_help_line_by_line(command: list[str]) -> None:
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    asked = CliRunner().invoke(app, [*command, "--help"])
    assert done.output.strip() == asked.output.strip()
    assert len(done.output.splitlines()) > 5
