// Gradients of the net in net.h, and the functions that Python calls, those of dense.h and unit.h among them.

#include "dense.h"
#include "unit.h"

namespace {

template <typename F>
struct Gradients {
    const F *out;
    F *x, *more;  // set, or with scalar x is added to
    F *vertex, *target, *source, *outer_target, *outer_source;  // added to
    F *edge, *gamma, *first, *last, *offset, *weight, *bias, *last_bias;  // added to
};

template <typename F>
void check(const Net<F> &n, const Gradients<F> &d) {
    check(n);
    expect(!n.first || (d.first && aligned(d.first)), "a gradient is missing");
    for (const F *p : {d.out, static_cast<const F *>(d.last), static_cast<const F *>(d.offset),
                       static_cast<const F *>(d.weight), static_cast<const F *>(d.bias),
                       static_cast<const F *>(d.last_bias)})
        expect(p && aligned(p), "a gradient is missing");
    const bool given[] = {!n.edge || d.edge, !n.gamma || d.gamma, !n.vertex || d.vertex, !n.outer_target || d.outer_target,
                          !n.outer_source || d.outer_source, !n.target || d.target, !n.source || d.source,
                          !n.more || d.more};
    for (bool right : given) expect(right, "a gradient is missing");
}

// Sums over rows, in the order of their gradients; every part has its own.
template <typename F>
struct Sums {
    static constexpr int count = 8;
    Index sizes[count];
    Array<F> data;
    F *edge, *gamma, *first, *last, *offset, *weight, *bias, *last_bias;

    explicit Sums(const Net<F> &n)
        : sizes{n.edge ? n.middle * n.inputs : 0, n.linear() * n.middle, n.first ? n.hidden * n.middle : 0,
                n.outputs * n.hidden,
                n.hidden, n.hidden, n.hidden, n.outputs} {
        Index total = 0;
        for (Index size : sizes) total += size;
        data.assign(total, F(0));
        F *at = data.data();
        F **parts[] = {&edge, &gamma, &first, &last, &offset, &weight, &bias, &last_bias};
        for (int i = 0; i < count; at += sizes[i++]) *parts[i] = at;
    }

    void add_to(const Gradients<F> &d) const {
        F *parts[] = {d.edge, d.gamma, d.first, d.last, d.offset, d.weight, d.bias, d.last_bias};
        const F *from = data.data();
        for (int i = 0; i < count; from += sizes[i++])
            for (Index j = 0; j < sizes[i]; ++j) parts[i][j] += from[j];
    }
};

// Gradients of Gamma and A from those of z = stack m; `signless` is |m| where signs are removed so.
template <typename F>
void stack_gradients(const Net<F> &n, Index rows, const F *dz, const F *m, const F *signless, Sums<F> &sums) {
    const Index width = n.width(), middle = n.middle, linear = n.linear();
    const Index together = n.absolute ? linear : width;
    product<Into::plus>(together, middle, rows, dz, Index(1), width, rows_of(m, middle), sums.gamma, middle);
    if (!n.absolute) return;
    const auto right = rows_of(signless, middle);
    product<Into::plus>(n.hidden, middle, rows, dz + linear, Index(1), width, right, sums.first, middle);
}

// Gradients of m from those of z = stack m; `signless` is overwritten.
template <Into into, typename F>
void from_stack(const Net<F> &n, const Shared<F> &to, Index rows, const F *dz, const F *m, F *signless, F *dm) {
    const Index width = n.width(), middle = n.middle, linear = n.linear();
    if (!n.absolute) {
        product<into>(rows, middle, width, dz, width, Index(1), to.stack_back.matrix(), dm, middle);
        return;
    }
    // Without Gamma the depth is 0, and so is the product.
    product<into>(rows, middle, linear, dz, width, Index(1), to.stack_back.matrix(), dm, middle);
    product<Into::set>(rows, middle, n.hidden, dz + linear, width, Index(1), to.first_back.matrix(), signless, middle);
    add_signed(m, signless, dm, rows * middle);
}

// What the rows of a part add to at sources: see `Gathered`.
template <typename F>
struct Places {
    F *source, *outer_source, *vertex, *x, *da;
};

template <typename F>
Gathered<F> gathered(const Net<F> &n, const Gradients<F> &d, Shared<F> &shared, const Part &part) {
    return {part, n.S, {{d.source, n.hidden}, {d.outer_source, n.outputs}, {n.by_target ? nullptr : d.vertex, n.middle},
                        {n.scalar ? d.x : nullptr, n.inputs}, {n.scalar ? shared.da.data() : nullptr, n.width()}}};
}

template <typename F>
class BackwardWorker : Worker<F> {
    using Base = Worker<F>;
    using Base::e, Base::lanes, Base::m, Base::n, Base::tile, Base::to, Base::x, Base::z;

