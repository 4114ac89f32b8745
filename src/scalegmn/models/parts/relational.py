"""The relational transformer: attention between all nodes, modulated by edges that are updated too.

Diao and Loynd, Relational attention: generalizing transformers for graph-structured tasks, ICLR 2023, as varied by
Kofinas et al., Graph neural networks for learning equivariant representations of neural networks, ICLR 2024.
"""

import math

import torch
from torch import Tensor, nn

from ...errors import ScaleGMNError


def dense_map(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """A linear map with Xavier's initial weights and no initial bias, as in the original."""
    found = nn.Linear(inputs, outputs, bias)
    nn.init.xavier_uniform_(found.weight)
    if bias:
        nn.init.zeros_(found.bias)
    return found


def _mlp(inputs: int, hidden: int, dropout: float) -> nn.Sequential:
    first, last = dense_map(inputs, hidden, bias=False), dense_map(hidden, inputs)
    return nn.Sequential(first, nn.GELU(), last, nn.Dropout(dropout))


class RelationalAttention(nn.Module):
    r"""Attention whose queries, keys and values depend on the pair.

    \[q_{ij} = Q x_i + Q' e_{ij}, \quad k_{ij} = K x_j + K' e_{ij}, \quad
      v_{ij} = (V x_j) \odot (M e_{ij}) + V' e_{ij}, \quad
      y_i = O \sum_j \text{softmax}_j(\langle q_{ij}, k_{ij} \rangle / \sqrt{h}) v_{ij}\]

    Since V' is linear, it is applied after the sum over j, where there is one vector per node and head.

    Arguments:
        nodes, edges: Sizes of the states.
        hidden: Size h of queries, keys and values of all heads together.
        heads: Number of heads.

    >>> x, e = torch.randn(5, 11, 16), torch.randn(5, 11, 11, 8)
    >>> RelationalAttention(16, 8, hidden=32, heads=4)(x, x, e).shape
    torch.Size([5, 11, 16])
    """

    def __init__(self, nodes: int, edges: int, *, hidden: int, heads: int) -> None:
        super().__init__()
        if hidden % heads:
            raise ScaleGMNError(f"width: the attention needs a multiple of {heads} channels, got {hidden}")
        self.heads = heads
        self.scale = 1 / math.sqrt(hidden)
        self.query = dense_map(nodes, hidden, bias=False)
        self.key_value = dense_map(nodes, 2 * hidden, bias=False)
        self.edge = dense_map(edges, 4 * hidden, bias=False)
        self.out = dense_map(hidden, nodes)

    def forward(self, x: Tensor, queries: Tensor, e: Tensor) -> Tensor:
        """New node states (B, R, d) for the rows R.

        Arguments:
            x: All nodes (B, N, d).
            queries: The nodes of the rows (B, R, d).
            e: The edges of the rows (B, R, N, d_e).
        """
        heads = (self.heads, -1)
        q = self.query(queries).unsqueeze(2)
        k, v = self.key_value(x).unsqueeze(1).chunk(2, dim=-1)
        maps = self.edge.weight.chunk(4)
        products = (q + e @ maps[0].T) * (k + e @ maps[1].T)
        attention = (self.scale * products.unflatten(-1, heads).sum(-1)).softmax(dim=2).mT
        modulated = (v * (e @ maps[2].T)).unflatten(-1, heads).transpose(2, 3)
        y = (attention.unsqueeze(3) @ modulated).squeeze(3)
        pooled = attention @ e
        shift = torch.einsum("brhe,hce->brhc", pooled, maps[3].unflatten(0, heads))
        found: Tensor = self.out((y + shift).flatten(2))
        return found


class PairUpdate(nn.Module):
    r"""Two residual steps: an MLP of the edge, its reverse and its two nodes, then one of the edge alone.

    \[e_{ij}' = \text{LN}(e_{ij} + A_1 \text{GELU}(A e_{ij} + B e_{ji} + C x_i + D x_j)), \qquad
      e_{ij}'' = \text{LN}(e_{ij}' + \text{MLP}(e_{ij}'))\]

    Arguments:
        nodes, edges: Sizes of the states.
        hidden: Of the MLPs.
        dropout: On what is added.

    >>> x, e = torch.randn(5, 11, 16), torch.randn(5, 11, 11, 8)
    >>> PairUpdate(16, 8, hidden=32, dropout=0.0)(x, e, slice(None)).shape
    torch.Size([5, 11, 11, 8])
    """

    def __init__(self, nodes: int, edges: int, *, hidden: int, dropout: float) -> None:
        super().__init__()
        self.own = dense_map(edges, hidden)
        self.back = dense_map(edges, hidden, bias=False)
        self.row = dense_map(nodes, hidden, bias=False)
        self.column = dense_map(nodes, hidden, bias=False)
        self.after = nn.Sequential(nn.GELU(), dense_map(hidden, edges), nn.Dropout(dropout))
        self.first_norm = nn.LayerNorm(edges)
        self.mlp = _mlp(edges, hidden, dropout)
        self.second_norm = nn.LayerNorm(edges)

    def forward(self, x: Tensor, e: Tensor, rows: slice) -> Tensor:
        """New states (B, R, N, d_e) of the edges in some rows, from all nodes and edges (B, N, N, d_e)."""
        own, back = e[:, rows], e[:, :, rows].transpose(1, 2)
        hidden = self.own(own) + self.back(back) + self.row(x[:, rows]).unsqueeze(2) + self.column(x).unsqueeze(1)
        found = self.first_norm(own + self.after(hidden))
        updated: Tensor = self.second_norm(found + self.mlp(found))
        return updated


class RelationalLayer(nn.Module):
    """Attention and an MLP on nodes, each with a residual and LayerNorm; then the edges.

    Arguments:
        nodes: Size of the node states; edges have half of it, attention twice.
        heads: Number of heads.
        dropout: On what is added.
        edges_too: Whether edges are updated (not needed after a classifier's last layer).

    >>> x, e = torch.randn(5, 11, 16), torch.randn(5, 11, 11, 8)
    >>> layer = RelationalLayer(16, heads=4, dropout=0.0, edges_too=True)
    >>> [tuple(y.shape) for y in layer(x, e, slice(None), slice(None))]
    [(5, 11, 16), (5, 11, 11, 8)]
    """

    def __init__(self, nodes: int, *, heads: int, dropout: float, edges_too: bool) -> None:
        super().__init__()
        self.attention = RelationalAttention(nodes, nodes // 2, hidden=2 * nodes, heads=heads)
        self.dropout = nn.Dropout(dropout)
        self.first_norm = nn.LayerNorm(nodes)
        self.mlp = _mlp(nodes, 2 * nodes, dropout)
        self.second_norm = nn.LayerNorm(nodes)
        self.edges = PairUpdate(nodes, nodes // 2, hidden=nodes, dropout=dropout) if edges_too else None

    def forward(self, x: Tensor, e: Tensor, rows: slice, edge_rows: slice) -> tuple[Tensor, Tensor]:
        """New states of the wanted nodes and edges.

        Arguments:
            x: All nodes (B, N, d).
            e: The edges of the wanted rows (B, R, N, d_e); all rows if edges are updated.
            rows: The wanted nodes.
            edge_rows: The wanted rows of edges.
        """
        queries = x[:, rows]
        y = self.first_norm(queries + self.dropout(self.attention(x, queries, e)))
        y = self.second_norm(y + self.mlp(y))
        return y, e if self.edges is None else self.edges(y, e, edge_rows)
