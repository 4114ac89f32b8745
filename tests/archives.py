"""Archives in every form, whole and hostile, and state dicts as public collections have them."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scalegmn.errors import ScaleGMNError

Files = dict[str, bytes]
Form = Callable[[Files, Path], Path]


def saved(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def on_cuda(data: bytes) -> bytes:
    """A saved state dict as a machine with a GPU would have saved it."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(result, "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename.endswith("data.pkl"):
                content = content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            target.writestr(entry.filename, content)
    return result.getvalue()


def as_folder(files: Files, path: Path) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def as_zip(files: Files, path: Path) -> Path:
    path = path.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def as_tar(files: Files, path: Path, mode: str = "w:gz") -> Path:
    path = path.with_suffix(".tar.gz" if mode == "w:gz" else ".tar")
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def as_plain_tar(files: Files, path: Path) -> Path:
    return as_tar(files, path, "w")


FORMS = [as_folder, as_zip, as_tar, as_plain_tar]


class Evil:
    """Unpickling it would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def refused(tmp_path: Path, convert: Callable[[Path], object], complaint: str) -> None:
    """Assert that a conversion to `tmp_path / "out"` is refused in one line and leaves nothing behind."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ScaleGMNError, match=complaint) as caught:
        convert(tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
