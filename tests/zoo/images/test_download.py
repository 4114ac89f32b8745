"""Downloads from a local HTTP server: complete, with a wrong sum, and cut off midway."""

import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scalegmn.errors import ScaleGMNError
from scalegmn.zoo.images.collections import load_images
from scalegmn.zoo.images.download import ORIGINS, Origin, download, fetch


@dataclass
class Site:
    """What the server has; a file in ``cut`` closes the connection after half of it."""

    url: str
    files: dict[str, bytes]
    cut: set[str]
    requests: list[str]


@pytest.fixture
def site() -> Iterator[Site]:
    here = Site("", {}, set(), [])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rsplit("/", 1)[-1]
            here.requests.append(name)
            if name not in here.files:
                self.send_error(404)
                return
            body = here.files[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if name in here.cut else body)
            self.close_connection = True

        def log_message(self, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here.url = f"http://127.0.0.1:{server.server_port}/data/"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield here
    server.shutdown()
    server.server_close()
    thread.join()


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def left_over(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def idx(*sizes: int) -> bytes:
    count = 1
    for size in sizes:
        count *= size
    return bytes([0, 0, 8, len(sizes)]) + b"".join(n.to_bytes(4, "big") for n in sizes) + bytes(count)


def small_mnist() -> tuple[Origin, dict[str, bytes]]:
    files = {
        "train-images-idx3-ubyte.gz": gzip.compress(idx(3, 28, 28)),
        "train-labels-idx1-ubyte.gz": gzip.compress(idx(3)),
        "t10k-images-idx3-ubyte.gz": gzip.compress(idx(2, 28, 28)),
        "t10k-labels-idx1-ubyte.gz": gzip.compress(idx(2)),
    }
    return Origin("http://unused", "MNIST/raw", {name: md5(data) for name, data in files.items()}), files


@pytest.mark.parametrize("progress", [False, True])
def test_good_files_are_downloaded_once_and_load(site: Site, tmp_path: Path, progress: bool) -> None:
    origin, site.files = small_mnist()
    paths = fetch(origin, tmp_path, base_url=site.url, progress=progress)
    assert [path.name for path in paths] == list(site.files)
    assert left_over(tmp_path) == sorted(f"MNIST/raw/{name}" for name in site.files)
    assert len(load_images("mnist", tmp_path)) == 5
    before = len(site.requests)
    fetch(origin, tmp_path, base_url=site.url, progress=progress)
    assert len(site.requests) == before


def test_a_damaged_file_is_downloaded_again(site: Site, tmp_path: Path) -> None:
    origin, site.files = small_mnist()
    first = fetch(origin, tmp_path, base_url=site.url, progress=False)[0]
    first.write_bytes(b"damaged")
    fetch(origin, tmp_path, base_url=site.url, progress=False)
    assert first.read_bytes() == site.files[first.name]


def test_wrong_checksum_leaves_no_file(site: Site, tmp_path: Path) -> None:
    name = next(iter(ORIGINS["mnist"].files))
    site.files = {name: b"something else"}
    with pytest.raises(ScaleGMNError, match=f"{name}: wrong checksum, expected md5 [0-9a-f]{{32}}") as caught:
        download("mnist", tmp_path, base_url=site.url, progress=False)
    assert "\n" not in str(caught.value)
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("progress", [False, True])
def test_an_interrupted_transfer_leaves_no_file(site: Site, tmp_path: Path, progress: bool) -> None:
    origin, site.files = small_mnist()
    site.files = {name: data * 2000 for name, data in site.files.items()}
    origin = Origin(origin.base_url, origin.folder, {name: md5(data) for name, data in site.files.items()})
    second = list(site.files)[1]
    site.cut = {second}
    with pytest.raises(ScaleGMNError, match=f"{second}: download failed, nothing was kept") as caught:
        fetch(origin, tmp_path, base_url=site.url, progress=progress)
    assert "\n" not in str(caught.value)
    assert left_over(tmp_path) == [f"MNIST/raw/{next(iter(site.files))}"]
    site.cut = set()
    assert len(fetch(origin, tmp_path, base_url=site.url, progress=progress)) == 4


def test_missing_file_and_dead_server(site: Site, tmp_path: Path) -> None:
    with pytest.raises(ScaleGMNError, match=r"train_32x32\.mat: download failed.*404"):
        download("svhn", tmp_path, base_url=site.url, progress=False)
    with pytest.raises(ScaleGMNError, match="download failed"):
        download("svhn", tmp_path, base_url="http://127.0.0.1:9/", progress=False)
    assert left_over(tmp_path) == []


def archive(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def test_archive_unpacks_only_what_is_expected(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "root"
    wanted = {"batches/one.bin": b"1" * 5000, "batches/two.bin": b"2" * 5000}
    site.files = {"all.tar.gz": archive({**wanted, "../outside": b"x", "batches/readme.html": b"y"})}
    sums = {name: md5(data) for name, data in wanted.items()}
    origin = Origin("http://unused", ".", {"all.tar.gz": md5(site.files["all.tar.gz"])}, sums)
    paths = fetch(origin, root, base_url=site.url, progress=False)
    assert [path.read_bytes() for path in paths] == list(wanted.values())
    assert left_over(tmp_path) == ["root/batches/one.bin", "root/batches/two.bin"]
    before = len(site.requests)
    assert fetch(origin, root, base_url=site.url, progress=False) == paths
    assert len(site.requests) == before


def test_archive_with_other_members_is_refused(site: Site, tmp_path: Path) -> None:
    site.files = {"all.tar.gz": archive({"batches/one.bin": b"1"})}
    packed = {"all.tar.gz": md5(site.files["all.tar.gz"])}
    with pytest.raises(ScaleGMNError, match=r"wrong checksum of batches/one\.bin"):
        fetch(Origin("", ".", packed, {"batches/one.bin": "0" * 32}), tmp_path, base_url=site.url, progress=False)
    with pytest.raises(ScaleGMNError, match="not the expected archive"):
        fetch(Origin("", ".", packed, {"batches/two.bin": "0" * 32}), tmp_path, base_url=site.url, progress=False)
    assert not (tmp_path / "batches" / "one.bin").exists()


def test_digits_need_no_download_and_unknown_names_are_refused(tmp_path: Path) -> None:
    assert download("digits", tmp_path) == []
    with pytest.raises(ScaleGMNError, match="expected one of digits, mnist"):
        download("emnist", tmp_path)
