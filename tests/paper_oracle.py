"""The model of the paper, written from its equations: one network, one vertex and one edge at a time.

It reads the parameters of a model with `form = "paper"` by name, and its options; it shares no code with `nn/`. Names
of functions and letters are those of the paper: x is the central vertex, y its neighbour, e the edge from y to x, p
are positional encodings. No dropout, no probes, and only networks whose layers add complete or elementwise
connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from edge_list import kernel_shape
from torch import Tensor

from scalegmn.core.activations import Phi
from scalegmn.core.architecture import Architecture
from scalegmn.core.groups import Group, Trivial, group
from scalegmn.core.networks import Networks
from scalegmn.models.heads import Editor, InvariantModel, Regressor
from scalegmn.models.scalegmn import ScaleGMNTrunk

Vertex = tuple[int, int]
"""Layer and place within it."""


class Arrow(NamedTuple):
    """An edge of the graph: W(i, j) goes from j to i; a backward edge joins the same two the other way round."""

    connection: int
    i: Vertex
    j: Vertex


class PaperOracle:
    """The literal model with the parameters of a fast one.

    Arguments:
        model: Whose parameters are used; gradients arrive there.
    """

    def __init__(self, model: InvariantModel | Editor) -> None:
        assert isinstance(model.trunk, ScaleGMNTrunk)
        self.model, self.spec = model, model.trunk.spec
        assert self.spec.form == "paper"
        self.p = {name.removeprefix("trunk."): tensor for name, tensor in model.named_parameters()}
        shapes = [kernel_shape(c) for a in model.architectures for c in a.connections]
        self.kernel = max(h for h, _ in shapes), max(w for _, w in shapes)

    def __call__(self, networks: Networks) -> Tensor:
        """The outputs of an invariant model (B, outputs), or the direction of an editor (B, copies, P)."""
        return torch.stack([self.one(networks[b : b + 1]) for b in range(len(networks))])

    def one(self, network: Networks) -> Tensor:
        """The same of one network."""
        self.a = a = network.architecture
        free = self.spec.symmetry == "permutations"
        self.groups: Sequence[Group] = [Trivial] * len(a.layers) if free else a.groups
        self.phis: Sequence[Phi] = [Phi()] * len(a.layers) if free else a.phis
        self.last = len(a.layers) - 1
        self.vertices = [(k, n) for k, layer in enumerate(a.layers) for n in range(layer.size)]
        self.arrows = arrows(a)
        h_v = {v: self.init_v(network, v) for v in self.vertices}
        h_e = {arrow: self.init_e(arrow, self.weight(network, arrow)) for arrow in self.arrows}
        h_b = {arrow: self.init_e(arrow, self.backward_weight(network, arrow)) for arrow in self.arrows}
        for t in range(self.spec.layers):
            # The last iteration updates edges only for those who edit.
            updates = self.spec.edge_updates if t < self.spec.layers - 1 else isinstance(self.model, Editor)
            h_v, h_e, h_b = self.iterate(f"body.layers.{t}", h_v, h_e, h_b, updates)
        return self.parameters(h_v, h_e) if isinstance(self.model, Editor) else self.read(h_v)

    # -- nets (section 5, A.1.2, A.4.1) ------------------------------------------------------------------------------

    def linear(self, name: str, x: Tensor) -> Tensor:
        y = self.p[f"{name}.weight"] @ x
        return y + self.p[f"{name}.bias"] if f"{name}.bias" in self.p else y

    def mlp(self, name: str, x: Tensor) -> Tensor:
        """One hidden layer with LayerNorm and SiLU."""
        h = self.linear(f"{name}.first", x)
        return self.linear(f"{name}.last", silu(self.norm(f"{name}.norm", h)))

    def norm(self, name: str, h: Tensor) -> Tensor:
        centred = h - h.mean()
        return centred / (centred.square().mean() + 1e-5).sqrt() * self.p[f"{name}.weight"] + self.p[f"{name}.bias"]

    def symm(self, name: str, x: Tensor) -> Tensor:
        """MLP(x) + MLP(-x)."""
        return self.mlp(name, x) + self.mlp(name, -x)

    def tilde(self, name: str, g: Group, x: Tensor) -> Tensor:
        """canon(x) or symm(x)."""
        if g.scales:
            x = canon(x)
        if g.signs:
            x = x.abs() if self.spec.sign == "absolute" else self.symm(name, x)
        return x

    def scale_inv(self, name: str, g: Group, xs: Sequence[Tensor], ps: Sequence[Tensor] = ()) -> Tensor:
        """rho(x~_1, ..., x~_n, p), one net per group (A.4.2)."""
        name = f"{name}.of.{g.name}"
        tildes = [self.tilde(f"{name}.symm.{n}", g, x) for n, x in enumerate(xs)]
        return self.mlp(f"{name}.rho", torch.cat([*tildes, *ps]))

    def scale_eq(self, name: str, g: Group, x: Tensor, ps: Sequence[Tensor] = ()) -> Tensor:
        """f^K o ... o f^1 with f^k(x, p) = Gamma^k x * ScaleInv^k(x, p)."""
        for k in range(self.spec.depth):
            x = self.linear(f"{name}.gamma.{k}", x) * self.scale_inv(f"{name}.invariant.{k}", g, [x], ps)
        return x

    def rescale_eq(self, name: str, g: Group, y: Tensor, e: Tensor, phi: Phi = Phi()) -> Tensor:  # noqa: B008
        """ScaleEq(vec(y (x) e)), or in practice Gamma_y y * Gamma_e e."""
        if self.spec.rescale == "outer":
            return self.scale_eq(f"{name}.product", g, torch.outer(phi(y), e).flatten())
        return phi(self.linear(f"{name}.vertex", y)) * self.linear(f"{name}.edge", e)

    # -- initialisation and positional encodings (A.1.1, A.1.2, A.2, A.3) --------------------------------------------

    def p_v(self, v: Vertex) -> Tensor:
        layer, place = v
        if self.a.roles[layer] != "hidden":
            return self.p[f"body.positions.{self.a.roles[layer]}"][place]
        p = self.p["body.positions.hidden"][layer]
        return p if self.a.slots[layer] is not None else p + self.p["body.positions.pinned"][place]

    def p_e(self, arrow: Arrow) -> Tensor:
        p = self.p["body.init.edge_positions.connection"][arrow.connection]
        if arrow.j[0] == 0:
            p = p + self.p["body.init.edge_positions.input"][arrow.j[1]]
        if arrow.i[0] == self.last:
            p = p + self.p["body.init.edge_positions.output"][arrow.i[1]]
        return p

    def init_v(self, network: Networks, v: Vertex) -> Tensor:
        """AugScaleEq(b, p_V), MLPs of both for input and output neurons; the input says 1."""
        bias = network.biases[v[0]]
        start = network.parameters.new_tensor(1.0 if v[0] == 0 else 0.0) if bias is None else bias[0, v[1]]
        return self.on_vertex("body.init", v, "vertex", start[None], [self.p_v(v)])

    def init_e(self, arrow: Arrow, w: Tensor) -> Tensor:
        """Gamma_E w; AugScaleEq(w, p_E) with encodings."""
        if not self.spec.edge_positions:
            return self.linear("body.init.edge", w)
        return self.scale_eq("body.init.edge_net", self.edge_group(arrow), w, [self.p_e(arrow)])

    def weight(self, network: Networks, arrow: Arrow) -> Tensor:
        """The kernel on an edge, in the middle of the largest."""
        c, w = self.a.connections[arrow.connection], network.weights[arrow.connection]
        height, width = kernel_shape(c)
        full = network.parameters.new_zeros(self.kernel)
        top, left = (self.kernel[0] - height) // 2, (self.kernel[1] - width) // 2
        if w is None:
            value = network.parameters.new_ones(1, 1)
        else:
            value = (w[0, arrow.i[1], arrow.j[1]] if c.dense else w[0, arrow.i[1]]).reshape(height, width)
        full[top : top + height, left : left + width] = value
        return full.flatten()

    def backward_weight(self, network: Networks, arrow: Arrow) -> Tensor:
        """1/w with 1/0 := 0; w itself where there are signs only."""
        w = self.weight(network, arrow)
        if self.spec.backward == "reciprocal" or self.edge_group(arrow).scales:
            return torch.where(w == 0, 0, 1 / torch.where(w == 0, 1, w))
        return w

    # -- one iteration (section 5, A.1.3, A.1.4, A.2) ----------------------------------------------------------------

    def iterate(  # type: ignore[no-untyped-def]
        self, name: str, h_v: dict[Vertex, Tensor], h_e: dict[Arrow, Tensor], h_b: dict[Arrow, Tensor], updates: bool
    ):
        new_v = {}
        for v in self.vertices:
            m = [self.gather(f"{name}.message", v, h_v, h_e)]
            if self.spec.backward != "none":
                way_back = h_e if self.shares_edges else h_b
                m.append(self.gather(f"{name}.backward_message", v, h_v, way_back, back=True))
            new_v[v] = self.upd_v(f"{name}.update", v, h_v[v], m)
            if self.spec.skip:
                new_v[v] = h_v[v] + new_v[v]
        if not updates:
            return new_v, h_e, h_b
        new_e = {a: self.upd_e(f"{name}.edge_update", a, h_v[a.i], h_v[a.j], e, a.i, a.j) for a, e in h_e.items()}
        if self.spec.backward == "none" or self.shares_edges:
            return new_v, new_e, h_b
        back = f"{name}.backward_edge_update"
        return new_v, new_e, {a: self.upd_e(back, a, h_v[a.j], h_v[a.i], e, a.j, a.i) for a, e in h_b.items()}

    @property
    def shares_edges(self) -> bool:
        """Where all groups are signs, backward edges are the forward ones."""
        some = any(g.scales for a in self.model.architectures for g in ((Trivial,) if self.is_free else a.groups[1:-1]))
        return self.spec.backward == "shared" or (self.spec.backward == "auto" and not some)

    @property
    def is_free(self) -> bool:
        return self.spec.symmetry == "permutations"

    def gather(
        self, name: str, v: Vertex, h_v: dict[Vertex, Tensor], h_e: dict[Arrow, Tensor], *, back: bool = False
    ) -> Tensor:
        """The sum of MSG over the neighbours."""
        found = []
        for arrow in self.arrows:
            receiver, sender = (arrow.j, arrow.i) if back else (arrow.i, arrow.j)
            if receiver == v:
                phi = Phi() if back else self.phis[sender[0]]
                ps = self.along(arrow, receiver, sender)
                found.append(self.msg_v(name, v, h_v[v], h_v[sender], h_e[arrow], ps, phi))
        total = sum(found, torch.zeros_like(h_v[v]))
        return total / len(found) if found and self.spec.aggregate == "mean" else total

    def along(self, arrow: Arrow, x: Vertex, y: Vertex) -> list[Tensor]:
        """[p_x, p_y, p_e], if encodings take part in messages and updates."""
        if not self.spec.positions_everywhere:
            return []
        return [self.p_v(x), self.p_v(y), *([self.p_e(arrow)] if self.spec.edge_positions else [])]

    def msg_v(self, name: str, v: Vertex, x: Tensor, y: Tensor, e: Tensor, ps: list[Tensor], phi: Phi) -> Tensor:
        """AugScaleEq([x, ReScaleEq(y, e)], p), or MLP(x, ReScaleEq(y, e), p) for input and output neurons."""
        hidden = self.a.roles[v[0]] == "hidden"
        g = self.groups[v[0]] if hidden else Trivial
        joined = self.rescale_eq(f"{name}.rescale", g, y, e, phi)
        z = joined if self.spec.neighbours_only else torch.cat([x, joined])
        return self.scale_eq(f"{name}.hidden", g, z, ps) if hidden else self.mlp(f"{name}.fixed", torch.cat([z, *ps]))

    def upd_v(self, name: str, v: Vertex, x: Tensor, ms: list[Tensor]) -> Tensor:
        """AugScaleEq([x, m_FW, m_BW], p_x), MLPs for input and output neurons."""
        ps = [self.p_v(v)] if self.spec.positions_everywhere else []
        return self.on_vertex(name, v, "hidden", torch.cat([x, *ms]), ps)

    def upd_e(self, name: str, arrow: Arrow, x: Tensor, y: Tensor, e: Tensor, i: Vertex, j: Vertex) -> Tensor:
        """AugScaleEq(e, [ScaleInv(x, y), p]), or AugScaleEq([e, ReScaleEq(x, 1 / y)], p)."""
        g, ps = self.edge_group(arrow), self.along(arrow, i, j)
        if self.spec.edge_rule == "reciprocal":
            y = self.phis[j[0]](y) if j == arrow.j else y
            joined = self.rescale_eq(f"{name}.rescale", g, x, 1 / y)
            return self.scale_eq(f"{name}.edge", g, torch.cat([e, joined]), ps)
        return self.scale_eq(f"{name}.edge", g, e, [self.scale_inv(f"{name}.ends", g, [x, y]), *ps])

    def on_vertex(self, name: str, v: Vertex, hidden: str, x: Tensor, ps: list[Tensor]) -> Tensor:
        role = self.a.roles[v[0]]
        if role == "hidden":
            return self.scale_eq(f"{name}.{hidden}", self.groups[v[0]], x, ps)
        return self.mlp(f"{name}.{role}", torch.cat([x, *ps]))

    def edge_group(self, arrow: Arrow) -> Group:
        s, t = self.groups[arrow.j[0]], self.groups[arrow.i[0]]
        return group(signs=s.signs or t.signs, scales=s.scales or t.scales)

    # -- readout (A.1.5) and editing (A.4.3) -------------------------------------------------------------------------

    def read(self, h_v: dict[Vertex, Tensor]) -> Tensor:
        """MLP([DeepSets(x~_1, ..., x~_n), X_0, X_L]), or of X_L alone, or of X_0 and X_L."""
        kind = self.spec.readout
        parts = [h_v[v] for v in self.vertices if v[0] == self.last]
        if kind != "output":
            parts += [h_v[v] for v in self.vertices if v[0] == 0]
        if kind == "all":
            hidden = [v for v in self.vertices if 0 < v[0] < self.last]
            # The paper has sums; where means are asked for, every layer has one.
            shares = [1 / self.a.layers[v[0]].size if self.spec.aggregate == "mean" else 1 for v in hidden]
            inv = [self.scale_inv("pool.one.invariant.hidden", self.groups[v[0]], [h_v[v]]) for v in hidden]
            parts.append(self.mlp("pool.one.sets", sum(s * y for s, y in zip(shares, inv, strict=True))))
        h = self.linear("pool.one.embedding.0", torch.cat(parts))
        y = self.linear("last", silu(self.norm("pool.one.embedding.1", h)))
        return torch.sigmoid(y) if isinstance(self.model, Regressor) and self.model.sigmoid else y

    def parameters(self, h_v: dict[Vertex, Tensor], h_e: dict[Arrow, Tensor]) -> Tensor:
        """f(theta) as (copies, P): edges to weights, vertices to biases."""
        assert isinstance(self.model, Editor)
        parts = []
        for segment in self.a.segments:
            if segment.kind == "weight":
                height, width = kernel_shape(self.a.connections[segment.index])
                top, left = (self.kernel[0] - height) // 2, (self.kernel[1] - width) // 2
                found = []
                for arrow in self.arrows:
                    if arrow.connection == segment.index:
                        w = self.scale_eq("write.weight", self.edge_group(arrow), h_e[arrow])
                        w = w.view(self.model.copies, *self.kernel)
                        found.append(w[:, top : top + height, left : left + width].flatten(1))
                parts.append(torch.cat(found, 1))
            elif segment.kind == "bias":
                here = [v for v in self.vertices if v[0] == segment.index]
                parts.append(torch.stack([self.bias(v, h_v[v]) for v in here], 1))
            else:
                parts.append(h_v[0, 0].new_zeros(self.model.copies, segment.size))
        return torch.cat(parts, 1)

    def bias(self, v: Vertex, x: Tensor) -> Tensor:
        if self.a.roles[v[0]] == "hidden":
            return self.scale_eq("write.bias", self.groups[v[0]], x)
        return self.mlp("write.output_bias", x)


def arrows(a: Architecture) -> list[Arrow]:
    """All edges, in the order of the weights."""
    found = []
    for index, c in enumerate(a.connections):
        for i in range(a.layers[c.target].size):
            sources = range(a.layers[c.source].size) if c.dense else [i]
            found += [Arrow(index, (c.target, i), (c.source, j)) for j in sources]
    return found


def canon(x: Tensor) -> Tensor:
    """x / |x|, and 0 for x = 0."""
    return x / x.norm() if bool((x != 0).any()) else torch.zeros_like(x)


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)
