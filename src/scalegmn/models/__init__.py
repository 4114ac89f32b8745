"""Metanetworks: ScaleGMN and its peers, under one interface."""

# Importing a model makes it known to the registry.
from . import mlp as mlp
from . import statnn as statnn