  public:
    BackwardWorker(const Net<F> &net, const Shared<F> &all, const Gradients<F> &gradients, Index rows)
        : Base(net, all, rows), d(gradients), ds_(rows * net.hidden), other_(rows * net.hidden),
          drho_(rows * net.outputs), dz_(rows * net.width()), unread_(net.first ? 0 : rows * net.hidden),
          dm_(rows * net.middle) {}

    // From now on add to these.
    void into(Sums<F> &to_sums, Gathered<F> &to_places) {
        sums = &to_sums;
        Base::first_ = to_places.first;
        at = {to_places.at(0), to_places.at(1), n.by_target ? d.vertex : to_places.at(2), to_places.at(3),
              to_places.at(4)};
    }

    void backward(Index start, Index rows) {
        Base::begin(start, rows, true);
        F *s = Base::s_.data(), *drho = drho_.data(), *ds = ds_.data();
        split();
        product<Into::set>(rows, n.hidden, n.outputs, drho, n.outputs, Index(1), to.last_back.matrix(), ds, n.hidden);
        if (d.more) fetch(d.more + start * n.hidden, rows * n.hidden);
        const GateGradients<F> gate_sums{sums->offset, d.target, at.source, sums->weight, sums->bias, d.more,
                                         other_.data(), Base::mean, Base::mean2};
        F *dz = n.first ? dz_.data() + n.linear() : unread_.data();
        gate_backward(to.gate, tile, Base::gate_rows, ds, s, dz, n.first ? n.width() : n.hidden,
                      n.canonical ? Base::along : nullptr, gate_sums);
        product<Into::plus>(n.outputs, n.hidden, rows, drho, Index(1), n.outputs, rows_of(s, n.hidden), sums->last,
                            n.hidden);
        if (d.more) {
            F *more = d.more + start * n.hidden;
            centre_rows(more, more, rows, n.hidden, n.channels);
        }
        if (n.gamma) to_linear();
        n.scalar ? to_factors() : to_rows();
        if (n.outer_target) to_outer();
    }

  private:
    // drho = out * g.
    void split() {
        const Index outputs = n.outputs, width = n.width();
        const bool linear = n.gamma;
        F *sum = sums->last_bias;
        for (Index r = 0; r < tile.rows; ++r) {
            const F *o = d.out + Base::receiver(r) * outputs, *g = z + r * width;
            F *q = drho_.data() + r * outputs;
            for (Index i = 0; i < outputs; i += lanes) {
                const Vec<F> v = linear ? load(o + i) * load(g + i) : load(o + i);
                store(q + i, v);
                store(sum + i, load(sum + i) + v);
            }
        }
    }

    // dg = out * (rho + bias).
    void to_linear() {
        const Index outputs = n.outputs, width = n.width();
        F *rho = n.saved_rho ? n.saved_rho + tile.start * outputs : Base::rho_.data();
        if (!n.saved_rho) {
            product<Into::set>(tile.rows, outputs, n.hidden, Base::s_.data(), n.hidden, Index(1), to.last.matrix(), rho,
                               outputs);
        }
        const F *bias = n.last_bias;
        for (Index r = 0; r < tile.rows; ++r) {
            const F *o = d.out + Base::receiver(r) * outputs, *q = rho + r * outputs;
            F *g = dz_.data() + r * width;
            for (Index i = 0; i < outputs; i += lanes) store(g + i, load(o + i) * (load(q + i) + load(bias + i)));
        }
    }

    void to_rows() {
        const Index rows = tile.rows, middle = n.middle;
        if (!middle) return;
        F *dz = dz_.data(), *dx = d.x ? d.x + tile.start * n.inputs : nullptr, *dm = n.vertex || !dx ? dm_.data() : dx;
        if (dx) fetch(dx, rows * n.inputs);
        stack_gradients(n, rows, dz, m, Base::signless_.data(), *sums);
        if (!dx && !n.vertex) return;
        from_stack<Into::set>(n, to, rows, dz, m, Base::signless_.data(), dm);
        if (n.canonical) through_norm(dm);
        if (n.vertex) {
            F *de = n.edge || !dx ? dm : dx;
            to_vertices(dm, de);
            if (n.edge) {
                const Index k = n.inputs;
                product<Into::plus>(middle, k, rows, de, Index(1), middle, rows_of(x, k), sums->edge, k);
                if (dx) product<Into::set>(rows, k, middle, de, middle, Index(1), to.edge_back.matrix(), dx, k);
            }
        }
        if (!n.residual || !dx) return;
        const F *out = d.out + tile.start * n.outputs;
        for (Index i = 0; i < rows * n.outputs; i += lanes) store(dx + i, load(dx + i) + load(out + i));
    }

