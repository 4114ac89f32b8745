"""A person's own checkpoints and the table that describes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from archives import Evil, refused
from safetensors.torch import save_file
from torch import nn

from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.cli.sources import import_code
from scalegmn.core.architecture import Architecture
from scalegmn.errors import ScaleGMNError
from scalegmn.zoo.imports.checkpoints import Ways, import_checkpoints
from scalegmn.zoo.store.verify import verify
from scalegmn.zoo.store.zoo import Zoo


def small(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 1))


def own(folder: Path) -> tuple[Path, list[nn.Module]]:
    """Two architectures in turns, in two formats."""
    folder.mkdir()
    modules, lines = [], ["file,label,epochs,optimiser,score"]
    for i in range(10):
        module = small(4 + 2 * (i % 2))
        modules.append(module)
        name = f"net{i}.{'safetensors' if i % 4 == 0 else 'pt'}"
        if i % 4 == 0:
            save_file(module.state_dict(), folder / name)
        else:
            torch.save(module.state_dict(), folder / name)
        lines.append(f"{name},{i / 8},{i},{'adam' if i % 3 else 'sgd'},{i * 0.5}")
    (folder / "labels.csv").write_text("\n".join(lines))
    return folder, modules


def test_own_checkpoints_of_two_architectures(tmp_path: Path) -> None:
    folder, modules = own(tmp_path / "nets")
    zoo = import_checkpoints(folder, folder / "labels.csv", tmp_path / "out", ways=Ways("tanh"))
    assert verify(tmp_path / "out") == []
    assert {str(a) for a in zoo.architectures} == {"2-4-1 [tanh]", "2-6-1 [tanh]"}
    assert zoo.categories("optimiser") == ("adam", "sgd")
    assert (zoo.column("epochs").dtype, zoo.column("label").dtype) == (torch.int64, torch.float32)
    rows = zoo.column("row")
    torch.testing.assert_close(zoo.column("label"), rows / 8)
    x = torch.rand(5, 2)
    groups, positions = zoo.batches()
    outputs = torch.cat([group.evaluate(x) for group in groups])
    for output, row in zip(outputs, rows[positions].tolist(), strict=True):
        torch.testing.assert_close(output, modules[row](x).detach())


def test_own_checkpoints_follow_modules_and_architectures(tmp_path: Path) -> None:
    folder = tmp_path / "nets"
    folder.mkdir()
    cnn = nn.Sequential(nn.Conv2d(1, 3, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    torch.save(cnn.state_dict(), folder / "cnn.pt")
    torch.save(small(4).state_dict(), folder / "mlp.pt")
    (folder / "t.csv").write_text("file,label,split\ncnn.pt,cat,test\nmlp.pt,dog,train\n")
    likes = {"mlp": Architecture.mlp([2, 4, 1], "sine"), "cnn": cnn}
    zoo = import_checkpoints(folder, folder / "t.csv", tmp_path / "out", ways=Ways(likes=likes))
    assert {str(a) for a in zoo.architectures} == {"1-3-2 [relu]", "2-4-1 [sine(1)]"}
    assert zoo.categories("label") == ("cat", "dog")
    assert zoo.column("row")[zoo.split("test")].tolist() == [0]
    groups, positions = zoo.batches()
    image = torch.rand(2, 1, 9, 9)
    torch.testing.assert_close(
        groups[zoo.column("row")[positions].tolist().index(0)].evaluate(image)[0], cnn(image).detach()
    )


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("file,name\nnet1.pt,x", "expected a column label or one column of numbers, got none"),
        ("file,a,b\nnet1.pt,1,2", "one column of numbers, got a, b; name one with --label-column"),
        ("file,label\nnet1.pt,1\nnet2.pt,", "row 3 has no value in the column 'label'"),
        ("", "expected different columns with file and a label"),
        ("file,label\n", "expected at least one row"),
        ("file,label\nnet1.pt", "expected 2 values in row 2, got 1"),
        ("file,label\nnet1.pt,1\nnet1.pt,2", r"lists net1\.pt twice"),
        ("file,label\n../secret.pt,1", r"'../secret\.pt' leads out"),
        ("file,label\n/etc/passwd,1", "'/etc/passwd' leads out"),
        ("file,label\nnet99.pt,1", r"lists net99\.pt, which is not in"),
        ("file,label,split\nnet1.pt,1,dev", "expected train, val, test in the column split, got 'dev'"),
        ("file,label,row\nnet1.pt,1,1", "are taken"),
        ("file,label,__metadata__\nnet1.pt,1,1", r"labels\.csv: a column cannot be called '__metadata__'"),
        ("file,label,a\0b\nnet1.pt,1,1", r"labels\.csv: a column cannot be called 'a\\x00b'"),
        ("file,label\nne\0t1.pt,1", "is not a valid file name"),
        ("file,label\nnet1.pt,nan", "expected finite labels, got nan"),
        ("file,label\nnet1.pt,1\nbad.pt,1", r"bad\.pt.*nan"),
        ("file,label\nnet1.pt,1\nevil.pt,1", r"evil\.pt: holds Python objects"),
        ("file,label\nnet1.pt,1\nconv.pt,1", r"conv\.pt: .*is a convolution"),
    ],
)
def test_bad_tables_and_checkpoints_are_refused(tmp_path: Path, table: str, complaint: str) -> None:
    folder, modules = own(tmp_path / "nets")
    torch.save(modules[0].state_dict(), tmp_path / "secret.pt")
    torch.save({k: t * torch.nan for k, t in modules[0].state_dict().items()}, folder / "bad.pt")
    torch.save({"a": Evil(tmp_path / "trap")}, folder / "evil.pt")
    torch.save(nn.Conv2d(1, 2, 3).state_dict(), folder / "conv.pt")
    (folder / "labels.csv").write_text(table)
    refused(tmp_path, lambda out: import_checkpoints(folder, folder / "labels.csv", out, ways=Ways("tanh")), complaint)


def test_the_command_takes_modules_and_an_activation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nets").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_models_of_this_test.py").write_text(
        "from torch import nn\n"
        "def cnn():\n"
        "    pool = nn.AdaptiveAvgPool2d(1)\n"
        "    return nn.Sequential(nn.Conv2d(1, 3, 3, 2), nn.ReLU(), pool, nn.Flatten(), nn.Linear(3, 2))\n"
    )
    from own_models_of_this_test import cnn  # type: ignore[import-not-found]

    torch.save(cnn().state_dict(), "nets/cnn.pt")
    torch.save(small(4).state_dict(), "nets/mlp.pt")
    Path("labels.csv").write_text("file,label\ncnn.pt,0.25\nmlp.pt,0.5\n")
    command = ["zoo", "import", "checkpoints", "nets", "--labels", "labels.csv", "out"]
    assert run(app, [*command, "--arch", "own_models_of_this_test:cnn"]) == 2
    assert "mlp.pt: expected the architecture 1-3-2" in capsys.readouterr().err
    assert not Path("out").exists()
    options = ["--arch", "own_models_of_this_test:cnn", "--activation", "sine", "--w0", "30"]
    assert run(app, [*command, *options]) == 0
    assert {str(a) for a in Zoo.open("out").architectures} == {"1-3-2 [relu]", "2-4-1 [sine(30)]"}


# -- which architecture --------------------------------------------------------------------------------------------


def twins(folder: Path) -> dict[str, nn.Module]:
    """Networks of equal shapes and different activations; the table tells which is which in a column."""
    folder.mkdir()
    likes: dict[str, nn.Module] = {
        "own:relu": nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)),
        "own:bounded": nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)),
    }
    lines = ["file,score,activation,kind"]
    for i in range(6):
        torch.save(small(4).state_dict(), folder / f"{i}")
        lines.append(f"{i},{i},{('relu', 'tanh')[i % 2]},{('relu', 'bounded')[i % 2]}")
    (folder / "t.csv").write_text("\n".join(lines))
    return likes


@pytest.mark.parametrize("column", [None, "kind", "activation"])
def test_a_column_decides_between_architectures_of_equal_shapes(tmp_path: Path, column: str | None) -> None:
    likes = twins(tmp_path / "nets")
    ways = Ways(likes=likes, column=column)
    zoo = import_checkpoints(tmp_path / "nets", tmp_path / "nets" / "t.csv", tmp_path / "out", ways=ways)
    found = [str(zoo.architectures[k]) for k in zoo.architecture_of().tolist()]
    assert found == [f"2-4-1 [{('relu', 'tanh')[row % 2]}]" for row in zoo.column("row").tolist()]
    assert zoo.label("none") == "score"
    assert sorted(zoo.names()) == [str(i) for i in range(6)]


def test_a_column_of_activations_serves_bare_perceptrons(tmp_path: Path) -> None:
    twins(tmp_path / "nets")
    zoo = import_checkpoints(tmp_path / "nets", tmp_path / "nets" / "t.csv", tmp_path / "out")
    assert zoo.architecture_of().bincount().tolist() == [3, 3]


def test_ambiguity_and_contradiction_are_refused(tmp_path: Path) -> None:
    likes = twins(tmp_path / "nets")
    table = tmp_path / "nets" / "t.csv"
    table.write_text("file,score\n0,1\n")

    def attempt(ways: Ways, complaint: str) -> None:
        refused(tmp_path, lambda out: import_checkpoints(tmp_path / "nets", table, out, ways=ways), complaint)

    several = r"0: fits own:relu \(2-4-1 \[relu\]\), own:bounded \(2-4-1 \[tanh\]\); name a column"
    attempt(Ways(likes=likes), several)
    attempt(Ways(likes=likes, column="kind"), "expected 'kind' among the columns file, score")
    table.write_text("file,score,activation\n0,1,sine\n")
    attempt(Ways(likes=likes), "the table says 'sine', but its shapes are those of own:relu")
    attempt(Ways(), "whose frequency is unknown")


def test_imported_inrs_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nets").mkdir()
    for i in range(3):
        state = {f"net.{k}": t for k, t in small(4).state_dict().items()}
        torch.save({**state, "epoch": 1}, tmp_path / "nets" / f"{i}.th")
    (tmp_path / "t.csv").write_text("file,digit\n0.th,3\n1.th,4\n2.th,5\n")
    words = ["zoo", "import", "checkpoints", str(tmp_path / "nets"), str(tmp_path / "out"), "--labels"]
    words += [str(tmp_path / "t.csv"), "--activation", "sine", "--w0", "30"]
    assert run(app, [*words, "--convention", "dws"]) == 2
    assert run(app, [*words, "--convention", "dws", "--grid", "9"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
    assert run(app, [*words, "--convention", "dws", "--grid", "9x8"]) == 0
    assert "3 x 2-4-1 [sine(30)]" in capsys.readouterr().out
    assert run(app, ["zoo", "info", str(tmp_path / "out")]) == 0
    assert "0.th" not in capsys.readouterr().out
    zoo = Zoo.open(tmp_path / "out")
    assert zoo.architecture.layers[-1].offset == 0.5
    assert zoo.grid().shape == (72, 2)
    assert run(app, ["zoo", "show", str(tmp_path / "out"), "--plot", str(tmp_path / "show.png")]) == 0
    assert (tmp_path / "show.png").stat().st_size > 0


def test_a_pipe_in_the_place_of_arch_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nets.py")
    with pytest.raises(ScaleGMNError, match="is not a regular file"):
        import_code(str(tmp_path / "nets.py"), "--arch")


def test_a_file_of_this_python_serves_as_arch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "parts_of_it.py").write_text("from torch import nn\nact = nn.Tanh\n")
    text = "from parts_of_it import act, nn\nf = lambda: nn.Sequential(nn.Linear(2, 4), act(), nn.Linear(4, 1))\n"
    (tmp_path / "code" / "mine.py").write_text(text)
    torch.save({f"actor.{k}": t for k, t in small(4).state_dict().items()}, tmp_path / "nets" / "a")
    (tmp_path / "t.csv").write_text("file,label\na,1\n")
    words = ["zoo", "import", "checkpoints", "nets", "out", "--labels", "t.csv", "--arch", "code/mine.py:f"]
    assert run(app, [*words, "--prefix", "actor"]) == 0
    assert str(Zoo.open("out").architecture) == "2-4-1 [tanh]"
    assert Zoo.open("out").layouts[0]["prefix"] == "actor."
