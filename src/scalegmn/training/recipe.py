"""Recipes: TOML files that name a zoo, a task, a model and what differs from the defaults."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ..core.canonical import Canonical
from ..errors import ScaleGMNError, nearest
from ..files import parse_toml, read_toml, real_path
from ..models.registry import method
from ..tasks import task_class
from ..tasks.build import split_options
from .options import complain, validated

RECIPES = Path(__file__).parents[1] / "recipes"
_FOLDERS = [RECIPES]


# What a person may mean, and no more: a thousand million of anything is a slip of the hand.
_Count = Annotated[int, Field(gt=0, le=10**9)]
_Number = Annotated[int, Field(ge=0, le=10**9)]


class RecipeTable(BaseModel):
    """A table of a recipe: no unknown keys, no infinities."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Choice(BaseModel):
    """A name with options, which a constructor checks; in TOML a table, or only the name."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="before")
    @classmethod
    def _only_a_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """Everything except the name."""
        return dict(self.__pydantic_extra__ or {})


class Training(RecipeTable):
    """How to train.

    Arguments:
        epochs: Passes over the training networks.
        steps: Number of steps instead, if given.
        minutes: Stop after this time, if given, even if epochs are left.
        clock: Whether time is measured by the clock (`wall`) or by the processor (`cpu`, summed over threads).
        batch: Networks per step, over all processes.
        lr, weight_decay: Of AdamW (Loshchilov & Hutter, 2019).
        warmup: Steps over which the learning rate rises linearly.
        schedule: What it does afterwards, until the last step (or the last minute).
        clip: Largest norm of the gradient; 0 turns clipping off.
        patience: Stop after this many validations without improvement, if given.
        validate_every: Steps between validations; one epoch if omitted.
        checkpoint_every: Steps between checkpoints, besides one at every validation.
        precision: `mixed` computes in 16 bits if the device can.
        compile: Whether to compile the model, which takes a minute or more at the start.
        augment: `scale` applies a random scaling symmetry to every training network.
        augment_rate: Of the exponential distribution of positive scales.
        noise: Standard deviation of noise on training parameters, relative to that of each tensor.
        move: Size of random affine maps of the inputs, for INRs: 0.1 turns, shifts and stretches
            the picture of a training network by up to a tenth.
        mirror: A coordinate of the inputs, 0 or 1 for pictures, along which half of the training networks are mirrored,
            if given.
        networks: Train on this many of the training networks, if given: the first in a fixed random order, so that a
            smaller set is part of every larger one.
        prepare: How many training networks the model sees before training, to measure sizes or to pretrain; 0 means
            all.
        device: Where to train; `auto` takes a GPU if there is one.
        tensorboard: Whether to write TensorBoard files as well.
    """

    epochs: _Count = 100
    steps: _Count | None = None
    minutes: PositiveFloat | None = None
    clock: Literal["wall", "cpu"] = "wall"
    batch: _Count = 64
    lr: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 0.01
    warmup: _Number = 0
    schedule: Literal["constant", "cosine"] = "constant"
    clip: NonNegativeFloat = 10.0
    patience: _Count | None = None
    validate_every: _Count | None = None
    checkpoint_every: _Count | None = None
    precision: Literal["float32", "mixed"] = "float32"
    compile: bool = False
    augment: Literal["none", "scale"] = "none"
    augment_rate: PositiveFloat = 1.0
    noise: NonNegativeFloat = 0.0
    move: NonNegativeFloat = 0.0
    mirror: NonNegativeInt | None = None
    networks: _Count | None = None
    prepare: _Number = 4096
    device: str = "auto"
    tensorboard: bool = False


class Recipe(RecipeTable):
    """One experiment.

    Arguments:
        zoo: Directory of the zoo.
        task: What to learn, as in `scalegmn.tasks`.
        model: The model, as in `scalegmn models`.
        training: How to train it.
        canonical: A canonical form in which the model sees its networks; `phase` removes the periodicity of sines.
        seed: Decides everything random.
    """

    zoo: str
    task: Choice
    model: Choice
    training: Training = Training()
    canonical: Canonical = "none"
    seed: NonNegativeInt = 0

    @field_validator("task")
    @classmethod
    def _task(cls, task: Choice) -> Choice:
        kind = task_class(task.name)
        return Choice(name=task.name, **validated(f"task {task.name!r}", kind.from_zoo, task.options))

    @field_validator("model")
    @classmethod
    def _model(cls, model: Choice, info: ValidationInfo) -> Choice:
        known = method(model.name)
        if "task" not in info.data:
            return model
        trunk, head = split_options(known, task_class(info.data["task"].name), model.options)
        return Choice(name=model.name, **trunk, **head)

    @model_validator(mode="after")
    def _move(self) -> Recipe:
        still = not self.training.move and self.training.mirror is None
        if not still and task_class(self.task.name).head == "equivariant":
            name = "move: expected 0" if self.training.move else "mirror: expected nothing"
            raise ScaleGMNError(f"training.{name} for task {self.task.name!r}, whose targets would not move")
        return self

    def to_dict(self) -> dict[str, Any]:
        """The recipe with all defaults filled in, as plain values; None is left out."""
        found: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return found

    def to_toml(self) -> str:
        """The recipe with all defaults as TOML text, which `read_recipe` reads."""
        return to_toml(self.to_dict())


def make_recipe(values: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """Check a recipe given as nested dictionaries.

    >>> make_recipe({"zoo": "z", "task": "classification", "model": "mlp", "trainin": {}})
    Traceback (most recent call last):
    ...
    scalegmn.errors.ScaleGMNError: recipe: unknown key 'trainin'; did you mean 'training'?
    """
    try:
        return Recipe.model_validate(dict(values))
    except ValidationError as error:
        raise complain(error, where, _known) from None


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe file.

    Arguments:
        path: A TOML file, or the name of a shipped recipe such as `digits/scalegmn`.
        overrides: Changes as `dotted.key=value`, like those of `--set`.
    """
    return make_recipe(override(read_values(path), overrides), str(path))


