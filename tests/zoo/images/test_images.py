"""Image files in their official layouts, written here byte by byte, and damaged ones."""

import contextlib
import gzip
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.io import savemat

from scalegmn.errors import ScaleGMNError
from scalegmn.zoo.images.collections import load_images
from scalegmn.zoo.images.pickled import read_pickle

RNG = np.random.default_rng(0)


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.tobytes()


def write_idx(folder: Path, prefix: str, count: int, *, packed: bool = False) -> tuple[NDArray[np.uint8], list[int]]:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    labels = RNG.integers(0, 10, count, dtype=np.uint8)
    for name, array in ((f"{prefix}-images-idx3-ubyte", pixels), (f"{prefix}-labels-idx1-ubyte", labels)):
        data = idx_bytes(array)
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(data) if packed else data)
    return pixels, labels.tolist()


def cifar_batch(count: int) -> tuple[NDArray[np.uint8], list[int]]:
    """Images with colours last, and labels."""
    return RNG.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), RNG.integers(0, 10, count).tolist()


def flat(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(len(pixels), -1)


def test_digits_are_embedded_and_scaled() -> None:
    images = load_images("digits")
    assert images.pixels.shape == (1797, 8, 8)
    assert images.pixels.max() == 255
    assert len(np.unique(images.pixels)) == 17
    assert set(images.labels.tolist()) == set(range(10))
    assert not images.test.any()
    with pytest.raises(ScaleGMNError, match="no official test"):
        load_images("digits", split="test")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"),
    [("mnist", "."), ("mnist", "MNIST/raw"), ("mnist", "mnist"), ("fashion-mnist", "FashionMNIST/raw")],
)
def test_idx(tmp_path: Path, name: str, folder: str, packed: bool) -> None:
    train, train_labels = write_idx(tmp_path / folder, "train", 5, packed=packed)
    test, test_labels = write_idx(tmp_path / folder, "t10k", 3, packed=packed)
    images = load_images(name, tmp_path)
    np.testing.assert_array_equal(images.pixels, np.concatenate([train, test]))
    assert images.labels.tolist() == train_labels + test_labels
    assert images.labels.dtype == np.int64
    assert images.test.tolist() == [False] * 5 + [True] * 3
    np.testing.assert_array_equal(load_images(name, tmp_path, "test").pixels, test)
    np.testing.assert_array_equal(load_images(name, tmp_path, "train").pixels, train)
    np.testing.assert_array_equal(load_images(name, tmp_path, "train", grey=True).pixels, train)


