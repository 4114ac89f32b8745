"""Files that a model meets beside those it was trained on: computed weights, graphs, gaps in a table, plain misuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import recipe_for
from torch import nn
from torch.nn.utils import parametrizations, prune

import scalegmn
from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.convert.trace.plain import computed
from scalegmn.core.architecture import Architecture
from scalegmn.core.networks import Networks
from scalegmn.errors import ScaleGMNError
from scalegmn.training.loop import DivergedError, train
from scalegmn.zoo.imports.checkpoints import Ways, import_checkpoints
from scalegmn.zoo.store.zoo import Zoo

MODEL: dict[str, Any] = {"name": "scalegmn", "width": 8, "layers": 2}


def normalised() -> nn.Sequential:
    return nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(3, 6)), nn.ReLU(), parametrizations.weight_norm(nn.Linear(6, 2))
    )


def write(folder: Path, make: Callable[[], nn.Module], count: int = 12, column: str = "score") -> Path:
    """Checkpoints and their table."""
    folder.mkdir()
    for i in range(count):
        torch.save(make().state_dict(), folder / f"{i}.th")
    table = folder.parent / f"{folder.name}.csv"
    table.write_text(f"file,{column}\n" + "".join(f"{i}.th,{i / 10}\n" for i in range(count)))
    return table


@pytest.fixture(scope="module")
def perceptrons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bare checkpoints that were imported with an activation, and a model trained on them."""
    root = tmp_path_factory.mktemp("bare")
    torch.manual_seed(0)
    table = write(root / "nets", lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)))
    import_checkpoints(root / "nets", table, root / "zoo", ways=Ways(activation="tanh"))
    train(recipe_for(root / "zoo", task="regression", model=MODEL, epochs=1), root / "run")
    return root


@pytest.mark.parametrize("make", [
    lambda: normalised(),
    lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 6)), nn.ReLU(), nn.Linear(6, 2)),
    lambda: nn.Sequential(prune.l1_unstructured(nn.Linear(3, 6), "weight", 0.5), nn.ReLU(), nn.Linear(6, 2)),
    lambda: nn.Sequential(
        parametrizations.spectral_norm(nn.ConvTranspose2d(4, 4, 3)), nn.Flatten(), nn.Linear(36, 2)
    ),
    lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 6), dim=1), nn.ReLU(), nn.Linear(6, 2)),
], ids=["both", "hook", "pruned", "square transpose", "another dimension"])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_weights_are_computed_from_names(make: Callable[[], nn.Sequential]) -> None:
    torch.manual_seed(0)
    module = make().double()
    x = torch.randn(4, 4, 1, 1, dtype=torch.float64) if "ConvTranspose" in repr(module) else torch.randn(4, 3).double()
    module(x)  # spectral norm makes a step
    module.eval()
    module(x)
    found = computed(module.state_dict())
    assert {"0.weight", "2.weight"} <= found.keys()
    for i in (0, 2):
        torch.testing.assert_close(found[f"{i}.weight"], module[i].weight.detach(), atol=1e-12, rtol=1e-12)


def test_a_model_reads_the_normalised_files_that_it_was_trained_on(tmp_path: Path) -> None:
    torch.manual_seed(0)
    table = write(tmp_path / "nets", normalised)
    zoo = import_checkpoints(tmp_path / "nets", table, tmp_path / "zoo", ways=Ways(likes={"m:f": normalised()}))
    trained = scalegmn.train(zoo=zoo, task="regression", model=MODEL, training={"epochs": 1}, out=tmp_path / "run")
    plain = [a["score"] for a in trained.predict(trained.read(zoo))]
    files = [tmp_path / "nets" / name for name in zoo.names()]
    assert [a["score"] for a in trained.predict(trained.read(files))] == pytest.approx(plain, abs=1e-5)
    module = normalised()
    module.load_state_dict(torch.load(files[0], weights_only=True))
    x = torch.randn(5, 3)
    torch.testing.assert_close(zoo.batch([0]).evaluate(x)[0], module.eval()(x).detach(), atol=1e-6, rtol=1e-6)


def test_a_file_that_tells_only_shapes_is_said_to_be_assumed(
    perceptrons: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", perceptrons / "run", perceptrons / "nets" / "0.th", "--json"]
    assert run(app, [str(w) for w in words]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["assumed"] == "tanh"
    assert "assumed tanh, as in training" in err
    assert run(app, [str(w) for w in [*words, "--activation", "tanh"]]) == 0
    assert capsys.readouterr().err == ""
    assert run(app, [str(w) for w in [*words, "--activation", "relu"]]) == 2


def test_a_gap_in_the_column_that_decides_is_told_with_its_row(tmp_path: Path) -> None:
    write(tmp_path / "nets", lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)), 3)
    table = tmp_path / "table.csv"
    likes = {f"m:{act.__name__}": nn.Sequential(nn.Linear(3, 6), act(), nn.Linear(6, 2)) for act in (nn.ReLU, nn.Tanh)}
    table.write_text("file,score,activation\n0.th,1,relu\n1.th,2,\n2.th,3,tanh\n")
    with pytest.raises(ScaleGMNError, match=r"1\.th: fits m:ReLU .* \(row 3 of the table does not tell\)$"):
        import_checkpoints(tmp_path / "nets", table, tmp_path / "zoo", ways=Ways(likes=likes))
    assert not (tmp_path / "zoo").exists()
    # With one candidate there is nothing to decide.
    one = Ways(likes={"m:ReLU": likes["m:ReLU"]})
    table.write_text("file,score,activation\n0.th,1,relu\n1.th,2,\n2.th,3,relu\n")
    assert len(import_checkpoints(tmp_path / "nets", table, tmp_path / "zoo", ways=one)) == 3