def read_values(path: str | Path) -> dict[str, Any]:
    """Read a recipe file, or a shipped recipe, together with those that it builds on; the content is not checked.

    A recipe with `base = "NAME"` starts from that recipe and lists only what differs.

    >>> read_values("small/inr/statnn")["model"], read_values("small/inr/statnn")["training"]["minutes"]
    ({'name': 'statnn'}, 2)
    """
    values: dict[str, Any] = {}
    seen: list[Path] = []
    file = find_file(path)
    while True:
        if file in seen:
            raise ScaleGMNError(f"{path}: base: {file} builds on itself; expected a chain of recipes that ends")
        seen.append(file)
        above = _read_file(file, path if len(seen) == 1 else file)
        base = above.pop("base", None)
        values = _merged(above, values)
        if base is None:
            return values
        if not isinstance(base, str):
            raise ScaleGMNError(f"{file}: base: expected the name of a recipe, got {base!r}")
        beside = file.parent / base
        file = beside if beside.is_file() else find_file(base)


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables merged; a value of `changes` replaces one of `values`."""
    found = dict(values)
    for key, value in changes.items():
        old = found.get(key)
        found[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return found


def _read_file(file: Path, path: str | Path) -> dict[str, Any]:
    if not file.exists():
        beside = [name for name in shipped() if Path(name).parent == Path(path).parent]
        advice = nearest(str(path), beside) if beside else "expected a TOML file, or a name such as digits/scalegmn"
        raise ScaleGMNError(f"{path}: neither a file nor a shipped recipe; {advice}")
    return read_toml(file)


def shipped() -> list[str]:
    """The names of the recipes and grids that come with the package, and of those that were added by `add_recipes`.

    Files whose name starts with `common` serve only as a base for others.

    >>> [name for name in shipped() if name.startswith("digits/scalegmn")]
    ['digits/scalegmn', 'digits/scalegmn-b', 'digits/scalegmn-no-probes']
    """
    found = ((folder, path) for folder in _FOLDERS for path in folder.rglob("*.toml"))
    names = {path.relative_to(folder).with_suffix("").as_posix(): path for folder, path in found}
    return sorted(name for name, path in names.items() if not path.stem.startswith("common"))


def add_recipes(folder: str | Path) -> None:
    """Make your own recipes available by name: `small/inr/mine` is the file `FOLDER/small/inr/mine.toml`.

    Arguments:
        folder: Where they are; they take precedence over shipped recipes of the same name.
    """
    place = real_path(folder)
    if not place.is_dir():
        raise ScaleGMNError(f"recipes: expected a folder, got {folder}")
    if place not in _FOLDERS:
        _FOLDERS.insert(0, place)


def find_file(given: str | Path) -> Path:
    """A file or, if there is none, the recipe or grid of that name.

    >>> find_file("digits/dws").name, find_file("mine.toml").name
    ('dws.toml', 'mine.toml')
    """
    own = Path(given)
    named = ((folder, folder / f"{given}.toml") for folder in _FOLDERS)
    found = (path for folder, path in named if folder in path.parents and path.is_file())
    return own if own.exists() else next(found, own)


def override(values: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Nested dictionaries with some entries replaced.

    Arguments:
        values: The dictionaries, which are not changed.
        changes: `dotted.key=value`; the value is TOML if it can be parsed, otherwise a string.

    >>> override({"task": "classification", "training": {"lr": 0.1}}, ["training.lr=1e-3", "task.column=digit"])
    {'task': {'name': 'classification', 'column': 'digit'}, 'training': {'lr': 0.001}}
    """
    result: dict[str, Any] = json.loads(json.dumps(values))
    for change in changes:
        key, equals, text = change.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise ScaleGMNError(f"--set: expected key=value such as training.lr=1e-4, got {change!r}")
        table = result
        for part in parts[:-1]:
            inner = table.setdefault(part, {})
            if isinstance(inner, str) and part in ("task", "model"):
                inner = table[part] = {"name": inner}
            if not isinstance(inner, dict):
                raise ScaleGMNError(f"--set: {key.strip()!r} is not a key: {part!r} is a value; {nearest(part, table)}")
            table = inner
        name, value = parts[-1], parse_value(text.strip())
        # `model=NAME` replaces the table: the options of one model mean nothing to another.
        table[name] = {"name": value} if isinstance(table.get(name), dict) and isinstance(value, str) else value
    return result


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested dictionaries by dotted key.

    >>> flat({"seed": 0, "training": {"lr": 0.1}})
    {'seed': 0, 'training.lr': 0.1}
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def parse_value(text: str) -> Any:
    """A TOML value, or the text itself if it is not TOML.

    >>> parse_value("1e-3"), parse_value("output")
    (0.001, 'output')
    """
    # A word that means something to people who come from Python.
    text = text.lower() if text in ("True", "False") else text
    try:
        return parse_toml(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _known(place: tuple[str, ...]) -> Iterable[str]:
    tables: dict[tuple[str, ...], type[BaseModel]] = {(): Recipe, ("training",): Training}
    return tables[place].model_fields if place in tables else ()


def to_toml(values: Mapping[str, Any]) -> str:
    """TOML text of a dictionary whose values are scalars, lists, or dictionaries of those.

    >>> print(to_toml({"zoo": "z", "training": {"lr": 0.001, "compile": False}}), end="")
    zoo = "z"
    <BLANKLINE>
    [training]
    lr = 0.001
    compile = false
    """
    lines = [f"{k} = {_value(v)}" for k, v in values.items() if not isinstance(v, Mapping)]
    for name, table in values.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *(f"{k} = {_value(v)}" for k, v in table.items() if v is not None)]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    # The only control character that JSON leaves as it is; TOML wants it escaped as well.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
