"""Every method by name."""

from ..errors import known
from .method import Method
from .peers.dws import DWS
from .peers.flat import FlatMLP
from .peers.inr2vec import Inr2Vec
from .peers.monomial import MonomialNFN
from .peers.nfn import NFNHNP, NFNNP
from .peers.nft import NFT
from .peers.ng_gnn import NGGNN
from .peers.ng_t import NGT
from .peers.probegen import ProbeGen
from .peers.statnn import StatNN
from .scalegmn import GMN, ScaleGMN, ScaleGMNB

METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        DWS, GMN, Inr2Vec, FlatMLP, MonomialNFN, NFNNP, NFNHNP, NFT, NGGNN, NGT, ProbeGen, ScaleGMN, ScaleGMNB, StatNN,
    )
}  # fmt: skip


def register(method: Method) -> Method:
    """Make another method available by name, in recipes and for `scalegmn check`."""
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
    return known("model", name, METHODS)