def test_a_file_of_two_networks_is_refused_with_its_prefixes(tmp_path: Path) -> None:
    parts = {k: nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2)) for k in ("actor", "critic")}
    state = nn.ModuleDict(parts).state_dict()
    with pytest.raises(ScaleGMNError, match=r"--prefix actor; names begin with actor, critic"):
        Networks.from_state_dicts([state], activation="relu")
    with pytest.raises(ScaleGMNError, match=r"--arch module:function\)$"):
        Networks.from_state_dicts([{"0.weight": torch.zeros(2, 3), "1.weight": torch.zeros(2, 3)}], activation="relu")


def test_a_run_that_diverged_at_once_does_not_block_the_next(perceptrons: Path, tmp_path: Path) -> None:
    hot = recipe_for(perceptrons / "zoo", task="regression", model=MODEL, epochs=2, lr=1e30, warmup=0)
    with pytest.raises(DivergedError, match=r"try a smaller training\.lr"):
        train(hot, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(recipe_for(perceptrons / "zoo", task="regression", model=MODEL, epochs=1), tmp_path / "run")
    assert scalegmn.load(tmp_path / "run").task.name == "regression"


def test_misuse_in_python_is_one_line(perceptrons: Path) -> None:
    trained = scalegmn.load(perceptrons / "run")
    a, module = Architecture.mlp([3, 6, 2]), nn.Linear(3, 2)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: trained.predict(a), "expected a module, a state dict, a path, a zoo or Networks, got Architecture"),  # type: ignore[arg-type]
        (lambda: trained.predict(5), "got int"),  # type: ignore[arg-type]
        (lambda: trained.predict(nn.Linear), "got the class Linear"),  # type: ignore[arg-type]
        (lambda: scalegmn.ScaleGMN(module, outputs=2), "expected a list of Architecture, got Linear"),  # type: ignore[arg-type]
        (lambda: scalegmn.ScaleGMN([module], outputs=2), "expected a list of Architecture, got Linear"),  # type: ignore[list-item]
        (lambda: scalegmn.ScaleGMN(a, outputs=2), "expected a list of them, got one"),  # type: ignore[arg-type]
        (lambda: Networks(module, torch.zeros(1, 8)), "expected an Architecture, got Linear"),  # type: ignore[arg-type]
        (lambda: scalegmn.train(5), "expected a recipe, its file or its name, got int"),  # type: ignore[arg-type]
        (lambda: scalegmn.load(3), "expected the path of a run directory, got int"),  # type: ignore[arg-type]
    ]
    for call, message in cases:
        with pytest.raises(ScaleGMNError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_graphs_are_imported_and_asked_about(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    (tmp_path / "nets").mkdir()
    lines = ["file,score"]
    for i in range(12):
        tensors = {"a": torch.randn(6, 3), "b": torch.randn(6), "c": torch.randn(2, 6), "d": torch.randn(2)}
        nodes = [
            helper.make_node("Gemm", ["x", "a", "b"], ["h"], transB=1),
            helper.make_node("Tanh", ["h"], ["z"]),
            helper.make_node("Gemm", ["z", "c", "d"], ["y"], transB=1),
        ]
        initial = [onnx.numpy_helper.from_array(t.numpy(), name) for name, t in tensors.items()]
        ends = (helper.make_tensor_value_info(n, kind, s) for n, s in (("x", ["N", 3]), ("y", None)))
        graph = helper.make_graph(nodes, "net", *([e] for e in ends), initial)
        onnx.save(helper.make_model(graph), str(tmp_path / "nets" / f"{i}.bin"))
        lines.append(f"{i}.bin,{i / 10}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    zoo = import_checkpoints(tmp_path / "nets", tmp_path / "table.csv", tmp_path / "zoo")
    assert str(zoo.architecture) == "3-6-2 [tanh]"
    trained = scalegmn.train(zoo=zoo, task="regression", model=MODEL, training={"epochs": 1}, out=tmp_path / "run")
    reading = trained.read(tmp_path / "nets")
    assert reading.notes() == []
    by_name = {Path(n).name: a["score"] for n, a in zip(reading.names, trained.predict(reading), strict=True)}
    answers = zip(zoo.names(), trained.predict(Zoo.open(zoo.path)), strict=True)
    assert by_name == pytest.approx({n: a["score"] for n, a in answers}, abs=1e-5)
