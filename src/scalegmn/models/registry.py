"""Every method by name."""

from __future__ import annotations

from ..errors import ScaleGMNError, nearest
from .dws import DWS
from .flat import FlatMLP
from .inr2vec import Inr2Vec
from .method import Method
from .monomial import MonomialNFN
from .nfn import NFNHNP, NFNNP
from .nft import NFT
from .ng_gnn import NGGNN
from .ng_t import NGT
from .probegen import ProbeGen
from .scalegmn import GMN, ScaleGMN, ScaleGMNB
from .statnn import StatNN

METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        DWS, GMN, Inr2Vec, FlatMLP, MonomialNFN, NFNNP, NFNHNP, NFT, NGGNN, NGT, ProbeGen, ScaleGMN, ScaleGMNB, StatNN,
    )
}  # fmt: skip


def register(method: Method) -> Method:
    """Make another method known by its name, to recipes and to the audit."""
    METHODS[method.name] = method
    return method


def method(name: str) -> Method:
    """The method of a name.

    >>> method("scalegmn-b").title
    'ScaleGMN-B'
    >>> method("scalegnm")
    Traceback (most recent call last):
    ...
    scalegmn.errors.ScaleGMNError: model: 'scalegnm' is not known; did you mean 'scalegmn'?
    """
    if name not in METHODS:
        raise ScaleGMNError(f"model: {name!r} is not known; {nearest(name, METHODS)}")
    return METHODS[name]
