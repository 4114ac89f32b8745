"""Networks as graphs of PyTorch Geometric (Fey and Lenssen, 2019)."""

import torch
from torch import Tensor

from ...core.architecture import Architecture, Connection
from ...core.views import Parameters
from ...errors import ScaleGMNError


def to_data(architecture: Architecture, parameters: Parameters) -> list[object]:
    """One `torch_geometric.data.Data` per network.

    Its entries, for n neurons and E edges with kernels of at most K weights: `x` (n, 1) the biases (zero if there is
    none), `edge_index` (2, E), `edge_attr` (E, K) the weights padded with zeros (a residual edge holds its factor),
    `layer` (n,) and `connection` (E,) the positions in the architecture.

    Arguments:
        architecture, parameters: Of the networks.
    """
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise ScaleGMNError("to_pyg: torch_geometric is not installed; pip install 'scalegmn[pyg]'") from error
    if not architecture.plain:
        raise ScaleGMNError(
            f"to_pyg: expected layers that are complete, residual or normalised, got {architecture}, which has "
            "concatenation, groups, products, attention or shared weights"
        )
    sizes = [layer.size for layer in architecture.layers]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    weights = [w for w in parameters.weights if w is not None]
    count = weights[0].shape[0]
    biases = [weights[0].new_zeros(count, n) if b is None else b for n, b in zip(sizes, parameters.biases, strict=True)]
    x = torch.cat(biases, dim=1).unsqueeze(2)
    width = max(c.kernel_size for c in architecture.connections)
    index, attributes, owner = [], [], []
    for i, c in enumerate(architecture.connections):
        index.append(_edges(architecture, c, starts))
        attributes.append(_attributes(architecture, c, parameters.weights[i], width, x))
        owner.append(torch.full((index[-1].shape[1],), i))
    edge_index, edge_attr = torch.cat(index, dim=1).to(x.device), torch.cat(attributes, dim=1)
    layer = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(x.device)
    connection = torch.cat(owner).to(x.device)
    return [
        Data(x=x[b], edge_index=edge_index, edge_attr=edge_attr[b], layer=layer, connection=connection)
        for b in range(count)
    ]


def _edges(architecture: Architecture, c: Connection, starts: list[int]) -> Tensor:
    """Pairs (source, target) in the order of the weights."""
    source = torch.arange(architecture.layers[c.source].size) + starts[c.source]
    target = torch.arange(architecture.layers[c.target].size) + starts[c.target]
    if not c.dense:
        return torch.stack((source, target))
    return torch.stack((source.repeat(len(target)), target.repeat_interleave(len(source))))


def _attributes(architecture: Architecture, c: Connection, weight: Tensor | None, width: int, like: Tensor) -> Tensor:
    """(B, edges, width)."""
    size = architecture.layers[c.target].size
    found = like.new_zeros(like.shape[0], size * (architecture.layers[c.source].size if c.dense else 1), width)
    if weight is None:
        found[..., 0] = c.gain
    else:
        found[..., : c.kernel_size] = weight.reshape(like.shape[0], -1, c.kernel_size)
    return found