def test_named_folder_wins_over_root(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", 2)
    fashion, _ = write_idx(tmp_path / "FashionMNIST" / "raw", "train", 3)
    np.testing.assert_array_equal(load_images("fashion-mnist", tmp_path, "train").pixels, fashion)


def test_cifar_binary_and_grey(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    everything = []
    for name in [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]:
        pixels, labels = cifar_batch(4)
        rows = np.concatenate([np.array(labels, dtype=np.uint8)[:, None], flat(pixels)], axis=1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
        everything.append((pixels, labels))
    images = load_images("cifar10", tmp_path)
    np.testing.assert_array_equal(images.pixels, np.concatenate([p for p, _ in everything]))
    assert images.labels.tolist() == [label for _, labels in everything for label in labels]
    assert images.test.sum() == 4
    assert images.channels == 3
    grey = load_images("cifar10", tmp_path, grey=True)
    assert grey.pixels.shape == (24, 32, 32)
    assert grey.channels == 1
    assert np.abs(grey.pixels - images.pixels.astype(np.float64).mean(axis=3)).max() <= 0.5


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_cifar_python(tmp_path: Path, protocol: int) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels, labels = cifar_batch(3)
    batch = {b"data": flat(pixels), b"labels": labels, b"batch_label": b"testing batch 1 of 1"}
    (folder / "test_batch").write_bytes(pickle.dumps(batch, protocol=protocol))
    images = load_images("cifar10", tmp_path, "test")
    np.testing.assert_array_equal(images.pixels, pixels)
    assert images.labels.tolist() == labels


class Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def test_pickled_code_is_refused_by_name_and_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    marker = tmp_path / "ran"
    (folder / "test_batch").write_bytes(pickle.dumps({b"data": Hostile(marker)}))
    with pytest.raises(ScaleGMNError, match=r"test_batch: refused to unpickle (posix|nt)\.system"):
        load_images("cifar10", tmp_path, "test")
    assert not marker.exists()


def test_svhn(tmp_path: Path) -> None:
    pixels, _ = cifar_batch(4)
    for half in ("train", "test"):
        labels = np.array([[10], [1], [2], [9]], dtype=np.uint8)
        savemat(tmp_path / f"{half}_32x32.mat", {"X": pixels.transpose(1, 2, 3, 0), "y": labels}, do_compression=True)
    images = load_images("svhn", tmp_path, "train")
    np.testing.assert_array_equal(images.pixels, pixels)
    assert images.labels.tolist() == [0, 1, 2, 9]
    assert len(load_images("svhn", tmp_path)) == 8


def test_npz_by_path_and_by_name(tmp_path: Path) -> None:
    pixels, labels = cifar_batch(4)
    np.savez(tmp_path / "own.npz", x=pixels, y=np.array(labels))
    for images in (load_images(f"npz:{tmp_path / 'own.npz'}"), load_images("own", tmp_path)):
        np.testing.assert_array_equal(images.pixels, pixels)
        assert images.labels.tolist() == labels
        assert images.name == "own"
    np.savez(tmp_path / "mnist.npz", x=pixels[..., 0], y=np.array(labels))
    assert load_images("mnist", tmp_path).pixels.shape == (4, 32, 32)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("mnist", "train-images-idx3-ubyte"),
        ("fashion-mnist", "train-images-idx3-ubyte"),
        ("cifar10", r"cifar-10-batches-bin/data_batch_1\.bin"),
        ("svhn", r"train_32x32\.mat"),
    ],
)
def test_missing_files_name_the_file_and_the_command(tmp_path: Path, name: str, missing: str) -> None:
    with pytest.raises(ScaleGMNError, match=f"{missing}.*scalegmn zoo images {name} --root") as caught:
        load_images(name, tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ScaleGMNError, match="zoo images"):
        load_images(name)
    with pytest.raises(ScaleGMNError, match="no folder"):
        load_images(name, tmp_path / "nowhere")


def test_labels_are_looked_for_beside_their_images(tmp_path: Path) -> None:
    write_idx(tmp_path / "MNIST" / "raw", "train", 2)
    (tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte").rename(tmp_path / "train-labels-idx1-ubyte")
    with pytest.raises(ScaleGMNError, match="no train-labels-idx1-ubyte"):
        load_images("mnist", tmp_path, "train")


def damaged(data: bytes, how: str) -> bytes:
    return {"truncated": data[: len(data) // 2], "text": b"<html>not found</html>", "empty": b""}[how]


@pytest.mark.parametrize("how", ["truncated", "text", "empty"])
@pytest.mark.parametrize("kind", ["idx", "idx.gz", "bin", "py", "mat", "npz"])
def test_damaged_files_are_named(tmp_path: Path, kind: str, how: str) -> None:
    pixels, labels = cifar_batch(5)
    if kind.startswith("idx"):
        write_idx(tmp_path, "train", 3, packed=kind == "idx.gz")
        path = next(tmp_path.glob("train-images*"))
        name = "mnist"
    elif kind == "mat":
        path, name = tmp_path / "train_32x32.mat", "svhn"
        savemat(path, {"X": pixels.transpose(1, 2, 3, 0), "y": np.array(labels)})
    elif kind == "npz":
        path, name = tmp_path / "own.npz", "own"
        np.savez(path, x=pixels, y=np.array(labels))
    else:
        folder = tmp_path / f"cifar-10-batches-{kind}"
        folder.mkdir()
        path, name = folder / ("data_batch_1.bin" if kind == "bin" else "data_batch_1"), "cifar10"
        rows = np.concatenate([np.array(labels, dtype=np.uint8)[:, None], flat(pixels)], axis=1)
        path.write_bytes(rows.tobytes() if kind == "bin" else pickle.dumps({b"data": flat(pixels), b"labels": labels}))
    path.write_bytes(damaged(path.read_bytes(), how))
    with pytest.raises(ScaleGMNError, match=path.name) as caught:
        load_images(name, tmp_path, "all" if kind == "npz" else "train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"x": np.zeros((2, 3, 3)), "y": np.zeros(2, int)}, "uint8"),
        ({"x": np.zeros((2, 9), np.uint8), "y": np.zeros(2, int)}, r"\(N, H, W\)"),
        ({"x": np.zeros((2, 3, 3), np.uint8), "y": np.zeros(3, int)}, "2 integers"),
        ({"x": np.zeros((2, 3, 3), np.uint8), "y": np.zeros(2)}, "2 integers"),
        ({"x": np.zeros((2, 3, 3), np.uint8)}, "expected an array y, got x"),
        ({"x": np.array([object()]), "y": np.zeros(1, int)}, "pickled"),
    ],
)
def test_npz_with_other_arrays_is_refused(tmp_path: Path, arrays: dict[str, NDArray[np.uint8]], match: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(ScaleGMNError, match=match):
        load_images("own", tmp_path)


def test_unknown_names_and_splits() -> None:
    with pytest.raises(ScaleGMNError, match="fashion-mnist"):
        load_images("emnist")
    with pytest.raises(ScaleGMNError, match="all, train, test"):
        load_images("digits", split="val")


# -- files that were made to do harm -----------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [[-1, 0], [0, 1000], [0, 10**6], [0, 2**62]])
def test_labels_that_are_no_classes_are_refused(tmp_path: Path, labels: list[int]) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 9, 9), np.uint8), y=np.array(labels))
    with pytest.raises(ScaleGMNError, match=r"own\.npz: expected labels from 0 to 999, image \d has"):
        load_images("own", tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels, _ = cifar_batch(2)
    for wrong in (labels, [0, 2**80], [0, 0.5], [0, None], [0, [1]]):
        (folder / "test_batch").write_bytes(pickle.dumps({b"data": flat(pixels), b"labels": wrong}))
        with pytest.raises(ScaleGMNError, match=r"test_batch: (expected labels|refused to follow BINFLOAT)") as caught:
            load_images("cifar10", tmp_path, "test")
        assert "\n" not in str(caught.value)


# A pickled type with a state of its own can turn bytes into pointers: ('u1') made to object, and a type of objects.
DTYPE = b"cnumpy\ndtype\n(X\x02\x00\x00\x00%sK\x00K\x01tR(K\x03X\x01\x00\x00\x00|NN%s"
DTYPE += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb"
ARRAY = (
    b"\x80\x02}(X\x04\x00\x00\x00datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tX\x01\x00\x00\x00btR"
    b"(K\x01(K\x01M\x00\x0ct%s\x89B\x00\x0c\x00\x00%stbX\x06\x00\x00\x00labels]K\x01au."
)


@pytest.mark.parametrize("kind", [b"O8", b"V8", b"f8", b"M8", b"S9", b"\xc3\xa9"])
def test_arrays_of_anything_but_whole_numbers_are_refused(tmp_path: Path, kind: bytes) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "test_batch").write_bytes(ARRAY % (DTYPE % (kind, b"N"), b"A" * 3072))
    with pytest.raises(ScaleGMNError, match="test_batch: ") as caught:
        load_images("cifar10", tmp_path, "test")
    assert "\n" not in str(caught.value)


def test_the_state_of_a_type_is_not_believed(tmp_path: Path) -> None:
    """With fields in its state numpy's own unpickler would make an array of other things; here bytes stay bytes."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    state = b"X\x01\x00\x00\x00a\x85}X\x01\x00\x00\x00a" + DTYPE % (b"O8", b"N") + b"K\x00\x86s"
    (folder / "test_batch").write_bytes(ARRAY % (DTYPE % (b"u1", b"NN"), b"A" * 3072))
    assert load_images("cifar10", tmp_path, "test").pixels.max() == ord("A")
    (folder / "test_batch").write_bytes(ARRAY % (DTYPE % (b"u1", state), b"A" * 3072))
    assert load_images("cifar10", tmp_path, "test").pixels.max() == ord("A")


@given(st.binary(min_size=1, max_size=8), st.integers(0, 400))
@settings(max_examples=300, deadline=None)
def test_a_changed_pickle_gives_arrays_or_one_line(noise: bytes, place: int) -> None:
    content = bytearray(pickle.dumps({b"data": np.arange(6, dtype=np.uint8), b"labels": [1, 2]}, protocol=2))
    place %= len(content)
    content[place : place + len(noise)] = noise
    found: object = None
    with contextlib.suppress(ScaleGMNError):
        found = read_pickle(bytes(content))
    values = found.values() if isinstance(found, dict) else [found]
    assert all(v.dtype.kind in "iu" for v in values if isinstance(v, np.ndarray))


def absurd_header(path: Path, name: str, shape: str) -> None:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\x00" * 16
        archive.writestr(f"{name}.npy", data)


@pytest.mark.parametrize("shape", ["(10000000000, 9, 9)", "(99999999999999999999999999, 3)", "(-1, 3, 3)", "(4, 2, 3)"])
def test_absurd_sizes_in_an_npz_are_refused_before_they_are_believed(tmp_path: Path, shape: str) -> None:
    absurd_header(tmp_path / "own.npz", "x", shape)
    with pytest.raises(ScaleGMNError, match=r"own\.npz: ") as caught:
        load_images("own", tmp_path)
    assert "\n" not in str(caught.value)


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "own.npz")
    for name in (f"npz:{tmp_path / 'own.npz'}", "npz:/dev/zero", f"npz:{tmp_path}", "npz:a\0b"):
        with pytest.raises(ScaleGMNError, match="no file"):
            load_images(name)
    os.mkfifo(tmp_path / "train-images-idx3-ubyte")
    with pytest.raises(ScaleGMNError, match="no train-images-idx3-ubyte"):
        load_images("mnist", tmp_path)
