"""What a zoo knows about networks, to be stored with their embeddings."""

from typing import Any

import numpy as np

from ..errors import ScaleGMNError
from ..zoo.store.zoo import Zoo
from .sources import Reading


def table_of(found: Reading) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """The rows of a zoo's table for its networks, and their `index`; nothing unless a single zoo was read.

    The names of files are `Reading.names`.

    Arguments:
        found: The result of `Trained.read`.
    """
    zoo = found.pieces[0].networks
    if len(found.pieces) > 1 or not isinstance(zoo, Zoo):
        return {}
    taken = [name for name in ("embeddings", "names", "index") if name in zoo.columns]
    if taken:
        raise ScaleGMNError(f"embed: {zoo.path} has a column {taken[0]!r}, which would replace the result's own")
    index = found.pieces[0].rows
    arrays = {"index": np.asarray(index)}
    for name in (name for name in zoo.columns if name != "file"):
        values, names = zoo.column(name)[index].numpy(), zoo.categories(name)
        arrays[name] = np.array(names)[values] if names else values
    return arrays
