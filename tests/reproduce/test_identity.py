"""Zoos that are built again are known to older records, and other zoos are not."""

from __future__ import annotations

from pathlib import Path

from scalegmn.files import read_object, write_json
from scalegmn.reproduce import identity
from scalegmn.reproduce.identity import caps, checksums
from scalegmn.reproduce.zoos import Folders
from scalegmn.zoo.store.stats import tau_cap
from scalegmn.zoo.store.writer import header_hash
from scalegmn.zoo.store.zoo import Zoo

NOW, THEN = next(iter(identity._FORMER.items()))


def header(path: Path, arguments: dict[str, object]) -> str:
    """Write the header of a zoo that holds nothing else; its checksum."""
    path.mkdir(parents=True)
    found = {"kind": "cnn", "arguments": arguments, "shards": [{"sha256": "1"}]}
    sha256 = header_hash(found)
    write_json(path / "zoo.json", {**found, "sha256": sha256})
    return sha256


def test_a_zoo_is_known_under_its_former_checksum_too(tmp_path: Path) -> None:
    old, new = Folders("small", tmp_path / "old", None), Folders("small", tmp_path / "new", None)
    before, now = (header(p.zoos / "mnist", {"images_sha256": s, "seed": 0}) for p, s in ((old, THEN), (new, NOW)))
    assert before != now
    assert checksums("mnist", new) == (now, before)
    assert checksums("mnist", old) == (before,)
    # Another argument is another zoo, whatever the images are called.
    other = Folders("small", tmp_path / "other", None)
    header(other.zoos / "mnist", {"images_sha256": NOW, "seed": 1})
    assert not set(checksums("mnist", other)) & {now, before}
    assert checksums("fashion-mnist", new) == ()


def test_what_is_made_of_such_zoos_is_known_as_well(tmp_path: Path) -> None:
    known = {}
    for kind, images in (("old", THEN), ("new", NOW)):
        parts = [header(tmp_path / kind / f"svhn-gs-{a}", {"images_sha256": images, "a": a}) for a in ("relu", "tanh")]
        known[kind] = header(tmp_path / kind / "svhn-gs-both", {"combined": parts, "where": {}})
    assert checksums("svhn-gs-both", Folders("small", tmp_path / "new", None)) == (known["new"], known["old"])
    # Without its parts nobody can tell what it was called.
    (tmp_path / "new" / "svhn-gs-relu" / "zoo.json").unlink()
    assert known["old"] not in checksums("svhn-gs-both", Folders("small", tmp_path / "new", None))


def test_caps_are_found_under_every_checksum(tmp_path: Path) -> None:
    from tiny_cnns import stripes

    from scalegmn.zoo.cnn.build import build_cnn_zoo
    from scalegmn.zoo.cnn.recipe import Budget

    place = Folders("small", tmp_path, None)
    path = tmp_path / "cifar10-gs-relu"
    build_cnn_zoo(stripes(), path, count=10, budget=Budget(batch=32, epochs=1), threads=1)
    saved = read_object(path / "zoo.json")
    saved["arguments"]["images_sha256"] = NOW
    write_json(path / "zoo.json", {**saved, "sha256": header_hash(saved)})
    zoo = Zoo.open(path)
    expected = tau_cap(zoo.column("test_accuracy")[zoo.split("test")].numpy())
    found = caps(("cifar10-gs-relu", "cifar10-gs-tanh", "mnist"), place)
    assert found == dict.fromkeys(checksums("cifar10-gs-relu", place), expected)
    assert len(found) == 2
