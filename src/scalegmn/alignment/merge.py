"""One network from several: aligned, averaged, and their statistics restored."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..core import canonical
from ..core.architecture import Skip
from ..core.mixed import expect_networks
from ..core.networks import Networks
from ..core.wiring import spans
from ..errors import ScaleGMNError
from .align import align
from .structure import joined, split, terms

How = Literal["average", "mean", "interpolate"]
_ROUNDS = 20


def merge(
    networks: Networks | Sequence[Networks], how: How = "average", *, at: float = 0.5, inputs: Tensor | None = None
) -> Networks:
    """Average networks of one architecture after aligning them.

    Arguments:
        networks: Two or more; the result has the names, the type and the scales of the first.
        how: `average` aligns all to the first; `mean` aligns them to their running mean repeatedly until nothing
            changes (Ainsworth et al. 2023); `interpolate` goes only part of the way from the first to the second.
        at: With `interpolate`, the position: 0 is the first network, 1 the second.
        inputs: Data. If given, neurons are also matched by their responses to it, and the merged network's neurons get
            the mean and deviation that those of its parents have on it (REPAIR, Jordan et al. 2023).

    >>> from scalegmn import Architecture, Transform
    >>> a = Networks(Architecture.mlp([2, 8, 1], "tanh"), torch.randn(1, 33, dtype=torch.float64))
    >>> torch.allclose(merge([a, Transform.sample(a.architecture, 1).apply(a)]).parameters, a.parameters)
    True
    """
    for one in (networks,) if isinstance(networks, Networks) else networks:
        expect_networks(one)
    each = networks if isinstance(networks, Networks) else [n.to(dtype=networks[0].dtype) for n in networks]
    batch = each if isinstance(each, Networks) else Networks.cat(each)
    if how not in ("average", "mean", "interpolate"):
        raise ScaleGMNError(f"how: expected average, mean or interpolate, got {how!r}")
    if len(batch) < 2:
        raise ScaleGMNError(f"networks: expected at least 2 to merge, got {len(batch)}")
    if how == "interpolate" and len(batch) != 2:
        raise ScaleGMNError(f"networks: expected 2 to interpolate, got {len(batch)}; average takes more")
    if not 0 <= at <= 1:
        raise ScaleGMNError(f"at: expected a number from 0 to 1, got {at}")
    first = each[0][:1]
    together = _together(batch, inputs, repeat=how == "mean")
    shares = [1 - at, at] if how == "interpolate" else [1 / len(batch)] * len(batch)
    merged = blend(together, together.parameters.new_tensor(shares))
    if inputs is not None:
        merged = restored(merged, together, shares, inputs)
    return first.replace(merged.parameters.to(first.dtype))


def blend(networks: Networks, shares: Tensor) -> Networks:
    """The weighted mean of networks; weights (N,), or (M, N) for several means."""
    return Networks(networks.architecture, shares.reshape(-1, len(networks)) @ networks.parameters)


def _together(batch: Networks, inputs: Tensor | None, *, repeat: bool) -> Networks:
    """All networks in float64, aligned to the first, or to their running mean in the frame of the first."""
    exact = Networks(batch.architecture, batch.parameters.detach().double())
    together = Networks.cat([exact[:1], align(exact[:1], exact[1:], inputs=inputs).aligned])
    spread, equal = torch.inf, exact.parameters.new_full((len(batch),), 1 / len(batch))
    for _ in range(_ROUNDS if repeat else 0):
        found = align(blend(together, equal), together, inputs=inputs)
        now = float(found.distance.square().sum())
        if not now < spread - 1e-12:
            break
        spread, together = now, found.aligned
    return together


def restored(merged: Networks, parents: Networks, shares: Sequence[float], inputs: Tensor) -> Networks:
    r"""Give every hidden neuron of a merged network the mean and deviation that its parents' neurons have.

    Averaging shrinks the variance of pre-activations layer by layer. From the input on, the pre-activation of a
    neuron is multiplied by \(\sigma / \sigma'\) and shifted by \(\mu - \mu' \sigma / \sigma'\) (Jordan et al. 2023);
    at a residual addition, only the branch is.

    Arguments:
        merged: One network.
        parents: N networks, aligned with it.
        shares: The weight of each parent.
        inputs: As in `Networks.evaluate`.
    """
    a = merged.architecture
    share = parents.parameters.new_tensor(list(shares))[:, None]
    own = {term.target for term in terms(a)}
    for i in (i for i in range(1, len(a.layers) - 1) if i in own and canonical.owns(a, i)):
        theirs, ours = _branch(parents, i, inputs), _branch(merged, i, inputs)
        if theirs is None or ours is None:
            continue
        mean, deviation = ((share * s).sum(0) for s in theirs)
        factor = torch.where(ours[1][0] > 1e-9 * deviation, deviation / ours[1][0], 1.0)
        moved = []
        for term, x in zip(terms(a), split(merged), strict=True):
            if term.target == i and term.segment.kind == "bias":
                x = mean + (x - ours[0]) * factor
            elif term.target == i:
                x = x * factor.reshape(1, -1, *[1] * (x.dim() - 2))
            moved.append(x)
        merged = joined(a, moved)
    return merged


def _branch(networks: Networks, layer: int, inputs: Tensor) -> tuple[Tensor, Tensor] | None:
    """Mean and deviation (B, n) of a layer's pre-activations without what residual connections add."""
    a = networks.architecture
    with torch.no_grad():
        answers = networks.responses(inputs)
    own = answers.pre[layer]
    for c in (a.connections[c] for c in a.incoming[layer]):
        if isinstance(c.map, Skip):
            if c.pools:
                return None
            source, target = spans(a, c)
            sent = answers.post[c.source][:, :, source.start : source.start + source.size]
            sent = sent.expand(*own.shape[:2], *sent.shape[2:])
            own = own.index_add(2, torch.arange(target.start, target.start + target.size), -c.gain * sent)
    rows = own.transpose(1, 2).flatten(2)
    if rows.shape[2] < 2:
        return None
    return rows.mean(2), rows.std(2)
