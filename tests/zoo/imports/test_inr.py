"""Public INR collections in exactly their layouts, and what hostile ones try."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from archives import FORMS, Evil, Files, Form, as_folder, as_tar, as_zip, on_cuda, saved
from archives import refused as refused_by
from torch import Tensor
from torch.nn import functional as F

from scalegmn.cli import app
from scalegmn.cli.application import run
from scalegmn.errors import ScaleGMNError
from scalegmn.tasks import Editing
from scalegmn.zoo.imports import inr as inr_importer
from scalegmn.zoo.imports.archive import open_files
from scalegmn.zoo.imports.inr import import_inr
from scalegmn.zoo.store.verify import verify
from scalegmn.zoo.store.zoo import Zoo


def dws_state(seed: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shapes = {0: (32, 2), 1: (32, 32), 2: (1, 32)}
    state = {}
    for layer, shape in shapes.items():
        state[f"seq.{layer}.weight"] = torch.randn(shape, generator=rng) / 30
        state[f"seq.{layer}.bias"] = torch.randn(shape[:1], generator=rng) / 30
    return state


def nfn_state(seed: int) -> dict[str, Tensor]:
    names = {"seq.0": "net.0.linear", "seq.1": "net.1.linear", "seq.2": "net.2"}
    state = {names[k[:5]] + k[5:]: t for k, t in dws_state(seed).items()}
    state["net.2.weight"], state["net.2.bias"] = state["net.2.weight"].repeat(3, 1), torch.arange(3.0)
    return state


def mnist(count: int = 24, tests: int = 4) -> Files:
    """Every third network was saved on a GPU."""
    found = {}
    for i in range(count):
        half = "testing" if i < tests else "training"
        data = saved(dws_state(i))
        name = f"mnist-inrs/mnist_png_{half}_{i % 10}_{100 + i}/checkpoints/model_final.pth"
        found[name] = on_cuda(data) if i % 3 == 0 else data
    return found


def flat(state: dict[str, Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in state.values()])


def refused(tmp_path: Path, source: Path, complaint: str) -> None:
    refused_by(tmp_path, lambda out: import_inr("mnist-inr", source, out), complaint)


# -- INRs --------------------------------------------------------------------------------------------------------------


def test_the_gpu_file_needs_a_gpu_without_our_care() -> None:
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(io.BytesIO(on_cuda(saved(dws_state(0)))), weights_only=True)


@pytest.mark.parametrize("form", FORMS)
def test_mnist_inr(tmp_path: Path, form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inr_importer, "SHARD", 10)
    zoo = import_inr("mnist-inr", form(mnist(), tmp_path / "source"), tmp_path / "out")
    assert verify(tmp_path / "out") == []
    assert [len(zoo.split(s)) for s in ("train", "val", "test")] == [19, 1, 4]
    ids = zoo.column("image_id") - 100
    assert sorted(ids.tolist()) == list(range(24))
    assert torch.equal(zoo.column("label"), ids % 10)
    assert set(ids[zoo.split("test")].tolist()) == {0, 1, 2, 3}
    torch.testing.assert_close(zoo.batch().parameters, torch.stack([flat(dws_state(int(i))) for i in ids]))
    # The function is that of the published networks: sin(30 (W x + b)), linear, + 0.5.
    state, x = dws_state(int(ids[5])), torch.rand(7, 2)
    h = x
    for layer in range(2):
        h = torch.sin(30 * F.linear(h, state[f"seq.{layer}.weight"], state[f"seq.{layer}.bias"]))
    expected = F.linear(h, state["seq.2.weight"], state["seq.2.bias"]) + 0.5
    torch.testing.assert_close(zoo.batch([5]).evaluate(x)[0], expected)
    assert zoo.grid().shape == (784, 2)


def write_mnist(folder: Path, *, training: int = 40, tests: int = 40) -> dict[str, np.ndarray]:
    """Images in the official files; the class of image i is i modulo 10."""
    rng, found = np.random.default_rng(0), {}
    for prefix, half, count in (("train", "training", training), ("t10k", "testing", tests)):
        found[half] = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, array in ((f"{prefix}-images-idx3-ubyte", found[half]), (f"{prefix}-labels-idx1-ubyte", labels)):
            head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            folder.mkdir(exist_ok=True)
            (folder / name).write_bytes(head + array.tobytes())
    return found


def numbered(count: int = 24, tests: int = 4, suffix: str = "") -> Files:
    """Networks whose label is that of the image with their number."""
    found = {}
    for i in range(count):
        half = "testing" if i < tests else "training"
        found[f"mnist-inrs/mnist_png_{half}_{i % 10}_{i}{suffix}/checkpoints/model_final.pth"] = saved(dws_state(i))
    return found


@pytest.mark.parametrize("suffix", ["", "_v2", "-siren.w30"])
def test_the_number_in_a_name_leads_to_the_image(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inr_importer, "SHARD", 10)
    pixels = write_mnist(tmp_path / "images")
    source = as_folder(numbered(suffix=suffix), tmp_path / "source")
    command = ["zoo", "import", "mnist-inr", str(source), str(tmp_path / "out"), "--images", str(tmp_path / "images")]
    assert run(app, command) == 0
    zoo = Zoo.open(tmp_path / "out")
    assert verify(zoo.path) == []
    test = set(zoo.split("test").tolist())
    for i, number in enumerate(zoo.column("image_id").tolist()):
        expected = pixels["testing" if i in test else "training"][number]
        assert np.array_equal(zoo.images([i]).numpy()[0, :, :, 0], expected)
    # What Table 3 needs: targets from the images, answers from the networks.
    task = Editing.from_zoo(zoo)
    assert task.targets(zoo, torch.tensor([3, 5])).shape == (2, 28, 28, 1)


def test_images_that_are_not_those_of_the_networks_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "images", training=20)
    source = as_folder(numbered(), tmp_path / "source")
    with pytest.raises(ScaleGMNError, match=r"_20/.*: images: expected a number below 20 in its name"):
        import_inr("mnist-inr", source, tmp_path / "out", images=tmp_path / "images")
    other = as_folder(mnist(), tmp_path / "other")
    write_mnist(tmp_path / "many", training=200, tests=200)
    import_inr("mnist-inr", other, tmp_path / "right", images=tmp_path / "many")
    wrong = as_folder({n.replace("_4_104", "_5_104"): d for n, d in mnist().items()}, tmp_path / "wrong")
    with pytest.raises(ScaleGMNError, match="image 104 is a 4, not a 5; expected the official MNIST files"):
        import_inr("mnist-inr", wrong, tmp_path / "out", images=tmp_path / "many")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ScaleGMNError, match="images: expected only with mnist-inr"):
        import_inr("fmnist-inr", source, tmp_path / "out", images=tmp_path / "many")


def test_fits_of_one_image_stay_together(tmp_path: Path) -> None:
    files = {**numbered(40, suffix="_a"), **numbered(40, suffix="_b")}
    zoo = import_inr("mnist-inr", as_folder(files, tmp_path / "source"), tmp_path / "out")
    ids = {name: set(zoo.column("image_id")[zoo.split(name)].tolist()) for name in ("train", "val", "test")}
    assert len(zoo) == 80
    assert len(ids["val"]) == 3
    assert not ids["train"] & ids["val"]


def test_all_forms_give_the_same_networks(tmp_path: Path) -> None:
    zoos = [
        import_inr("mnist-inr", form(mnist(), tmp_path / f"s{i}"), tmp_path / f"o{i}") for i, form in enumerate(FORMS)
    ]
    for zoo in zoos[1:]:
        assert torch.equal(zoo.batch().parameters, zoos[0].batch().parameters)
        assert torch.equal(zoo.column("split"), zoos[0].column("split"))


def test_clutter_and_earlier_checkpoints_are_passed_over(tmp_path: Path) -> None:
    files = mnist(3)
    first = next(iter(files))
    files[first.replace("final", "current")] = saved(dws_state(99))
    files[f"__MACOSX/{first}"] = b"metadata"
    files[first.replace("model_final", "._model_final")] = b"metadata"
    assert len(import_inr("mnist-inr", as_zip(files, tmp_path / "s"), tmp_path / "out")) == 3


@pytest.mark.parametrize("nested", [False, True])
def test_published_lists_decide_the_splits(tmp_path: Path, nested: bool) -> None:
    files = mnist()
    names = sorted(files)
    lists = {"train": names[:10], "val": names[10:13], "test": names[13:20]}
    lists = {split: [f"/home/author/dataset/{name}" for name in paths] for split, paths in lists.items()}
    files["mnist_splits.json"] = json.dumps(
        {s: {"path": p, "label": ["0"] * len(p)} for s, p in lists.items()} if nested else lists
    ).encode()
    zoo = import_inr("mnist-inr", as_zip(files, tmp_path / "s"), tmp_path / "out")
    assert [len(zoo.split(s)) for s in ("train", "val", "test")] == [10, 3, 7]
    ids = zoo.column("image_id")
    wanted = {int(n.split("_")[4].split("/")[0]) for n in names[10:13]}
    assert set(ids[zoo.split("val")].tolist()) == wanted


def test_fmnist_inr_takes_labels_from_the_state_dict(tmp_path: Path) -> None:
    files = {
        f"fmnist/{i:03d}.pth": saved({**dws_state(i), "label": i % 7 if i % 2 else torch.tensor(i % 7)})
        for i in range(20)
    }
    names = sorted(files)
    files["splits.json"] = json.dumps({"train": names[:12], "val": names[12:15], "test": names[15:]}).encode()
    zoo = import_inr("fmnist-inr", as_folder(files, tmp_path / "s"), tmp_path / "out")
    assert zoo.column("label").tolist() == [i % 7 for i in range(20)]
    assert zoo.split("test").tolist() == [15, 16, 17, 18, 19]
    del files["splits.json"]
    fixed = import_inr("fmnist-inr", as_folder(files, tmp_path / "t"), tmp_path / "fixed")
    assert [len(fixed.split(s)) for s in ("train", "val", "test")] == [16, 2, 2]


def test_cifar10_inr(tmp_path: Path) -> None:
    files = {}
    for i in (0, 7, 44_999, 45_000, 49_999, 50_000, 59_999):
        files[f"siren_cifar_wts/randinit_smaller_{i % 10}s/net{i}.pth"] = saved(nfn_state(i))
        files[f"siren_cifar_wts/randinit_smaller_aug3_{i % 10}s/net{i}.pth"] = saved(nfn_state(i + 1))
    files["siren_cifar_wts/readme.txt"] = b"not a network"
    zoo = import_inr("cifar10-inr", as_tar(files, tmp_path / "s"), tmp_path / "out")
    assert zoo.column("image_id")[zoo.split("train")].tolist() == [0, 7, 44_999] * 2
    assert zoo.column("view")[zoo.split("train")].tolist() == [0, 0, 0, 4, 4, 4]
    assert zoo.column("image_id")[zoo.split("val")].tolist() == [45_000, 49_999]
    assert zoo.column("image_id")[zoo.split("test")].tolist() == [50_000, 59_999]
    assert torch.equal(zoo.column("label"), zoo.column("image_id") % 10)
    torch.testing.assert_close(zoo.batch([1]).parameters[0], flat(nfn_state(7)))
    assert zoo.canvas is not None
    assert (zoo.canvas.low, zoo.canvas.high, zoo.canvas.height, zoo.canvas.channels) == (-1, 1, 32, 3)
    assert zoo.architecture.layers[-1].offset == 0


def test_an_empty_directory_is_filled_and_a_full_one_is_not_touched(tmp_path: Path) -> None:
    source = as_zip(mnist(3), tmp_path / "s")
    (tmp_path / "empty").mkdir()
    assert len(import_inr("mnist-inr", source, tmp_path / "empty")) == 3
    with pytest.raises(ScaleGMNError, match="is not an empty directory"):
        import_inr("mnist-inr", source, tmp_path / "empty")
    assert verify(tmp_path / "empty") == []


# -- hostile archives --------------------------------------------------------------------------------------------------

BAD = "mnist-inrs/mnist_png_training_3_999/checkpoints/model_final.pth"


def changed(**changes: object) -> bytes:
    """A state dict with other entries; None removes one."""
    state: dict[str, object] = {**dws_state(0), **{k.replace("_", "."): v for k, v in changes.items()}}
    return saved({k: v for k, v in state.items() if v is not None})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (changed(seq_1_weight=torch.zeros(32, 31)), r"seq\.1\.weight"),
        (changed(seq_2_bias=None), "expected 6 tensors|seq"),
        (changed(seq_0_bias=torch.full((32,), torch.nan)), r"seq\.0\.bias has a weight that is nan"),
        (changed(seq_0_bias=torch.full((32,), torch.inf)), r"seq\.0\.bias has a weight that is inf"),
        (changed(label=17), "expected a label from 0 to 9, got 17"),
        (changed(label=4), "is labelled 4 inside and 3 by its name"),
        (saved([1, 2]), "expected a state dict, got a list"),
        (saved(dws_state(0))[:900], "is damaged or not a file that torch.save wrote"),
        (b"", "is damaged or not a file that torch.save wrote"),
        (b"hello", "is damaged|holds Python objects"),
    ],
)
def test_a_bad_network_is_refused_by_name(tmp_path: Path, form: Form, content: bytes, complaint: str) -> None:
    source = form({**mnist(4), BAD: content}, tmp_path / "source")
    refused(tmp_path, source, f"mnist_png_training_3_999.*({complaint})")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("legacy", [False, True])
def test_pickled_code_is_refused_and_not_run(tmp_path: Path, form: Form, legacy: bool) -> None:
    trap = tmp_path / "trap"
    evil = {**dws_state(0), "seq.3.weight": Evil(trap)}
    content = pickle.dumps(evil) if legacy else saved(evil)
    refused(tmp_path, form({**mnist(4), BAD: content}, tmp_path / "source"), "mnist_png_training_3_999.*Python objects")
    assert not trap.exists()
    with pytest.raises(FileNotFoundError):
        pickle.loads(pickle.dumps(Evil(tmp_path / "missing" / "folder")))  # the trap does work


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("name", ["../evil.pth", "/tmp/evil.pth", "a/../../evil.pth", "..\\evil.pth", "C:\\evil.pth"])
def test_names_that_lead_out_are_refused(tmp_path: Path, form: Form, name: str) -> None:
    refused(
        tmp_path, form({**mnist(2), name: saved(dws_state(0))}, tmp_path / "source"), "evil.*leads out of the archive"
    )


def test_links_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "links.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo(BAD)
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    refused(tmp_path, path, "training_3_999.*is a link or a device")
    path = tmp_path / "links.zip"
    with zipfile.ZipFile(path, "w") as zipped:
        entry = zipfile.ZipInfo(BAD)
        entry.external_attr = 0o120777 << 16
        zipped.writestr(entry, "/etc/passwd")
    refused(tmp_path, path, "training_3_999.*is a link or a device")
    folder = as_folder(mnist(2), tmp_path / "folder")
    (folder / "link.pth").symlink_to("/etc/passwd")
    refused(tmp_path, folder, r"link\.pth is a link that leads out")


@pytest.mark.parametrize("kind", ["loop", "nowhere", "pipe"])
def test_what_is_no_file_is_not_passed_over(tmp_path: Path, kind: str) -> None:
    folder = as_folder(mnist(2), tmp_path / "folder")
    path = folder / "odd.pth"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path if kind == "loop" else folder / "missing")
    refused(tmp_path, folder, r"odd\.pth is neither a file nor a folder")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = as_zip(mnist(2), tmp_path / "s")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(next(iter(mnist(2))), saved(dws_state(9)))
    refused(tmp_path, path, "comes twice")


def test_bombs_are_refused(tmp_path: Path) -> None:
    zeros = {BAD: bytes(50 << 20)}
    refused(tmp_path, as_zip(zeros, tmp_path / "bomb"), "training_3_999.*grows more than 100-fold")
    refused(tmp_path, as_tar(zeros, tmp_path / "bomb"), "grows more than 100-fold")


def test_a_huge_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = as_folder(mnist(2), tmp_path / "folder")
    (folder / BAD).parent.mkdir(parents=True)
    with (folder / BAD).open("wb") as file:
        file.truncate(65 << 20)
    refused(tmp_path, folder, "training_3_999.*expected at most 64 MiB")


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz", ".tgz"])
@pytest.mark.parametrize(
    "content",
    [b"", b"not an archive at all", b"PK\x03\x04", gzip.compress(b"x" * 2000, mtime=0)[:-9]],
    ids=["empty", "text", "zip", "gzip"],
)
def test_damaged_archives_are_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"damaged{suffix}"
    path.write_bytes(content)
    refused(tmp_path, path, "damaged or not an archive|found none")


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({}, "expected networks as .pth files, found none"),
        ({"other/model.pth": b""}, "expected mnist_png_<training or testing>"),
        ({**mnist(2), "s.json": b"{"}, r"s\.json: is not JSON"),
        ({**mnist(2), "s.json": b'{"train": ["a/b/c.pth"]}'}, r"lists a/b/c\.pth, which is not there"),
        ({**mnist(2), "s.json": b'{"train": 3}'}, r"s\.json: expected a list of paths"),
        ({**mnist(2), "s.json": json.dumps({"val": [*mnist(1), *mnist(1)]}).encode()}, "twice"),
        ({**mnist(2), "a.json": b'{"val": []}', "b.json": b'{"val": []}'}, "a.json and b.json"),
    ],
)
def test_other_layouts_are_refused(tmp_path: Path, files: Files, complaint: str) -> None:
    refused(tmp_path, as_tar({"readme": b"", **files}, tmp_path / "s"), complaint)


def test_sources_that_are_not_there_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, tmp_path / "nothing", "no file or folder")
    (tmp_path / "file.rar").write_bytes(b"")
    refused(tmp_path, tmp_path / "file.rar", "expected a folder or a file in .zip")
    with pytest.raises(ScaleGMNError, match="expected one of mnist-inr, fmnist-inr, cifar10-inr; got 'svhn-inr'"):
        import_inr("svhn-inr", tmp_path, tmp_path / "out")
    twice = as_zip({"a/x.csv": b"", "b/x.csv": b""}, tmp_path / "z")
    with open_files(twice) as source, pytest.raises(ScaleGMNError, match=r"expected one x\.csv, found a/x.csv and b"):
        source.find("x.csv")
