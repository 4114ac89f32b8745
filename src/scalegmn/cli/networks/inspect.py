"""`scalegmn inspect`: the architecture and the symmetries of networks in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import ScaleGMNError
from ..application import app, examples
from ..console import print_json, stdout, table
from ..sources import Prefix, hidden_activation, load_module
from .options import Activation, Frequency, Json

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from ...core.architecture import Architecture, Connection
    from ...core.networks import Networks

_FINDINGS = {"no_input": "no input", "no_output": "no output", "dead": "dead", "out_of_phase": "out of phase"}
_SHOWN_FILES = 20


@app.command(
    epilog=examples(
        "scalegmn inspect siren.pth --activation sine --w0 30",
        "scalegmn inspect a.pt b.pt --arch mymodels:make_resnet --json",
    )
)
def inspect(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Checkpoints (torch, safetensors, Keras, ONNX); without any, the module of --arch."),
    ] = None,
    arch: Annotated[
        str | None, typer.Option(help="module:function or path/file.py:function that returns the nn.Module.")
    ] = None,
    activation: Activation = None,
    w0: Frequency = None,
    prefix: Prefix = "",
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the graph, blocks coloured by permutation slot (.png, .svg, .pdf).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show architecture, parameters, symmetries and idle neurons of networks of one architecture.

    A neuron has no input if its incoming weights and its bias are zero, and no output if its outgoing weights are.
    It is dead if it is a relu whose incoming weights are zero and whose bias is not positive. A sine neuron is out of
    phase if the phase of its bias is not in (-pi/2, pi/2].
    """
    from ...core.networks import Networks

    like = None if arch is None else load_module(arch)
    if not files and like is None:
        raise ScaleGMNError("inspect: expected files, or a module given by --arch")
    if not files and like is not None:
        networks, names = Networks.from_modules([like]), [str(arch)]
    else:
        names = [str(f) for f in files or []]
        networks = Networks.from_files(names, like=like, activation=hidden_activation(activation, w0), prefix=prefix)
    if plot is not None:
        _draw(networks, plot)
    answer = describe(networks, names)
    if as_json:
        print_json(answer)
    else:
        _show(answer)


def _draw(networks: Networks, path: Path) -> None:
    from ...convert.draw import draw

    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ScaleGMNError(f"--plot: expected a name that ends in .png, .svg or .pdf, got {path}")
    try:
        draw(networks.architecture, path)
    except OSError as error:
        raise ScaleGMNError(f"--plot: {path} cannot be written ({error.strerror})") from error


def describe(networks: Networks, names: Sequence[str]) -> dict[str, Any]:
    """Everything that the command prints, as plain values.

    Arguments:
        networks: Of any architecture.
        names: One for each network.
    """
    from ...convert.draw import describe_block

    a = networks.architecture
    found = _findings(networks)
    layers = [
        {
            "layer": i,
            "role": a.roles[i],
            "neurons": layer.size,
            "activation": str(layer.activation),
            "combine": type(layer.combine).__name__.lower(),
            "from": [_connection(a, a.connections[c]) for c in a.incoming[i]],
            "bias": i > 0 and layer.bias,
            "parameters": sum(s.size for s in a.segments if a.owner(s) == i),
            "group": a.groups[i].name,
            "permutation_slot": a.slots[i],
            "scale_slot": a.scale_slots[i],
            "blocks": [
                {"start": b.start, "neurons": b.size, "permutation_slot": b.slot, "heads": b.heads,
                 "head_slot": b.head_slot, "scales": [list(v) for v in b.scales], "signs": list(b.signs),
                 "text": describe_block(b)}
                for b in a.blocks[i]
            ],
        }
        for i, layer in enumerate(a.layers)
    ]
    return {
        "architecture": str(a),
        "networks": len(networks),
        "parameters": a.parameters,
        "dtype": str(networks.dtype).removeprefix("torch."),
        "layers": layers,
        "symmetry": symmetry(a),
        "files": [
            {"file": name, **{kind: _places([mask[row] for mask in masks]) for kind, masks in found.items()}}
            for row, name in enumerate(names)
        ],
    }