    // m = vertex * e.
    void to_vertices(const F *dm, F *de) {
        const Index middle = n.middle;
        for (Index r = 0; r < tile.rows; ++r) {
            const Index from = Base::sender(r) * middle;
            const F *y = n.vertex + from, *v = e + r * middle, *g = dm + r * middle;
            F *dy = at.vertex + from - (n.by_target ? 0 : tile.first) * middle, *o = de + r * middle;
            for (Index i = 0; i < middle; i += lanes) {
                const Vec<F> q = load(g + i);
                store(dy + i, load(dy + i) + q * load(v + i));
                store(o + i, q * load(y + i));
            }
        }
    }

    // The factor k = 1 / |m| depends on m: dk/dm = -k^3 m.
    void through_norm(F *dm) {
        for (Index r = 0; r < tile.rows; ++r) {
            const F k = Base::factor[r], slope = Base::along[r] * k;
            if (slope == 0) continue;
            for (Index i = 0; i < n.middle; ++i) dm[r * n.middle + i] -= (slope * (m[r * n.middle + i] * k)) * k;
        }
    }

    void to_factors() {
        const Index width = n.width(), inputs = n.inputs;
        for (Index r = 0; r < tile.rows; ++r) {
            const Index source = tile.source[r];
            const F w = n.scalar[tile.start + r], *g = dz_.data() + r * width;
            const F size = n.absolute ? std::abs(w) : w;
            F *o = at.da + (source - tile.first) * width;
            for (Index i = 0; i < n.linear(); i += lanes) store(o + i, load(o + i) + load(g + i) * w);
            for (Index i = n.linear(); i < width; i += lanes) store(o + i, load(o + i) + load(g + i) * size);
            if (!at.x) continue;
            F *dx = at.x + (source - tile.first) * inputs;
            if (n.residual) {
                const F *out = d.out + (tile.start + r) * inputs;
                for (Index i = 0; i < inputs; i += lanes) store(dx + i, load(dx + i) + load(out + i) * w);
            }
            const F k = Base::factor[r], slope = Base::along[r] * k;
            if (!n.canonical || slope == 0) continue;
            const F *v = n.x + source * inputs;
            for (Index i = 0; i < inputs; ++i) dx[i] -= slope * (v[i] * w * k) * (w * k);
        }
    }

    void to_outer() {
        for (Index r = 0; r < tile.rows; ++r) {
            const Index t = tile.target[r] * n.outputs, s = tile.source[r] * n.outputs;
            const F *g = dz_.data() + r * n.width();
            for (Index i = 0; i < n.outputs; i += lanes) {
                const Vec<F> v = load(g + i);
                F *dt = d.outer_target + t + i, *ds = at.outer_source + s - tile.first * n.outputs + i;
                store(dt, load(dt) + v * load(n.outer_source + s + i));
                store(ds, load(ds) + v * load(n.outer_target + t + i));
            }
        }
    }

