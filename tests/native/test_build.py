"""Compiling at first use: what is said, where the result is kept, and who may have written it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from scalegmn.native import build as native
from scalegmn.native.build import NoCompilerError, backend, build

# A compiler that writes down that it was called and makes a file.
COMPILER = """#!/bin/sh
echo called >> {log}
case "$1" in --version) echo "pretend 1.0"; exit 0;; esac
while [ "$1" != "-o" ]; do shift; done
echo made > "$2"
"""
BROKEN = """#!/bin/sh
case "$1" in --version) echo "broken 1.0"; exit 0;; esac
echo "in a file included from here" >&2
echo "net.cpp:7:1: error: no such thing" >&2
exit 1
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "log"
    script(tmp_path, COMPILER.format(log=path), monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "failures", {})
    return path


def script(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    compiler = folder / "compiler"
    compiler.write_text(text)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.delenv("SCALEGMN_KERNELS", raising=False)
    return compiler


def calls(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_a_source_is_compiled_once_into_a_private_folder(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.umask(0)
    try:
        path = build("net")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]
    said = capsys.readouterr().err
    assert said.startswith("scalegmn: compiling net.cpp with compiler, once ... ")
    assert said.count("\n") == 1
    assert calls(log) == 2
    assert build("net") == path
    assert calls(log) == 2
    assert capsys.readouterr().err == ""
    assert build("fit") != path


def test_a_library_that_others_may_have_changed_is_compiled_again(log: Path, tmp_path: Path) -> None:
    path = build("net")
    for spoil in (lambda: path.chmod(0o722), lambda: path.chmod(0o770), lambda: replace_by_link(path, tmp_path)):
        spoil()
        before = calls(log)
        assert build("net") == path
        assert calls(log) == before + 2
        assert stat.S_IMODE(path.lstat().st_mode) == 0o700
        assert path.read_text() == "made\n"


def replace_by_link(path: Path, folder: Path) -> None:
    (folder / "foreign.so").write_text("evil")
    path.unlink()
    path.symlink_to(folder / "foreign.so")


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_can_write_to_is_refused(log: Path, tmp_path: Path, mode: int) -> None:
    path = build("net")
    path.parent.chmod(mode)
    before = calls(log)
    with pytest.raises(NoCompilerError, match=r"others can write to .*chmod go-w, chown"):
        build("net")
    assert calls(log) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_folder_or_library_of_another_user_is_not_used(log: Path) -> None:
    path = build("net")
    os.chown(path, 12345, 12345)
    before = calls(log)
    build("net")
    assert calls(log) == before + 2
    os.chown(path.parent, 12345, 12345)
    with pytest.raises(NoCompilerError, match="others can write"):
        build("net")


def test_the_backend_is_named(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend() == "compiled with pretend 1.0 (at first use)"
    build("net")
    assert backend() == "compiled with pretend 1.0"
    monkeypatch.setenv("SCALEGMN_KERNELS", "0")
    assert backend() == "plain torch (SCALEGMN_KERNELS is 0)"
    monkeypatch.delenv("SCALEGMN_KERNELS")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert backend().startswith("plain torch (no compiler no-such-compiler;")


PROGRAM = """
import torch
from scalegmn.native import library
from scalegmn.native.build import backend
print(*(library.usable(torch.zeros(1)) and library.load() for _ in range(3)), backend())
"""


def test_a_compiler_that_fails_says_so_once_and_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, BROKEN, monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert result.stdout == (
        "False False False plain torch (compiler fails on net.cpp: net.cpp:7:1: error: no such thing)\n"
    )
    lines = result.stderr.splitlines()
    assert lines[0] == "scalegmn: compiling net.cpp with compiler, once ... failed"
    assert [line for line in lines if "no such thing" in line] == lines[1:2]


def test_without_a_place_to_keep_it_plain_torch_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, COMPILER.format(log=tmp_path / "log"), monkeypatch)
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("False False False plain torch (")
    assert result.stderr.count("plain torch runs instead") == 1


def test_a_compiler_that_is_missing_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALEGMN_KERNELS", raising=False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("False False False plain torch (no compiler no-such-compiler;")
    assert result.stderr == (
        "scalegmn: plain torch runs instead of compiled code, slower: "
        "no compiler no-such-compiler; install it or name one with CXX\n"
    )
    monkeypatch.setenv("SCALEGMN_KERNELS", "0")
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert result.stderr == ""
