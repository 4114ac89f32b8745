"""inr2vec: rows of stacked weights, encoded one by one, max-pooled, and decoded to the function (De Luigi et al.)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...core.networks import Networks
from ...core.spec import Count, Steps
from ...errors import ScaleGMNError
from ..method import Method
from ..parts.dense import BatchNorm, PeerSpec, rectified, standardised
from ..trunk import Pooling, Trunk, chain


class RowEncoder(nn.Module):
    r"""\(P \mapsto \max_i \mathrm{MLP}(P_i)\): a map of every row, then the maximum over rows.

    Arguments:
        inputs: Length of the rows.
        width: Hidden channels.
        layers: Linear maps.
        embedding: Size of the result.

    >>> RowEncoder(8, 32, 3, 64)(torch.randn(5, 9, 8)).shape
    torch.Size([5, 64])
    """

    def __init__(self, inputs: int, width: int, layers: int, embedding: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for i in range(layers - 1):
            parts += [nn.Linear(width if i else inputs, width), BatchNorm(width), nn.ReLU()]
        self.rows = nn.Sequential(*parts, nn.Linear(width if layers > 1 else inputs, embedding))

    def forward(self, matrix: Tensor) -> Tensor:
        """Embeddings (B, embedding) of matrices (B, rows, inputs)."""
        codes: Tensor = self.rows(matrix)
        return codes.amax(1)


class FieldDecoder(nn.Module):
    """An implicit function controlled by an embedding: maps (embedding, coordinates) to the values of the network.

    Coordinates get sinusoids of doubling frequency; embedding and coordinates enter a second time halfway.

    Arguments:
        embedding: Size of the embedding.
        inputs: Numbers per coordinate.
        outputs: Numbers per value.
        width: Hidden neurons.
        frequencies: Octaves of the sinusoids.

    >>> FieldDecoder(16, 2, 1, width=32)(torch.randn(5, 16), torch.rand(5, 100, 2)).shape
    torch.Size([5, 100, 1])
    """

    def __init__(self, embedding: int, inputs: int, outputs: int, *, width: int, frequencies: int = 5) -> None:
        super().__init__()
        self.register_buffer("octaves", 2.0 ** torch.arange(frequencies), persistent=False)
        size = inputs * (1 + 2 * frequencies)
        # The first linear map of (embedding, coordinates), split so that neither is repeated for the other.
        self.from_embedding = nn.Linear(embedding, 2 * width)
        self.from_coordinates = nn.Linear(size, 2 * width, bias=False)
        self.before = rectified([width, width])
        self.after = nn.Sequential(rectified([width, width]), nn.Linear(width, outputs))

    def forward(self, embedding: Tensor, coordinates: Tensor) -> Tensor:
        """Values (B, N, outputs) at common coordinates (N, inputs)."""
        phase = (coordinates[..., None] * self.get_buffer("octaves")).flatten(-2)
        points = torch.cat((coordinates, phase.sin(), phase.cos()), dim=-1)
        joint = torch.relu(self.from_embedding(embedding)[:, None] + self.from_coordinates(points))
        first, second = joint.chunk(2, dim=-1)
        values: Tensor = self.after(self.before(first) + second)
        return values


def stacked_rows(networks: Networks) -> Tensor:
    """Weights and biases between hidden layers, stacked: (B, L (H + 1), H) for L maps between layers of H neurons.

    A weight matrix contributes its rows, a bias one row. The input and the output layer are left out.
    """
    parts = []
    for i, w in enumerate(networks.weights[1:-1], start=1):
        bias = networks.biases[i + 1]
        assert w is not None
        parts.append(w.flatten(2))
        if bias is not None:
            parts.append(bias[:, None])
    return torch.cat(parts, dim=1)


@dataclass(frozen=True, repr=False)
class Inr2VecSpec(PeerSpec):
    """The options of inr2vec.

    Arguments:
        layers: Linear maps of the encoder.
        embedding: Size of the code between encoder and decoder.
        pretraining: Steps of Adam for encoder and decoder; with 0, encoder and head are trained together.
        points: Random coordinates in [-1, 1] per step.

    >>> Inr2VecSpec(pretraining=0)
    Inr2VecSpec(pretraining=0)
    """

    embedding: Count = 256
    pretraining: Steps = 500
    points: Count = 64


class Inr2VecTrunk(Trunk):
    """A row-wise encoder, trained with a decoder to reproduce the networks' functions.

    `prepare` trains encoder and decoder on the training networks and then freezes the encoder, so that the usual
    training afterwards trains only the head. The order of the rows does not matter, but that of the neurons does,
    since it is also the order within the rows.
    De Luigi et al., Deep Learning on Implicit Neural Representations of Shapes, ICLR 2023.

    Reads MLPs of the same shapes whose two or more hidden layers have equally many neurons.

    >>> from scalegmn import Architecture
    >>> architecture = Architecture.mlp([2, 8, 8, 1], "sine")
    >>> networks = Networks(architecture, torch.randn(5, architecture.parameters))
    >>> Inr2Vec([architecture], 10)(networks).shape
    torch.Size([5, 10])
    """

    spec: Inr2VecSpec

    def build(self) -> None:
        spec = self.spec
        first = chain(self.architectures, self.method.name, convolutions=False)
        hidden = {layer.size for layer in first.layers[1:-1]}
        if len(hidden) != 1 or len(first.layers) < 4:
            raise ScaleGMNError(
                f"inr2vec: expected two or more hidden layers of equal size, got {first}; use mlp or probegen"
            )
        self.register_buffer("frozen", torch.tensor(False))
        self.encoder = RowEncoder(hidden.pop(), spec.width, spec.layers, spec.embedding)
        self.decoder = FieldDecoder(spec.embedding, first.layers[0].size, first.layers[-1].size, width=spec.width)

    def forward(self, networks: Networks) -> Tensor:
        """The codes (B, embedding) that the decoder reads."""
        frozen = bool(self.get_buffer("frozen"))
        if frozen:
            self.encoder.eval()  # its batch statistics stay fixed as well
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            code: Tensor = self.encoder(stacked_rows(networks))
        return code

    def pooling(self) -> Pooling:
        width = self.spec.width
        return Pooling(
            nn.Identity(), standardised([self.spec.embedding, width, width], dropout=self.spec.dropout), width
        )

    def reconstruction_loss(self, networks: Networks) -> Tensor:
        """Mean squared error of the decoded functions at random coordinates in [-1, 1]."""
        inputs = networks.architecture.layers[0].size
        coordinates = 2 * torch.rand(self.spec.points, inputs, dtype=networks.dtype, device=networks.device) - 1
        with torch.no_grad():
            values = networks.evaluate(coordinates)
        found: Tensor = self.decoder(self(networks), coordinates)
        return (found - values).square().mean()

    def measure(self, training: Sequence[Networks]) -> None:
        """Train encoder and decoder to reproduce these networks, then freeze the encoder."""
        if not self.spec.pretraining:
            return
        parameters = [*self.encoder.parameters(), *self.decoder.parameters()]
        like = parameters[0]
        optimiser = torch.optim.AdamW(parameters, 1e-3, weight_decay=1e-2)
        self.train()
        for step in range(self.spec.pretraining):
            pool = training[step % len(training)]
            drawn = torch.randint(len(pool), (min(64, len(pool)),))
            loss = self.reconstruction_loss(pool[drawn].to(like.device, like.dtype))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        self.encoder.requires_grad_(False)
        self.decoder.requires_grad_(False)
        self.get_buffer("frozen").fill_(True)


Inr2Vec = Method(
    "inr2vec", "inr2vec", "De Luigi et al., ICLR 2023", (), Inr2VecTrunk, Inr2VecSpec(128, 4),
    convolutions=False, several=False,
)  # fmt: skip
"""inr2vec (`inr2vec`); options as in `Inr2VecSpec`."""