def symmetry(architecture: Architecture) -> dict[str, Any]:
    """The size of a symmetry group: permutations n! per slot, 2 per sign, one dimension per positive scale."""
    import math

    blocks = [b for layer in architecture.blocks for b in layer]
    neurons = {b.slot: b for b in blocks if b.slot is not None}
    heads = {b.head_slot: b.heads for b in blocks if b.head_slot is not None}
    scales = {v: b.size for b in blocks for v, _ in b.scales}
    signs = {v: b.size for b in blocks for v in b.signs}
    factorials = sum(b.heads * math.lgamma(b.size // b.heads + 1) for b in neurons.values())
    factorials += sum(math.lgamma(n + 1) for n in heads.values())
    return {
        "permuted_layers": [n for b in neurons.values() for n in [b.size // b.heads] * b.heads] + list(heads.values()),
        "signs": sum(signs.values()),
        "scales": sum(scales.values()),
        "log10_discrete": factorials / math.log(10) + sum(signs.values()) * math.log10(2),
    }


def _connection(architecture: Architecture, c: Connection) -> str:
    from ...convert.draw import describe_map

    pools = "".join(f" {p.kind.replace('_', ' ')} {'x'.join(map(str, p.size))}".rstrip() for p in c.pools)
    what = describe_map(c)
    gain = f" x {c.gain:g}" if c.gain != 1 else ""
    return f"{c.source}{pools} {what}{gain}"


def _findings(networks: Networks) -> dict[str, list[Tensor]]:
    """Per kind and layer, which neurons (B, n) it concerns."""
    import math

    import torch

    a = networks.architecture
    found: dict[str, list[Tensor]] = {kind: [] for kind in _FINDINGS}
    for i, layer in enumerate(a.layers):
        bias = networks.biases[i]
        if bias is None:
            bias = networks.parameters.new_zeros(len(networks), layer.size)
        unfed = _all_zero(networks, a.incoming[i], 2) if a.incoming[i] else torch.zeros_like(bias, dtype=torch.bool)
        unheard = _all_zero(networks, a.outgoing[i], 1) if a.outgoing[i] else torch.zeros_like(unfed)
        found["no_input"].append(unfed & (bias == 0))
        found["no_output"].append(unheard)
        found["dead"].append(unfed & (bias <= 0) & (layer.activation.name == "relu"))
        phase = bias * layer.activation.parameters[0] if layer.activation.name == "sine" else torch.zeros_like(bias)
        found["out_of_phase"].append((phase <= -math.pi / 2) | (phase > math.pi / 2))
    return found


def _all_zero(networks: Networks, connections: Sequence[int], over: int) -> Tensor:
    """Whether all weights of a neuron's connections are zero, (B, n); `over` is the other neurons' dimension."""
    import torch

    masks = []
    for c in connections:
        weight = networks.weights[c]
        if weight is None or not networks.architecture.connections[c].dense:
            ends = networks.architecture.connections[c]
            layer = ends.target if over == 2 else ends.source
            return torch.zeros(len(networks), networks.architecture.layers[layer].size, dtype=torch.bool)
        masks.append((weight == 0).all(3).all(over))
    return torch.stack(masks).all(0)


def _places(masks: Sequence[Tensor]) -> dict[str, list[int]]:
    """Layer to neurons, for the layers that have any."""
    return {str(i): mask.nonzero().flatten().tolist() for i, mask in enumerate(masks) if mask.any()}


def _show(answer: dict[str, Any]) -> None:
    console = stdout()
    found = [kind for kind in _FINDINGS if any(f[kind] for f in answer["files"])]
    console.print(f"{answer['architecture']}, {answer['parameters']:,} parameters, {answer['dtype']}", markup=False)
    console.print(_layer_table(answer, found))
    console.print(f"symmetry group: {_group_size(answer['symmetry'])}")
    if not found:
        console.print("no idle neurons, all phases in range")
    elif answer["networks"] > 1:
        console.print(_file_table(answer, found))


def _layer_table(answer: dict[str, Any], kinds: Sequence[str]) -> Table:
    words = ("layer", "from", "neurons", "activation", "parameters", "group", "permuted with")
    shown = table(*words, numbers=[_FINDINGS[kind] for kind in kinds])
    slots = [row["permutation_slot"] for row in answer["layers"]]
    for i, row in enumerate(answer["layers"]):
        partners = [str(j) for j, slot in enumerate(slots) if slot == slots[i] and j != i]
        permuted = "fixed" if slots[i] is None else ", ".join(partners) or "alone"
        if len(row["blocks"]) > 1 or row["blocks"][0]["heads"] > 1:
            permuted = "\n".join(b["text"] for b in row["blocks"])
        counts = [sum(len(f[kind].get(str(i), [])) for f in answer["files"]) for kind in kinds]
        shown.add_row(
            f"{i} {row['role']}",
            "\n".join(row["from"]),
            str(row["neurons"]),
            (row["activation"] if row["combine"] == "sum" else row["combine"]) if i else "",
            f"{row['parameters']:,}",
            row["group"],
            permuted,
            *map(str, counts),
        )
    return shown


def _file_table(answer: dict[str, Any], kinds: Sequence[str]) -> Table:
    from rich.text import Text

    shown = table("file", numbers=[_FINDINGS[kind] for kind in kinds])
    for found in answer["files"][:_SHOWN_FILES]:
        shown.add_row(Text(found["file"]), *(str(sum(map(len, found[kind].values()))) for kind in kinds))
    more = len(answer["files"]) - _SHOWN_FILES
    if more > 0:
        shown.add_row(f"and {more} more (--json lists all)")
    return shown


def _group_size(found: dict[str, Any]) -> str:
    """Such as `8! 32!^2 2^64 = 10^89.9 elements`."""
    sizes: list[int] = found["permuted_layers"]
    factors = [f"{n}!" + (f"^{sizes.count(n)}" if sizes.count(n) > 1 else "") for n in dict.fromkeys(sizes)]
    factors += [f"2^{found['signs']}"] if found["signs"] else []
    scales = f", and {found['scales']} continuous dimensions of positive scales" if found["scales"] else ""
    if not factors:
        return f"the identity alone{scales}"
    return f"{' '.join(factors)} = 10^{found['log10_discrete']:.1f} elements{scales}"
