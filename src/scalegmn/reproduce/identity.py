"""Recognising zoos: records outlive the zoos that they are about, and a zoo that is built again must be recognised.

A zoo that is built again is equal to the last bit, but older versions stored another checksum of its images in the
header. Records from that time refer to a zoo by the checksum of such a header.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from ..files import read_object
from ..zoo.store.stats import tau_cap
from ..zoo.store.writer import header_hash
from ..zoo.store.zoo import Zoo
from .zoos import CNNS, PARTS, Folders, zoo_path

# Checksums of images, by those that headers note now: MNIST, Fashion-MNIST, CIFAR-10, grey CIFAR-10, the SVHN stand-in.
_FORMER = {
    "502d2721c0a6532c4405354e589495b201424cc4e9ad8a2566b2cdc96f9db720": (
        "b3fe36794a3a345d09632e9d79f122d61ca91a07e5a22f8536973655bacf2a78"
    ),
    "ea59dcd749dd6620b45a7718584b2fb2e3dd940bcb480b1887199dd9ed1ca047": (
        "75979490032625d6583ff7101de6f9243d07d0a8d33d3c9b3b7e79b4c59382af"
    ),
    "1881ff78fadfd89db369cb0597313db703515586c7e39282a9427b92a3122f66": (
        "679a0a54bc26fa5425a8717c376404f30e2982dcca8ebd67a5e0ea32155044bf"
    ),
    "481dd180b442e5587d8bf582a51418bc00b813834f8b725ae39a1723373b5b59": (
        "ca62ad4d1acd49da29fb706a389287a4f85601fc4738f091c860e1c74bad757f"
    ),
    "e44c8d145a3c1fe83080f981dfeae5ce7c0cf98fd395499604647e4b0ef40127": (
        "800ab0b1da441fd3dd1258a90a9dfbec0a35d35f84f875165178a016d4412ca7"
    ),
}


def checksums(name: str, place: Folders) -> tuple[str, ...]:
    """The checksums by which records refer to a zoo: its own, and its former one; none if the zoo is not here.

    Arguments:
        name: Of the zoo.
        place: Where it may be.

    >>> from pathlib import Path
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
