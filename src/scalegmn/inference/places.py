"""Where models are: runs, and those that come with the package."""

from pathlib import Path

from ..errors import ScaleGMNError, nearest

PRETRAINED = Path(__file__).parents[1] / "pretrained"
CONFIG, WEIGHTS, FAMILIAR, CARD = "config.json", "model.safetensors", "familiar.safetensors", "README.md"


def pretrained() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(path.parent.name for path in PRETRAINED.glob(f"*/{CONFIG}"))


def find_model(given: str | Path) -> Path:
    """The directory of a model: a run, or the model of that name that comes with the package.

    A directory of that name is used if it holds a model; any other directory, such as a folder of images called
    `mnist`, is ignored.

    Arguments:
        given: A path, or a name of `scalegmn models --pretrained`.
    """
    own = Path(given)
    if (own / CONFIG).is_file():
        return own
    if own.exists() and str(given) not in pretrained():
        raise ScaleGMNError(f"run: {own} holds no {CONFIG}; expected a directory that `scalegmn train` made")
    return find_pretrained(str(given))


def find_pretrained(name: str) -> Path:
    """The directory of a model that comes with the package.

    >>> find_pretrained("mnits")
    Traceback (most recent call last):
    ...
    scalegmn.errors.ScaleGMNError: run: 'mnits' is neither a run nor a shipped model; did you mean 'mnist'?
    """
    if name not in pretrained():
        hint = nearest(name, pretrained())
        raise ScaleGMNError(f"run: {name!r} is neither a run nor a shipped model; {hint}")
    return PRETRAINED / name
