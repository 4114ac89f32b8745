"""inr2vec: rows of stacked weights, encoded one by one, max-pooled, and decoded to the function (De Luigi et al.)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.networks import Networks
from ..errors import ScaleGMNError
from .base import InvariantModel
from .mlp import perceptron
from .registry import ModelCard, register
from .weight_space import BatchNorm, chain


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
    """An implicit function that an embedding steers: (embedding, coordinates) to the values of the network.

    Coordinates come with sinusoids of doubling frequency; embedding and coordinates enter a second time half way.

    Arguments:
        embedding: Size of the embedding.
        inputs: Numbers per coordinate.
        outputs: Numbers per value.
        width: Hidden neurons.
        frequencies: Octaves of the sinusoids.
    """

    def __init__(self, embedding: int, inputs: int, outputs: int, *, width: int, frequencies: int = 5) -> None:
        super().__init__()
        self.register_buffer("octaves", 2.0 ** torch.arange(frequencies), persistent=False)
        size = inputs * (1 + 2 * frequencies)
        # The first linear map of (embedding, coordinates), split so that neither is repeated for the other.
        self.from_embedding = nn.Linear(embedding, 2 * width)
        self.from_coordinates = nn.Linear(size, 2 * width, bias=False)
        self.before = perceptron([width, width])
        self.after = perceptron([width, width, outputs])

    def forward(self, embedding: Tensor, coordinates: Tensor) -> Tensor:
        """Values (B, N, outputs) at common coordinates (N, inputs)."""
        phase = (coordinates[..., None] * self.get_buffer("octaves")).flatten(-2)
        points = torch.cat((coordinates, phase.sin(), phase.cos()), dim=-1)
        joint = torch.relu(self.from_embedding(embedding)[:, None] + self.from_coordinates(points))
        first, second = joint.chunk(2, dim=-1)
        values: Tensor = self.after(torch.relu(self.before(first)) + second)
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


class Inr2Vec(InvariantModel):
    """A row-wise encoder, trained with a decoder to reproduce the networks' functions, then a classifier.

    `prepare` trains encoder and decoder on the training networks and then freezes the encoder, so that the usual
    training that follows is that of the classifier; with `pretraining=0` encoder and classifier are trained together.
    The order of the rows does not matter, but that of the neurons does, since it is also the order within the rows.
    De Luigi et al., Deep Learning on Implicit Neural Representations of Shapes, ICLR 2023.

    Arguments:
        architectures: MLPs of the same shapes whose two or more hidden layers have equally many neurons.
        outputs: Numbers per network.
        width: Hidden channels of encoder, decoder and classifier.
        layers: Linear maps of the encoder.
        embedding: Size of the embedding.
        dropout: In the classifier.
        pretraining: Steps of Adam for encoder and decoder.
        points: Random coordinates in [-1, 1] per step.

    >>> architecture = Architecture.mlp([2, 8, 8, 1], "sine")
    >>> networks = Networks(architecture, torch.randn(5, architecture.parameters))
    >>> model = Inr2Vec([architecture], 10)
    >>> model(networks).shape, model.reconstruction_loss(networks).shape
    (torch.Size([5, 10]), torch.Size([]))
    """

    def __init__(
        self,
        architectures: Sequence[Architecture],
        outputs: int,
        *,
        width: int = 128,
        layers: int = 4,
        embedding: int = 256,
        dropout: float = 0.0,
        pretraining: int = 500,
        points: int = 64,
    ) -> None:
        super().__init__(architectures)
        first = chain(self.architectures, "inr2vec", convolutions=False)
        hidden = {layer.size for layer in first.layers[1:-1]}
        if len(hidden) != 1 or len(first.layers) < 4:
            raise ScaleGMNError(
                f"inr2vec: expected two or more hidden layers of equal size, got {first}; use mlp or probegen"
            )
        self.pretraining, self.points = pretraining, points
        self.register_buffer("frozen", torch.tensor(False))
        self.encoder = RowEncoder(hidden.pop(), width, layers, embedding)
        self.decoder = FieldDecoder(embedding, first.layers[0].size, first.layers[-1].size, width=width)
        self.trunk = nn.Sequential(BatchNorm(embedding), perceptron([embedding, width, width], dropout=dropout))
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(width, outputs))

    def encode(self, networks: Networks) -> Tensor:
        """The embedding (B, embedding) that the decoder reads."""
        frozen = bool(self.get_buffer("frozen"))
        if frozen:
            self.encoder.eval()  # its batch statistics rest as well
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            code: Tensor = self.encoder(stacked_rows(networks))
        return code

    def reconstruction_loss(self, networks: Networks) -> Tensor:
        """Mean squared error of the decoded functions at random coordinates in [-1, 1]."""
        inputs = networks.architecture.layers[0].size
        coordinates = 2 * torch.rand(self.points, inputs, dtype=networks.dtype, device=networks.device) - 1
        with torch.no_grad():
            values = networks.evaluate(coordinates)
        found: Tensor = self.decoder(self.encode(networks), coordinates)
        return (found - values).square().mean()

    def prepare(self, training: Sequence[Networks]) -> None:
        """Train encoder and decoder to reproduce these networks, then freeze the encoder."""
        if not self.pretraining:
            return
        batches = list(training)
        parameters = [*self.encoder.parameters(), *self.decoder.parameters()]
        like = parameters[0]
        optimiser = torch.optim.AdamW(parameters, 1e-3, weight_decay=1e-2)
        self.train()
        for step in range(self.pretraining):
            pool = batches[step % len(batches)]
            drawn = torch.randint(len(pool), (min(64, len(pool)),))
            loss = self.reconstruction_loss(pool[drawn].to(like.device, like.dtype))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        self.encoder.requires_grad_(False)
        self.decoder.requires_grad_(False)
        self.get_buffer("frozen").fill_(True)

    def embed_one(self, networks: Networks) -> Tensor:
        """Codes (B, embedding)."""
        return self.encode(networks)

    def finish(self, found: Tensor) -> Tensor:
        """Hidden state (B, width) of the classifier, before its last map."""
        hidden: Tensor = self.trunk(found)
        return hidden

    def read(self, embedding: Tensor) -> Tensor:
        """Outputs (B, outputs)."""
        result: Tensor = self.head(embedding)
        return result


register(
    ModelCard(
        name="inr2vec",
        title="inr2vec",
        paper="De Luigi et al., ICLR 2023",
        year=2023,
        symmetries=(),
        invariant=Inr2Vec,
        equivariant=None,
        convolutions=False,
        several=False,
    )
)
