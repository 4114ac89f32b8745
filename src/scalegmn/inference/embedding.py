"""Embeddings of whole zoos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import ScaleGMNError
from ..training.data import fetch, listed
from ..zoo.store.zoo import Zoo
from .trained import Trained


def embed_zoo(
    trained: Trained, zoo: Zoo | str | Path, split: str | None = None, *, batch: int = 256
) -> dict[str, np.ndarray[Any, Any]]:
    """The embeddings of the networks of a zoo, with what its table says about them.

    Arguments:
        trained: The model.
        zoo: The zoo or its directory.
        split: Only this split, if given.
        batch: Networks at a time.

    Returns:
        `embeddings` (N, d), `index` (N,) and one array per column of the table.
    """
    zoo = zoo if isinstance(zoo, Zoo) else Zoo.open(zoo)
    for name in ("embeddings", "index"):
        if name in zoo.columns:
            raise ScaleGMNError(f"embed: {zoo.path} has a column {name!r}, which would replace the result's own")
    indices = torch.arange(len(zoo)) if split is None else zoo.split(split)
    rows, order = [], []
    for start in range(0, len(indices), batch):
        networks, numbers = fetch(zoo, indices[start : start + batch])
        rows.append(trained.embed(listed(networks)))
        order.append(numbers)
    index = torch.cat(order)
    arrays = {"embeddings": torch.cat(rows).numpy(), "index": index.numpy()}
    for name in zoo.columns:
        values, names = zoo.column(name)[index].numpy(), zoo.categories(name)
        arrays[name] = np.array(names)[values] if names else values
    return arrays
