"""ScaleGMN in our form written literally: an edge list, gather and scatter, and every equation of docs/model.md.

Slow and plain on purpose. It reads the parameters of a classifier or an editor on a trunk of ScaleGMN by name and
shares no code with them: `Oracle(model)(networks)` must equal `model(networks)`, values and gradients. That is how the
fast code is tested, and it is what the benchmarks compare with. No dropout, no probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from edge_list import graph_of, kernel_shape
from torch import Tensor
from torch.nn import functional as F

from scalegmn.core.activations import Phi
from scalegmn.core.groups import Group, Trivial, group
from scalegmn.core.networks import Networks
from scalegmn.models.heads import Editor, InvariantModel, Regressor
from scalegmn.models.scalegmn import ScaleGMNTrunk


@dataclass
class State:
    """Vertex states x, dual vertex states d, edge states e, reciprocal edge states r."""

    x: Tensor
    e: Tensor
    d: Tensor | None = None
    r: Tensor | None = None


class Oracle:
    """The literal model with the parameters of a fast one.

    Arguments:
        model: Whose parameters are used; gradients arrive there.
    """

    def __init__(self, model: InvariantModel | Editor) -> None:
        assert isinstance(model.trunk, ScaleGMNTrunk)
        body = model.trunk.body
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.p: dict[str, Tensor] = {name.removeprefix("trunk."): tensor for name, tensor in named.items()}
        self.model = model
        self.flow, self.skip, self.depth = body.backward, body.skip, len(body.layers)
        self.sign, self.aggregate = body.style.nets.sign, body.style.aggregate
        self.everywhere = body.style.positions > 0
        self.kernel = body.init.kernels.shape
        self.trivial = model.trunk.spec.symmetry == "permutations"

    def __call__(self, networks: Networks) -> Tensor:
        """The outputs of an invariant model (B, outputs), or the direction of an editor (B, copies, P)."""
        self.a = a = networks.architecture
        self.g = graph_of(a, len(networks))
        self.groups: tuple[Group, ...] = (Trivial,) * len(a.layers) if self.trivial else a.groups
        self.phis: tuple[Phi, ...] = (Phi(),) * len(a.layers) if self.trivial else a.phis
        self.vertices = self.by_kind(self.g.layer)
        ends = {False: self.g.target, True: self.g.source}
        self.receivers = {backward: self.by_kind(self.g.layer[end]) for backward, end in ends.items()}
        self.edge_groups = self.by_edge_group()
        self.positions = self.vertex_positions(len(networks))
        state = self.start(networks)
        for t in range(self.depth):
            new = self.iterate(f"body.layers.{t}", state)
            state = self.add(state, new) if self.skip else new
        if isinstance(self.model, Editor):
            return self.parameters(networks, state)
        return self.read(state, len(networks))

    # -- building blocks (section 5 and A.1.2) -----------------------------------------------------------------------

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.p[f"{name}.weight"], self.p.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.p[f"{name}.weight"], self.p[f"{name}.bias"])

    def mlp(self, name: str, x: Tensor) -> Tensor:
        return self.linear(f"{name}.last", F.silu(self.norm(f"{name}.norm", self.linear(f"{name}.first", x))))

    def scale_inv(self, name: str, g: Group, xs: Sequence[Tensor], ps: Sequence[Tensor] = ()) -> Tensor:
        """rho(x~_1, ..., x~_n, p): x / |x| for scales, |x| or rho(x) + rho(-x) for signs."""
        name = f"{name}.of.{g.name}"
        maps = [f"{name}.first.{i}.weight" for i in range(len(xs))]
        maps += [f"{name}.contexts.{i}.weight" for i in range(len(ps))]
        weight = torch.cat([self.p[m] for m in maps], 1)

        def rho(xs: Sequence[Tensor]) -> Tensor:
            hidden = F.linear(torch.cat([*xs, *ps], -1), weight, self.p[f"{name}.offset"])
            return F.linear(F.silu(self.norm(f"{name}.norm", hidden)), self.p[f"{name}.last.weight"])

        if g.scales:
            xs = [canon(x) for x in xs]
        if g.signs and self.sign == "absolute":
            xs = [x.abs() for x in xs]
        y = rho(xs) + rho([-x for x in xs]) if g.signs and self.sign == "symmetrise" else rho(xs)
        # The two terms of a symmetrisation share one bias.
        return y + self.p[f"{name}.last.bias"]

    def scale_eq(
        self, name: str, g: Group, x: Tensor, ps: Sequence[Tensor] = (), companions: Sequence[Tensor] = ()
    ) -> Tensor:
        """K layers Gamma x * ScaleInv(x, p)."""
        k = 0
        while f"{name}.gamma.{k}.weight" in self.p:
            inv = self.scale_inv(f"{name}.invariant.{k}", g, [x, *companions], ps)
            x, k = self.linear(f"{name}.gamma.{k}", x) * inv, k + 1
        return x

    # -- initialisation (A.1.1, A.1.2, A.2, A.3) ---------------------------------------------------------------------

    def vertex_positions(self, batch: int) -> Tensor:
        """p_V: by layer for hidden neurons, by neuron at both ends and in layers tied to them."""
        rows = []
        for i, layer in enumerate(self.a.layers):
            if self.a.roles[i] == "hidden":
                p = self.p["body.positions.hidden"][i].expand(layer.size, -1)
                rows.append(p if self.a.slots[i] is not None else p + self.p["body.positions.pinned"][: layer.size])
            else:
                rows.append(self.p[f"body.positions.{self.a.roles[i]}"][: layer.size])
        return torch.cat(rows).repeat(batch, 1)

    def start(self, networks: Networks) -> State:
        batch = len(networks)
        biases = []
        for i, layer in enumerate(self.a.layers):
            b = networks.biases[i]
            if b is None:
                b = networks.parameters.new_full((batch, layer.size), 1.0 if i == 0 else 0.0)
            biases.append(b * self.p["body.init.bias_gain"][i])
        x = torch.cat(biases, 1).reshape(-1, 1)
        weights = torch.cat([self.kernels(networks, c) for c in range(len(self.a.connections))], 1)
        w = weights.flatten(0, 1)
        states = self.on_vertices(
            lambda g, v: self.scale_eq("body.init.vertex", g, x[v], [self.positions[v]]),
            lambda role, v: self.mlp(f"body.init.{role}", torch.cat([x[v], self.positions[v]], -1)),
        )
        state = State(states, self.encode(w))
        if self.flow == "dual":
            state.d = self.on_vertices(
                lambda g, v: torch.zeros_like(states[v]),
                lambda role, v: self.mlp(f"body.dual_init.{role}", self.positions[v]),
            )
        if self.flow == "reciprocal":
            state.r = self.encode(torch.where(w == 0, 0, 1 / torch.where(w == 0, 1, w)))
        return state

    def kernels(self, networks: Networks, index: int) -> Tensor:
        """Weights of one connection (B, edges, K), each kernel in the middle of the largest."""
        c, w = self.a.connections[index], networks.weights[index]
        if w is None:
            w = networks.parameters.new_ones(len(networks), self.g.counts[index])
        height, width = kernel_shape(c)
        w = w.reshape(len(networks), self.g.counts[index], height, width)
        full = w.new_zeros(len(networks), self.g.counts[index], *self.kernel)
        top, left = (self.kernel[0] - height) // 2, (self.kernel[1] - width) // 2
        full[:, :, top : top + height, left : left + width] = w
        return self.p["body.init.kernels.gain"][index] * full.flatten(2)

    def encode(self, w: Tensor) -> Tensor:
        """Gamma_E w, times 1 + p_E with edge positions."""
        e = self.linear("body.init.edge", w)
        name = "body.init.edge_positions"
        if f"{name}.connection" not in self.p:
            return e
        p = self.p[f"{name}.connection"][self.g.connection]
        for end, vertex, layer in (("input", self.g.source, 0), ("output", self.g.target, len(self.a.layers) - 1)):
            there = (self.g.layer[vertex] == layer).to(w)
            place = self.g.place[vertex] * there.long()
            p = p + there[:, None] * self.p[f"{name}.{end}"][place]
        return e * (1 + p)

    # -- one iteration (section 5, A.1.3, A.1.4, A.2) ----------------------------------------------------------------

    def iterate(self, name: str, s: State) -> State:
        forward = self.messages(f"{name}.message", s.x, s.e, backward=False, lift=True)
        match self.flow:
            case "none":
                return State(self.update(f"{name}.update", [s.x, forward]), self.edges(name, s))
            case "shared":
                back = self.messages(f"{name}.backward_message", s.x, s.e, backward=True)
                back = back * self.lifted_derivative(f"{name}.lift", s.x)
                return State(self.update(f"{name}.update", [s.x, forward, back]), self.edges(name, s))
            case "reciprocal":
                assert s.r is not None
                back = self.messages(f"{name}.backward_message", s.x, s.r, backward=True)
                x = self.update(f"{name}.update", [s.x, forward, back])
                return State(x, self.edges(name, s), r=self.edges(name, s, "backward_edge_update"))
            case "dual":
                assert s.d is not None
                back = self.messages(f"{name}.dual_message", s.d, s.e, backward=True)
                back = back * self.lifted_derivative(f"{name}.lift", s.x)
                x = self.update(f"{name}.update", [s.x, forward], torch.asinh(s.x * s.d), s.d)
                d = self.update(f"{name}.dual_update", [s.d, back], torch.asinh(s.x * s.d), s.x)
                return State(x, self.edges(name, s), d)
        raise AssertionError(self.flow)

    def messages(self, name: str, vertex: Tensor, edge: Tensor, *, backward: bool, lift: bool = False) -> Tensor:
        """m(i) = sum over j of MSG(h(j), h(i, j))."""
        sender, receiver = (self.g.target, self.g.source) if backward else (self.g.source, self.g.target)
        y = self.linear(f"{name}.rescale.vertex", vertex[sender])
        if lift:
            y = self.per_layer(self.g.layer[sender], y, lambda phi, z: phi(z))
        m = y * self.linear(f"{name}.rescale.edge", edge)
        total = torch.zeros_like(vertex)
        for g, ends, which in self.receivers[backward]:
            ps = [self.positions[self.g.target[which]], self.positions[self.g.source[which]]] if self.everywhere else []
            if ends is None:
                found = self.scale_eq(f"{name}.hidden", g, m[which], ps)
            else:
                found = self.mlp(f"{name}.fixed", torch.cat([m[which], *ps], -1))
            total = total.index_add(0, receiver[which], found)
        if self.aggregate == "mean":
            neighbours = torch.zeros(len(vertex)).index_add(0, receiver, torch.ones(len(receiver)))
            total = total / neighbours.clamp(min=1)[:, None].to(total)
        return total

    def update(
        self, name: str, states: Sequence[Tensor], product: Tensor | None = None, companion: Tensor | None = None
    ) -> Tensor:
        """UPD_V: ScaleEq([x, m], p) for hidden neurons, MLPs at both ends."""
        x = torch.cat(list(states), -1)
        ps = ([self.positions] if self.everywhere else []) + ([] if product is None else [product])
        others = [] if companion is None else [companion]
        return self.on_vertices(
            lambda g, v: self.scale_eq(f"{name}.hidden", g, x[v], [p[v] for p in ps], [o[v] for o in others]),
            lambda role, v: self.mlp(f"{name}.{role}", torch.cat([x[v], *(t[v] for t in (*ps, *others))], -1)),
        )

    def edges(self, name: str, s: State, update: str = "edge_update") -> Tensor:
        """UPD_E: (Gamma e + x_t d_s) * ScaleInv(e, ScaleInv(x_t), ScaleInv(x_s), p), for signs d = x; or unchanged."""
        e = s.r if update == "backward_edge_update" else s.e
        assert e is not None
        if f"{name}.{update}.gamma.weight" not in self.p:
            return e
        inv = self.invariants(f"{name}.invariant", s)
        t, j = self.g.target, self.g.source
        linear = self.linear(f"{name}.{update}.gamma", e)
        if self.flow in ("dual", "shared"):
            back = s.x if s.d is None else s.d
            d = self.linear(f"{name}.{update}.outer.1", back[j])
            d = self.per_layer(self.g.layer[j], d, lambda phi, z: phi(z))
            linear = linear + self.linear(f"{name}.{update}.outer.0", s.x[t]) * d
        new = torch.zeros_like(linear)
        for g, which in self.edge_groups:
            ps = [inv[t[which]], inv[j[which]]]
            if self.everywhere:
                ps += [self.positions[t[which]], self.positions[j[which]]]
            rho = self.scale_inv(f"{name}.{update}.invariant", g, [e[which]], ps)
            deeper = self.scale_eq(f"{name}.{update}.further", g, linear[which] * rho, ps)
            new = new.index_copy(0, which, deeper)
        return new

    def invariants(self, name: str, s: State) -> Tensor:
        """ScaleInv(x) of every vertex; with a dual stream ScaleInv(x, d, asinh(x d))."""
        xs = [s.x] if s.d is None else [s.x, s.d]
        ps = [] if s.d is None else [torch.asinh(s.x * s.d)]
        return self.on_vertices(
            lambda g, v: self.scale_inv(f"{name}.hidden", g, [x[v] for x in xs], [p[v] for p in ps]),
            lambda role, v: self.mlp(f"{name}.{role}", torch.cat([t[v] for t in (*xs, *ps)], -1)),
        )

    # -- readout (A.1.5) and equivariant head (A.4.3) ----------------------------------------------------------------

    def read(self, s: State, batch: int) -> Tensor:
        assert isinstance(self.model, InvariantModel)
        readout, name = self.model.pool.one, "pool.one"
        states = s.x if s.d is None else torch.cat([s.x, s.d], -1)
        last = len(self.a.layers) - 1
        parts = [self.row(states, last, readout.sizes[1], batch)]
        if readout.kind != "output":
            parts.append(self.row(states, 0, readout.sizes[0], batch))
        if readout.kind == "all":
            inv = self.invariants(f"{name}.invariant", s).view(batch, -1, s.x.shape[-1])
            layer = self.g.layer.view(batch, -1)[0]
            pooled = [inv[:, layer == i] for i in range(1, last)]
            sets = sum(y.mean(1) if self.aggregate == "mean" else y.sum(1) for y in pooled)
            parts.append(self.mlp(f"{name}.sets", sets))  # type: ignore[arg-type]
        hidden = self.linear(f"{name}.embedding.0", torch.cat(parts, -1))
        y = self.linear("last", F.silu(self.norm(f"{name}.embedding.1", hidden)))
        return torch.sigmoid(y) if isinstance(self.model, Regressor) and self.model.sigmoid else y

    def row(self, states: Tensor, layer: int, size: int, batch: int) -> Tensor:
        """All neurons of one layer in a row, zeros for those that it lacks."""
        rows = states[self.g.layer == layer].view(batch, -1, states.shape[-1])
        full = rows.new_zeros(batch, size, states.shape[-1])
        full[:, : rows.shape[1]] = rows
        return full.flatten(1)

    def parameters(self, networks: Networks, s: State) -> Tensor:
        """f(theta): edges to weights, vertices to biases."""
        batch, copies = len(networks), self.model.copies
        rho = s.e.new_zeros(len(s.e), self.p["write.weight.gamma.0.weight"].shape[0])
        for g, which in self.edge_groups:
            rho = rho.index_copy(0, which, self.scale_eq("write.weight", g, s.e[which]))
        bias = self.on_vertices(
            lambda g, v: self.scale_eq("write.bias", g, s.x[v]),
            lambda role, v: self.mlp("write.output_bias", s.x[v]),
        )
        parts = []
        for segment in self.a.segments:
            if segment.kind == "bias":
                parts.append(bias[self.g.layer == segment.index].view(batch, -1, copies).transpose(1, 2))
            elif segment.kind == "weight":
                w = rho[self.g.connection == segment.index].view(batch, -1, copies, *self.kernel)
                height, width = kernel_shape(self.a.connections[segment.index])
                top, left = (self.kernel[0] - height) // 2, (self.kernel[1] - width) // 2
                w = w[..., top : top + height, left : left + width]
                parts.append(w.transpose(1, 2).flatten(2))
            else:
                parts.append(networks.parameters.new_zeros(batch, copies, segment.size))
        return torch.cat(parts, -1)

    # -- which function where ----------------------------------------------------------------------------------------

    def by_kind(self, layer: Tensor) -> list[tuple[Group, str | None, Tensor]]:
        """Split things by the layer they belong to: a part for each group of hidden neurons and one for each end."""
        found: list[tuple[Group, str | None, Tensor]] = []
        for g in sorted(set(self.groups[1:-1]), key=str):
            layers = [i for i in range(1, len(self.groups) - 1) if self.groups[i] == g]
            found.append((g, None, torch.isin(layer, torch.tensor(layers)).nonzero().squeeze(1)))
        for i, role in ((0, "input"), (len(self.groups) - 1, "output")):
            found.append((Trivial, role, (layer == i).nonzero().squeeze(1)))
        return found

    def on_vertices(self, hidden, ends) -> Tensor:  # type: ignore[no-untyped-def]
        """Apply the function of its kind to every vertex and put the answers in one list."""
        which, values = [], []
        for g, role, v in self.vertices:
            if len(v):
                which.append(v)
                values.append(hidden(g, v) if role is None else ends(role, v))
        return torch.cat(values)[torch.cat(which).argsort()]

    def by_edge_group(self) -> list[tuple[Group, Tensor]]:
        """Split edges by the smallest group that contains q_t / phi(q_s)."""
        found: dict[Group, list[int]] = {}
        for i, c in enumerate(self.a.connections):
            s, t = self.groups[c.source], self.groups[c.target]
            found.setdefault(group(signs=s.signs or t.signs, scales=s.scales or t.scales), []).append(i)
        return [(g, torch.isin(self.g.connection, torch.tensor(c)).nonzero().squeeze(1)) for g, c in found.items()]

    def per_layer(self, layer: Tensor, z: Tensor, function) -> Tensor:  # type: ignore[no-untyped-def]
        """Apply function(phi of the layer, z) where phi is not the identity."""
        for i, phi in enumerate(self.phis):
            if not phi.is_identity:
                z = torch.where((layer == i)[:, None], function(phi, z), z)
        return z

    def lifted_derivative(self, name: str, x: Tensor) -> Tensor:
        """phi'(Gamma x), and 1 where phi is the identity."""
        lifted, one = self.linear(name, x), torch.ones_like(x)
        for i, phi in enumerate(self.phis):
            if not phi.is_identity:
                one = torch.where((self.g.layer == i)[:, None], phi.derivative(lifted), one)
        return one

    @staticmethod
    def add(old: State, new: State) -> State:
        return State(
            old.x + new.x,
            old.e + new.e,
            None if old.d is None or new.d is None else old.d + new.d,
            None if old.r is None or new.r is None else old.r + new.r,
        )


def canon(x: Tensor) -> Tensor:
    """x / |x|, and 0 for x = 0."""
    zero = (x == 0).all(-1, keepdim=True)
    return torch.where(zero, 0, x / torch.where(zero, 1, x).norm(dim=-1, keepdim=True))
