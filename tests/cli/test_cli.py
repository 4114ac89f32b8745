"""The command line: exit codes, what is written where, and help with examples."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

from scalegmn import __version__
from scalegmn.cli import app
from scalegmn.cli.application import create_app, run
from scalegmn.cli.console import print_json, track
from scalegmn.errors import ScaleGMNError

# A program of its own, for what only a real process shows: signals and closed pipes.
PROGRAM = """
import signal, sys, time
from scalegmn.cli.application import create_app, run
# A shell that starts the tests in the background has them ignore interrupts, and so would this process.
signal.signal(signal.SIGINT, signal.default_int_handler)
app = create_app()
@app.command()
def wait():
    print("ready", flush=True)
    time.sleep(60)
@app.command()
def talk(lines: int):
    for i in range(lines):
        print(i)
sys.exit(run(app, sys.argv[1:]))
"""


@pytest.fixture
def sample() -> typer.Typer:
    sample = create_app()

    @sample.command()
    def good(count: int) -> None:
        typer.echo(count)

    @sample.command()
    def bad() -> None:
        raise ScaleGMNError("width: expected a positive\nnumber, got -1")

    @sample.command()
    def broken() -> None:
        raise RuntimeError("a mistake of ours")

    @sample.command()
    def gone() -> None:
        Path("/nowhere/at all").read_text()

    @sample.command()
    def early(code: int) -> None:
        raise typer.Exit(code)

    return sample


def test_success(sample: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(sample, ["good", "3"]) == 0
    assert capsys.readouterr() == ("3\n", "")


def test_bad_input_is_one_line_and_code_2(sample: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(sample, ["bad"]) == 2
    assert capsys.readouterr() == ("", "error: width: expected a positive number, got -1\n")


def test_a_file_that_cannot_be_used_is_bad_input(sample: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(sample, ["gone"]) == 2
    assert capsys.readouterr() == ("", "error: /nowhere/at all: No such file or directory\n")


def test_a_mistake_of_ours_is_one_line_and_code_1(
    sample: typer.Typer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(sample, ["broken"]) == 1
    line = "internal error: RuntimeError: a mistake of ours (run again with --debug for the traceback)\n"
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize(("library", "size"), [(torch, 2**50), (torch, 2**62), (np, 2**50)])
def test_more_than_the_memory_is_bad_input(library: Any, size: int, capsys: pytest.CaptureFixture[str]) -> None:
    sample = create_app()
    sample.command("ask")(lambda: library.empty((size, 2)))
    assert run(sample, ["ask"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: not enough memory (")
    assert error.count("\n") == 1


@pytest.mark.parametrize(("name", "code"), [("bad", 2), ("broken", 1)])
@pytest.mark.parametrize("front", [True, False])
def test_debug_shows_the_traceback(
    sample: typer.Typer, capsys: pytest.CaptureFixture[str], name: str, code: int, front: bool
) -> None:
    assert run(sample, ["--debug", name] if front else [name, "--debug"]) == code
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert f"in {name}" in err
    assert "run again" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["good"], "Missing argument 'COUNT'"),
        (["good", "many"], "Invalid value for 'COUNT'"),
        (["good", "1", "--fast"], "No such option: --fast"),
        (["good", "--", "--debug"], "Invalid value for 'COUNT'"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    sample: typer.Typer, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(sample, arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.lower().startswith(f"error: {message}".lower())  # versions of typer differ in case
    assert err.count("\n") == 1
    assert "--help)" in err


def test_an_early_exit_keeps_its_code(sample: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(sample, ["early", "0"]) == 0
    assert run(sample, ["early", "7"]) == 7
    assert capsys.readouterr() == ("", "")


def test_interrupt_is_code_130() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_command_that_is_told_to_end_tidies_up() -> None:
    program = """
import time
from scalegmn.cli.application import app, main
@app.command()
def wait():
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("tidy")
main()
"""
    process = subprocess.Popen([sys.executable, "-c", program, "wait"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.communicate(timeout=30)[0] == "tidy\n"
    assert process.returncode == 130


def test_an_interrupt_after_the_work_is_no_traceback() -> None:
    program = """
import os, signal, sys
from scalegmn.cli.application import main, run
def watch(frame, event, arg):
    if event == "return" and frame.f_code is run.__code__:
        os.kill(os.getpid(), signal.SIGTERM)
sys.setprofile(watch)
sys.argv = ["scalegmn", "--help"]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_closed_pipe_is_quiet(lines: int) -> None:
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, "talk", str(lines)], stdout=write, stderr=subprocess.PIPE, timeout=30
    )
    os.close(write)
    assert result.stderr == b""
    assert result.returncode == 1


@pytest.mark.parametrize(
    "program", [[sys.executable, "-m", "scalegmn"], [str(Path(sys.executable).parent / "scalegmn")]]
)
def test_version(program: list[str]) -> None:
    result = subprocess.run([*program, "--version"], capture_output=True, text=True, check=True)
    first, second = result.stdout.splitlines()
    assert first == f"scalegmn {__version__}"
    assert second.startswith(("backend: compiled with ", "backend: plain torch ("))


def test_no_arguments_give_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, []) == 0
    assert "Usage: scalegmn" in capsys.readouterr().out


def test_help_does_not_load_torch() -> None:
    code = (
        "import sys; "
        "from scalegmn.cli.application import run; from scalegmn.cli import app; run(app, ['--help']);"
        "sys.exit(' '.join({'torch', 'numpy', 'scipy', 'matplotlib'} & set(sys.modules)) or None)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, f"loaded: {result.stderr}"


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command that does something, through all groups of commands."""
    if isinstance(command, typer.core.TyperGroup):
        for name, child in command.commands.items():
            yield from commands(child, (*path, name))
    else:
        yield path


def commands_without_example(application: typer.Typer, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the commands whose help lacks an example that starts with their own name."""
    lacking = []
    for path in commands(typer.main.get_command(application)):
        assert run(application, [*path, "--help"]) == 0
        text = capsys.readouterr().out
        _, _, end = " ".join(text.split()).partition("Example")
        if " ".join(["scalegmn", *path]) not in end:
            lacking.append(" ".join(path))
    return lacking


def test_every_command_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands_without_example(app, capsys) == []


def test_a_command_without_example_is_found(sample: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands_without_example(sample, capsys) == ["good", "bad", "broken", "gone", "early"]


def test_json_has_null_for_what_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [1.5, float("inf")], "b": {"c": float("nan"), "d": "nan"}, "e": (True, None, 3)})
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"a": [1.5, None], "b": {"c": None, "d": "nan"}, "e": [True, None, 3]}


def test_progress_is_silent_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track(iter("abc"), "letters", total=3)) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")
