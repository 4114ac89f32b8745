"""Metanetworks: ScaleGMN and its peers, under one interface."""

# Importing a model makes it known to the registry.
from . import dws as dws
from . import gmn as gmn
from . import inr2vec as inr2vec
from . import mlp as mlp
from . import monomial as monomial
from . import nfn as nfn
from . import nft as nft
from . import ng_gnn as ng_gnn
from . import ng_t as ng_t
from . import probegen as probegen
from . import scalegmn as scalegmn
from . import statnn as statnn