    const Gradients<F> &d;
    Sums<F> *sums = nullptr;
    Places<F> at{};
    Array<F> ds_, other_, drho_, dz_, unread_, dm_;
};

// What is left when all rows of networks [begin, end) are done: LayerNorm's centring, and the factored rows.
template <typename F>
void finish(const Net<F> &n, const Gradients<F> &d, const Shared<F> &shared, Index begin, Index end, Sums<F> &sums) {
    const Index h = n.hidden, count = end - begin;
    if (d.target) {
        const F *from = d.target + begin * n.T * h;
        for (Index r = 0; r < count * n.T; ++r)
            for (Index i = 0; i < h; ++i) sums.offset[i] += from[r * h + i];
    }
    const auto centre = [&](F *x, Index rows) {
        if (x) centre_rows(x + begin * rows * h, x + begin * rows * h, count * rows, h, n.channels);
    };
    centre(d.target, n.T);
    centre(d.source, n.S);
    if (!n.scalar) return;
    const Index at = begin * n.S, rows = count * n.S, k = n.inputs;
    const F *da = shared.da.data() + at * n.width(), *x = n.x + at * k;
    Array<F> signless(n.absolute ? rows * k : 0);
    if (n.absolute) absolute_of(x, signless.data(), rows * k);
    stack_gradients(n, rows, da, x, signless.data(), sums);
    if (d.x) from_stack<Into::plus>(n, shared, rows, da, x, signless.data(), d.x + at * k);
}

template <typename F>
void net_forward(const Net<F> &n, F *out) {
    Shared<F> shared(n, false);
    const Index tile = tile_rows(n.widest());
    const auto parts = parts_of(n, 64, 64);
    const bool pieces = parts.front().piece;
    std::vector<std::unique_ptr<Worker<F>>> workers(n.threads);
    std::vector<std::unique_ptr<Gathered<F>>> places(parts.size());
    if (pieces) over(n.B, n.threads, [&](int, Index b) { shared.prepare(n, b, b + 1); });
    over(parts.size(), n.threads, [&](int t, Index i) {
        const Part &part = parts[i];
        if (!workers[t]) workers[t] = std::make_unique<Worker<F>>(n, shared, tile);
        if (!pieces) shared.prepare(n, part.begin, part.end);
        places[i].reset(new Gathered<F>(part, n.S, {{n.reduce == SOURCE ? out : nullptr, n.outputs}}));
        F *to = n.reduce == SOURCE ? places[i]->at(0) : out;
        const Index first = places[i]->first;
        over_tiles(part, tile, [&](Index start, Index rows) { workers[t]->forward(start, rows, to, first); });
    });
    for (const auto &place : places) place->add();
}

template <typename F>
void net_backward(const Net<F> &n, const Gradients<F> &d) {
    Shared<F> shared(n, true);
    const Index tile = tile_rows(n.widest());
    const auto parts = parts_of(n, least_rows(n.rows()), 32);
    const bool pieces = parts.front().piece;
    std::vector<std::unique_ptr<BackwardWorker<F>>> workers(n.threads);
    std::vector<std::unique_ptr<Sums<F>>> sums(parts.size());
    std::vector<std::unique_ptr<Gathered<F>>> places(parts.size());
    if (pieces) over(n.B, n.threads, [&](int, Index b) { shared.prepare(n, b, b + 1); });
    over(parts.size(), n.threads, [&](int t, Index i) {
        const Part &part = parts[i];
        if (!workers[t]) workers[t] = std::make_unique<BackwardWorker<F>>(n, shared, d, tile);
        if (!pieces) shared.prepare(n, part.begin, part.end);
        sums[i] = std::make_unique<Sums<F>>(n);
        places[i] = std::make_unique<Gathered<F>>(gathered(n, d, shared, part));
        workers[t]->into(*sums[i], *places[i]);
        over_tiles(part, tile, [&](Index start, Index rows) { workers[t]->backward(start, rows); });
        if (!pieces) finish(n, d, shared, part.begin, part.end, *sums[i]);
    });
    if (pieces) {
        const Index each = parts.size() / n.B;
        over(n.B, n.threads, [&](int, Index b) {
            for (Index i = b * each; i < (b + 1) * each; ++i) places[i]->add();
            finish(n, d, shared, b, b + 1, *sums[b * each]);
        });
    }
    const Index total = sums[0]->data.size(), block = 4096;
    over((total + block - 1) / block, n.threads, [&](int, Index i) {
        F *to = sums[0]->data.data();
        for (std::size_t part = 1; part < sums.size(); ++part) {
            const F *from = sums[part]->data.data();
            for (Index j = i * block; j < std::min(total, (i + 1) * block); ++j) to[j] += from[j];
        }
    });
    sums[0]->add_to(d);
    if (n.first) centre_columns(d.first, n.middle, n.channels);
    centre_rows(d.offset, d.offset, 1, n.hidden, n.channels);
}

}  // namespace

// Without rows there is nothing to do, and tensors without numbers have no address.
#define EXPORT(F)                                                                     \
    extern "C" const char *net_forward_##F(const Net<F> *n, F *out) {                 \
        return guarded([&] {                                                          \
            if (!n->rows()) return;                                                   \
            check(*n);                                                                \
            expect(out && aligned(out), "the result is missing");                     \
            net_forward(*n, out);                                                     \
        });                                                                           \
    }                                                                                 \
    extern "C" const char *net_backward_##F(const Net<F> *n, const Gradients<F> *d) { \
        return guarded([&] {                                                          \
            if (!n->rows()) return;                                                   \
            check(*n, *d);                                                            \
            net_backward(*n, *d);                                                     \
        });                                                                           \
    }                                                                                 \
    extern "C" const char *dense_forward_##F(const Net<F> *n, F *out) {                \
        return guarded([&] {                                                          \
            check_dense(*n);                                                          \
            expect(out && aligned(out), "the result is missing");                     \
            dense_forward(*n, out);                                                   \
        });                                                                           \
    }                                                                                 \
    extern "C" const char *dense_backward_##F(const Net<F> *n, const DenseGradients<F> *d) { \
        return guarded([&] {                                                          \
            check_dense(*n);                                                          \
            expect(d->out && aligned(d->out) && aligned(d->x) && d->edge && d->vertex, "a gradient is missing"); \
            dense_backward(*n, *d);                                                   \
        });                                                                           \
    }                                                                                 \
    extern "C" const char *units_##F(const Units<F> *u) {                             \
        return guarded([&] {                                                          \
            if (!u->rows) return;                                                     \
            check(*u);                                                                \
            units(*u);                                                                \
        });                                                                           \
    }

EXPORT(float)
EXPORT(double)
