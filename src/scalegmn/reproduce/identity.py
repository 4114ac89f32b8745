"""Recognising zoos: records outlive the zoos that they are about, and a zoo that is built again must be recognised.

A zoo that is built again is equal to the last bit, but older versions stored another checksum of its images in the
header. Records from that time refer to a zoo by the checksum of such a header.
"""

from collections.abc import Container
from pathlib import Path
from typing import Any

from ..files import read_object, read_toml
from ..zoo.store.stats import tau_cap
from ..zoo.store.writer import header_hash
from ..zoo.store.zoo import Zoo
from .zoos import CNNS, PARTS, Folders, zoo_path

# Checksums of images, by those that headers note now.
_FORMER = read_toml(Path(__file__).with_name("former.toml"))


def checksums(name: str, place: Folders) -> tuple[str, ...]:
    """The checksums by which records refer to a zoo: its own, and its former one; none if the zoo is not here.

    Arguments:
        name: Of the zoo.
        place: Where it may be.

    >>> checksums("mnist", Folders("small", Path("nowhere"), None))
    ()
    """
    path = zoo_path(name, place) / "zoo.json"
    if not path.is_file():
        return ()
    header = read_object(path)
    before = _as_before(name, header, place)
    return (header["sha256"],) if before == header else (header["sha256"], header_hash(before))


def _as_before(name: str, header: dict[str, Any], place: Folders) -> dict[str, Any]:
    arguments = dict(header["arguments"])
    if "images_sha256" in arguments:
        arguments["images_sha256"] = _FORMER.get(arguments["images_sha256"], arguments["images_sha256"])
    if "combined" in arguments:
        here = (checksums(part, place) for part in PARTS.get(name, ()))
        former = {known[0]: known[-1] for known in here if known}
        arguments["combined"] = [former.get(sha256, sha256) for sha256 in arguments["combined"]]
    return {**header, "arguments": arguments}


def caps(names: Container[str], place: Folders) -> dict[str, float]:
    """The largest tau that ties allow on the test networks, by the checksums of those zoos that are here.

    Arguments:
        names: Of zoos.
        place: Where they may be.
    """
    found: dict[str, float] = {}
    for name in CNNS:
        known = checksums(name, place) if name in names else ()
        if known:
            zoo = Zoo.open(zoo_path(name, place))
            found |= dict.fromkeys(known, tau_cap(zoo.column("test_accuracy")[zoo.split("test")].numpy()))
    return found
