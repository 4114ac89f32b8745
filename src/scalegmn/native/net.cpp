// Gradients of the net in net.h, and the functions that Python calls.

#include <memory>

#include "net.h"

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
    for (const F *p : {d.out, static_cast<const F *>(d.first), static_cast<const F *>(d.last),
                       static_cast<const F *>(d.offset), static_cast<const F *>(d.weight),
                       static_cast<const F *>(d.bias), static_cast<const F *>(d.last_bias)})
        expect(p && aligned(p), "a gradient is missing");
    const bool given[] = {!n.edge || d.edge, !n.gamma || d.gamma, !n.vertex || d.vertex, !n.outer_target || d.outer_target,
                          !n.outer_source || d.outer_source, !n.target || d.target, !n.source || d.source,
                          !n.more || d.more};
    for (bool right : given) expect(right, "a gradient is missing");
}

// Sums over rows, in the order of their gradients; every thread has its own.
template <typename F>
struct Sums {
    static constexpr int count = 8;
    Index sizes[count];
    Array<F> data;
    F *edge, *gamma, *first, *last, *offset, *weight, *bias, *last_bias;

    explicit Sums(const Net<F> &n)
        : sizes{n.edge ? n.middle * n.inputs : 0, n.linear() * n.middle, n.hidden * n.middle, n.outputs * n.hidden,
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

template <typename F>
class BackwardWorker : Worker<F> {
    using Base = Worker<F>;
    using Base::e, Base::lanes, Base::m, Base::n, Base::tile, Base::to, Base::x, Base::z;

  public:
    Sums<F> sums;

    BackwardWorker(const Net<F> &net, Shared<F> &all, const Gradients<F> &gradients, Index rows)
        : Base(net, all, rows), sums(net), shared(all), d(gradients), ds_(rows * net.hidden),
          other_(rows * net.hidden), drho_(rows * net.outputs), dz_(rows * net.width()), dm_(rows * net.middle) {}

    void backward(Index start, Index rows) {
        Base::begin(start, rows, true);
        F *s = Base::s_.data(), *drho = drho_.data(), *ds = ds_.data();
        split();
        product<Into::set>(rows, n.hidden, n.outputs, drho, n.outputs, Index(1), to.last_back.matrix(), ds, n.hidden);
        const GateGradients<F> gate_sums{sums.offset, d.target, d.source, sums.weight, sums.bias, d.more, other_.data(),
                                         Base::mean, Base::mean2};
        gate_backward(to.gate, tile, Base::gate_rows, ds, s, dz_.data() + n.linear(), n.width(),
                      n.canonical ? Base::along : nullptr, gate_sums);
        product<Into::plus>(n.outputs, n.hidden, rows, drho, Index(1), n.outputs, rows_of(s, n.hidden), sums.last,
                            n.hidden);
        if (n.gamma) to_linear();
        n.scalar ? to_factors() : to_rows();
        if (n.outer_target) to_outer();
    }

    // What is left when all rows of networks [begin, end) are done: LayerNorm's centring, and the factored rows.
    void finish(Index begin, Index end) {
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
        centre(d.more, n.T * n.S);
        if (!n.scalar) return;
        const Index at = begin * n.S, rows = count * n.S, width = n.width(), k = n.inputs;
        const F *da = shared.da.data() + at * width;
        if (d.x) product<Into::plus>(rows, k, width, da, width, Index(1), to.stack_back.matrix(), d.x + at * k, k);
        product<Into::plus>(width, k, rows, da, Index(1), width, rows_of(n.x + at * k, k), sums.gamma, k);
    }

  private:
    // drho = out * g.
    void split() {
        const Index outputs = n.outputs, width = n.width();
        const bool linear = n.gamma;
        F *sum = sums.last_bias;
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
        const Index rows = tile.rows, width = n.width(), middle = n.middle;
        F *dz = dz_.data(), *dx = d.x ? d.x + tile.start * n.inputs : nullptr, *dm = n.vertex || !dx ? dm_.data() : dx;
        product<Into::plus>(width, middle, rows, dz, Index(1), width, rows_of(m, middle), sums.gamma, middle);
        if (!dx && !n.vertex) return;
        product<Into::set>(rows, middle, width, dz, width, Index(1), to.stack_back.matrix(), dm, middle);
        if (n.canonical) through_norm(dm);
        if (n.vertex) {
            F *de = n.edge || !dx ? dm : dx;
            to_vertices(dm, de);
            if (n.edge) {
                const Index k = n.inputs;
                product<Into::plus>(middle, k, rows, de, Index(1), middle, rows_of(x, k), sums.edge, k);
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
            const Index at = Base::sender(r) * middle;
            const F *y = n.vertex + at, *v = e + r * middle, *g = dm + r * middle;
            F *dy = d.vertex + at, *o = de + r * middle;
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
            F *o = shared.da.data() + source * width;
            for (Index i = 0; i < width; i += lanes) store(o + i, load(o + i) + load(g + i) * w);
            if (!d.x) continue;
            F *dx = d.x + source * inputs;
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
                F *dt = d.outer_target + t + i, *ds = d.outer_source + s + i;
                store(dt, load(dt) + v * load(n.outer_source + s + i));
                store(ds, load(ds) + v * load(n.outer_target + t + i));
            }
        }
    }

    Shared<F> &shared;
    const Gradients<F> &d;
    Array<F> ds_, other_, drho_, dz_, dm_;
};

// Rows of a tile: few enough for the caches, and a multiple of the rows that a product takes at once.
template <typename F>
Index tile_rows(const Net<F> &n) {
    const Index widest = std::max({n.inputs, n.middle, n.hidden, n.outputs});
    return std::min(std::max(Index(3072) / widest / 6 * 6, Index(12)), Index(96));
}

// Calls work(thread, first network, last network + 1) on every thread.
template <typename Work>
void over_networks(Index networks, int threads, Work work) {
    bool failed = false;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1) reduction(|| : failed)
    for (int t = 0; t < threads; ++t) {
        // Nothing may be thrown out of a thread.
        try {
            work(t, networks * t / threads, networks * (t + 1) / threads);
        } catch (const std::bad_alloc &) {
            failed = true;
        }
    }
    if (failed) throw std::bad_alloc();
}

// Calls work(first row, rows) for every tile of networks [begin, end).
template <typename F, typename Work>
void over_tiles(const Net<F> &n, Index begin, Index end, Work work) {
    const Index last = end * n.T * n.S, size = tile_rows(n);
    for (Index at = begin * n.T * n.S; at < last; at += size) work(at, std::min(size, last - at));
}

template <typename F>
void net_forward(const Net<F> &n, F *out) {
    Shared<F> shared(n, false);
    over_networks(n.B, n.threads, [&](int, Index begin, Index end) {
        Worker<F> worker(n, shared, tile_rows(n));
        shared.prepare(n, begin, end);
        over_tiles(n, begin, end, [&](Index start, Index rows) { worker.forward(start, rows, out); });
    });
}

template <typename F>
void net_backward(const Net<F> &n, const Gradients<F> &d) {
    Shared<F> shared(n, true);
    std::vector<std::unique_ptr<BackwardWorker<F>>> workers(n.threads);
    over_networks(n.B, n.threads, [&](int t, Index begin, Index end) {
        workers[t] = std::make_unique<BackwardWorker<F>>(n, shared, d, tile_rows(n));
        shared.prepare(n, begin, end);
        over_tiles(n, begin, end, [&](Index start, Index rows) { workers[t]->backward(start, rows); });
        workers[t]->finish(begin, end);
    });
    // One thread after the other: the order of summation does not depend on who is first.
    for (const auto &worker : workers) worker->sums.add_to(d);
    centre_columns(d.first, n.middle, n.channels);
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
    }

EXPORT(float)
EXPORT(double)
