"""Importing and loading run nothing from a file and open no connection: what a process does is watched by Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from archives import Evil
from tiny_runs import recipe_for
from torch import nn

from scalegmn.training.loop import train
from scalegmn.zoo.store.zoo import Zoo

# What a process tells the hook about (docs.python.org: audit events), and what of it nobody should see here.
_WATCH = """
import json, os, sys
seen = []
def hook(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "urllib.Request", "os.exec",
                 "os.posix_spawn", "os.system", "subprocess.Popen", "pickle.find_class", "ctypes.dlopen", "import"):
        detail = str(arguments[1] if event in ("socket.connect", "import") else arguments[0])
        seen.append((event, detail))
    elif event == "exec":
        seen.append((event, arguments[0].co_filename))
sys.addaudithook(hook)
"""
_TELL = """
print(json.dumps(seen))
"""


def watched(program: str, data: Path) -> list[tuple[str, str]]:
    """The events of a program that sees a folder of data as `data`."""
    text = f"{_WATCH}\nfrom pathlib import Path\ndata = Path(sys.argv[2])\n{program}\n{_TELL}"
    words = [sys.executable, "-c", text, json.dumps([str(data)]), str(data)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=data)
    return [(event, detail) for event, detail in json.loads(done.stdout.splitlines()[-1])]


def of(events: list[tuple[str, str]], *names: str) -> list[str]:
    return [detail for event, detail in events if event.startswith(names)]


@pytest.fixture(scope="module")
def data(digits: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo, a run, checkpoints, and a Python file that nobody asked for beside them."""
    folder = tmp_path_factory.mktemp("quiet")
    (folder / "zoo").symlink_to(digits.path)
    train(recipe_for(digits.path, epochs=1), folder / "run")
    torch.save(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).state_dict(), folder / "net.pt")
    torch.save({"weights": Evil(folder / "escaped")}, folder / "evil.pt")
    (folder / "sitecustomize_of_someone.py").write_text("raise SystemExit(3)")
    return folder


def test_importing_everything_opens_no_connection_and_starts_no_process(data: Path) -> None:
    events = watched(
        "import importlib, pkgutil, scalegmn\n"
        "for found in pkgutil.walk_packages(scalegmn.__path__, 'scalegmn.'): importlib.import_module(found.name)",
        data,
    )
    assert of(events, "import")
    assert not of(events, "socket", "urllib")
    # torch looks for its own helpers; nothing of ours starts a process.
    assert not [name for name in of(events, "subprocess", "os.") if "scalegmn" in name]


LOADING = {
    "zoo": "from scalegmn.zoo.store.zoo import Zoo\nzoo = Zoo.open(data / 'zoo')\nzoo.batch(); zoo.column('label')",
    "verify": "from scalegmn.zoo.store.verify import verify\nassert verify(data / 'zoo') == []",
    "run": "from scalegmn.inference.trained import load\nload(data / 'run')",
    "checkpoint": "from scalegmn.core.networks import Networks\n"
    "Networks.from_files([data / 'net.pt'], activation='tanh')",
    "evil": "from scalegmn.convert.formats.files import read_state_dict\n"
    "try:\n    read_state_dict(data / 'evil.pt')\nexcept ValueError as error:\n"
    "    assert 'was not loaded' in str(error)",
}


@pytest.mark.parametrize("what", LOADING)
def test_loading_runs_nothing_from_disk_and_opens_no_connection(what: str, data: Path) -> None:
    # What libraries load at first use is loaded before; then only the file is new.
    program = "import scalegmn.inference.trained, scalegmn.zoo.store.verify\ndef work():\n"
    program += "".join(f"    {line}\n" for line in LOADING[what].splitlines()) + "del seen[:]\nwork()"
    events = watched(program, data)
    assert not of(events, "socket", "urllib", "os.", "subprocess", "pickle.find_class")
    assert not [name for name in of(events, "exec", "import", "ctypes.dlopen") if str(data) in name]
    assert not (data / "escaped").exists()


def test_the_watch_sees_code_and_connections(data: Path) -> None:
    """A control: what would be wrong is seen."""
    (data / "mine.py").write_text("value = 1")
    events = watched(
        "sys.path.insert(0, str(data))\nimport mine, pickle, socket\n"
        "pickle.loads(b'cos\\ngetcwd\\n.')\n"
        "try:\n    socket.create_connection(('127.0.0.1', 9), 1)\nexcept OSError: pass",
        data,
    )
    assert str(data / "mine.py") in of(events, "exec")
    assert "os" in of(events, "pickle.find_class")
    assert of(events, "socket.connect")
