// A scale equivariant net on the edges of a connection, or on vertices, from the first product to the last sum.
//
// An edge block has B networks, T targets and S sources; row (b, t, s) is a vector. A tile of rows goes through the whole
// net while it is in the nearest caches. What threads share out, and in which order sums are taken, is in parts.h.

#pragma once

#include "gate.h"

namespace {

enum Reduce : int { NONE, TARGET, SOURCE };

template <typename F>
struct Net {
    Index B, T, S;
    Index inputs, middle, hidden, outputs, channels;
    const F *x;       // (B, T, S, inputs); with scalar (B, S, inputs), and rows are scalar[b, t, s] x[b, s]; inputs may be 0
    const F *scalar;  // (B, T, S) or null
    const F *edge;    // (middle, inputs) or null
    const F *vertex;  // (B, n, middle) or null: m = vertex * (edge x)
    const F *gamma;   // (outputs, middle), or null: then the result is rho alone
    const F *first;   // (hidden, middle), or null: then the gate sees contexts and `more` only
    const F *offset, *target, *source, *weight, *bias;
    const F *more;    // (B, T, S, hidden) or null: added to what the gate takes from m
    const F *last, *last_bias, *outer_target, *outer_source;
    F *saved_edge, *saved_z, *saved_rho;  // what the backward pass reads instead of computing it again, or null
    F eps, drop;
    std::uint32_t seed;
    int symmetric, absolute, canonical, by_target, reduce, residual, threads;

    Index linear() const { return gamma ? outputs : 0; }
    Index width() const { return linear() + (first ? hidden : 0); }
    Index rows() const { return B * T * S; }
    Index widest() const { return std::max({inputs, middle, hidden, outputs}); }
};

// What Python must not get wrong: sizes that fit together, pointers that belong to them, options that exist.
template <typename F>
void check(const Net<F> &n) {
    constexpr Index most = Index(1) << 31, block = Vector<F>::block;
    for (Index size : {n.B, n.T, n.S}) expect(0 < size && size < most, "B, T and S must be 1 or more");
    for (Index width : {n.inputs, n.middle, n.hidden, n.outputs})
        expect(0 <= width && width < most && width % block == 0, "widths must be multiples of two vectors");
    expect(n.hidden && n.outputs && !n.inputs == !n.middle, "widths must not be 0, but for that of vectors");
    expect(n.inputs || (!n.scalar && !n.gamma && !n.first), "without vectors there is rho alone");
    expect(n.first || (!n.canonical && !n.symmetric && !n.absolute), "signs and scales are those of the first map");
    expect(0 < n.channels && n.channels <= n.hidden, "channels must be 1 to hidden");
    for (const F *p : {n.offset, n.weight, n.bias, n.last, n.last_bias}) expect(p, "an array is missing");
    expect(!n.inputs || n.x, "an array is missing");
    for (const F *p : {n.x, n.scalar, n.edge, n.vertex, n.gamma, n.first, n.offset, n.target, n.source, n.weight, n.bias,
                       n.more, n.last, n.last_bias, n.outer_target, n.outer_source})
        expect(aligned(p), "an array does not begin at a number");
    expect(n.edge || n.middle == n.inputs, "middle must be inputs where there is no edge matrix");
    expect(!n.edge || n.vertex, "an edge matrix needs vertices");
    expect(!n.scalar || !n.vertex, "factored rows have no vertices");
    expect(!n.outer_target == !n.outer_source, "an outer product needs both factors");
    expect(!n.outer_target || n.gamma, "an outer product needs gamma");
    expect(!n.symmetric || !n.absolute, "signs are removed in one way");
    expect(!n.residual || (n.reduce == NONE && n.inputs == n.outputs), "a residual needs as many outputs as inputs");
    expect(NONE <= n.reduce && n.reduce <= SOURCE, "reduce must be 0, 1 or 2");
    expect(n.eps > 0 && 0 <= n.drop && n.drop < 1, "eps must be positive and drop from 0 to 1");
    expect(0 < n.threads && n.threads <= 4096, "threads must be 1 to 4096");
}

// 1 / |x|, and 0 for x = 0; where a square might over- or underflow a power of two is taken out first, to the same bytes.
template <typename F>
inline F inverse_norm(const F *x, Index width) {
    using Limits = std::numeric_limits<F>;
    F largest = 0, square = 0;
#pragma omp simd reduction(+ : square)
    for (Index i = 0; i < width; ++i) square += x[i] * x[i];
    if (square >= Limits::min() / (Limits::epsilon() * Limits::epsilon()) && square <= Limits::max())
        return 1 / std::sqrt(square);
    square = 0;
#pragma omp simd reduction(max : largest)
    for (Index i = 0; i < width; ++i) largest = std::max(largest, std::abs(x[i]));
    // Subnormal numbers have lost their digits: they count as 0.
    if (!(largest >= Limits::min())) return 0;
    const F unit = std::ldexp(F(1), -std::ilogb(largest));
#pragma omp simd reduction(+ : square)
    for (Index i = 0; i < width; ++i) square += (x[i] * unit) * (x[i] * unit);
    return unit / std::sqrt(square);
}

// Subtract the mean over the first `channels` numbers of every row; what is padded stays 0. to may be from.
template <typename F>
void centre_rows(const F *from, F *to, Index rows, Index width, Index channels) {
    for (Index r = 0; r < rows; ++r, from += width, to += width) {
        F mean = 0;
#pragma omp simd reduction(+ : mean)
        for (Index i = 0; i < channels; ++i) mean += from[i];
        mean /= channels;
#pragma omp simd
        for (Index i = 0; i < channels; ++i) to[i] = from[i] - mean;
        for (Index i = channels; i < width; ++i) to[i] = 0;
    }
}

// The same over the first `channels` rows of a matrix.
template <typename F>
void centre_columns(F *x, Index width, Index channels) {
    Array<F> mean(width, F(0));
    for (Index r = 0; r < channels; ++r)
        for (Index i = 0; i < width; ++i) mean[i] += x[r * width + i] / channels;
    for (Index r = 0; r < channels; ++r)
        for (Index i = 0; i < width; ++i) x[r * width + i] -= mean[i];
}

// |x|, number by number.
template <typename F>
void absolute_of(const F *from, F *to, Index count) {
    for (Index i = 0; i < count; i += Vector<F>::size) {
        const Vec<F> v = load(from + i);
        store(to + i, v < F(0) ? -v : v);
    }
}

// g where x > 0, -g where x < 0 and 0 where x = 0: the gradient of |x|, added to `to`.
template <typename F>
void add_signed(const F *x, const F *g, F *to, Index count) {
    for (Index i = 0; i < count; i += Vector<F>::size) {
        const Vec<F> v = load(x + i), d = load(g + i), zero{};
        store(to + i, load(to + i) + (v > F(0) ? d : v < F(0) ? -d : zero));
    }
}

// What all threads read: packed weights, everything that enters LayerNorm with mean 0, and rows that are factored.
//
// The stack is Gamma above A. With absolute values the two have different factors, m and |m|, and are two products.
template <typename F>
struct Shared {
    Packed<F> edge, stack, last, edge_back, stack_back, first_back, last_back;
    Array<F> offset, target, source;
    Array<F> a, da, norm;  // for x[b, s]: stack x, its gradient, 1 / |x|
    Gate<F> gate;

    Shared(const Net<F> &n, bool backward) : offset(n.hidden) {
        Array<F> matrix(n.width() * n.middle);
        if (n.gamma) std::copy(n.gamma, n.gamma + n.outputs * n.middle, matrix.data());
        F *first = matrix.data() + n.linear() * n.middle;
        if (n.first) {
            std::copy(n.first, n.first + n.hidden * n.middle, first);
            centre_columns(first, n.middle, n.channels);
        }
        centre_rows(n.offset, offset.data(), 1, n.hidden, n.channels);
        // Products that are stored are not computed again.
        if (n.edge && !(backward && n.saved_edge)) edge.pack(n.edge, n.middle, n.inputs, true);
        if (!(backward && n.saved_z)) stack.pack(matrix.data(), n.width(), n.middle, true);
        if (!backward || (n.gamma && !n.saved_rho)) last.pack(n.last, n.outputs, n.hidden, true);
        if (backward) {
            if (n.edge) edge_back.pack(n.edge, n.middle, n.inputs, false);
            const Index together = n.absolute ? n.linear() : n.width();
            if (together) stack_back.pack(matrix.data(), together, n.middle, false);
            if (n.absolute) first_back.pack(first, n.hidden, n.middle, false);
            last_back.pack(n.last, n.outputs, n.hidden, false);
        }
        if (n.target) target.resize(n.B * n.T * n.hidden);
        if (n.source) source.resize(n.B * n.S * n.hidden);
        if (n.scalar) {
            a.resize(n.B * n.S * n.width());
            norm.resize(n.B * n.S);
            if (backward) da.assign(n.B * n.S * n.width(), F(0));
        }
        gate = {offset.data(), n.target ? target.data() : nullptr, n.source ? source.data() : nullptr, n.weight, n.bias,
                n.hidden, n.channels, n.eps, n.drop, n.seed, n.symmetric, false};
        gate.bounded = is_bounded(gate);
    }

    // z = stack m for rows of m; `signless` is room for |m|, and holds it afterwards.
    void to_stack(const Net<F> &n, Index rows, const F *m, F *signless, F *z) const {
        const Index width = n.width(), middle = n.middle, linear = n.linear();
        const auto matrix = stack.matrix();
        if (!n.absolute) {
            product<Into::set>(rows, width, middle, m, middle, Index(1), matrix, z, width);
            return;
        }
        absolute_of(m, signless, rows * middle);
        const Panels<F> below{matrix.at(linear), middle};
        product<Into::set>(rows, linear, middle, m, middle, Index(1), matrix, z, width);
        product<Into::set>(rows, n.hidden, middle, signless, middle, Index(1), below, z + linear, width);
    }

    // Fill what belongs to networks [begin, end).
    void prepare(const Net<F> &n, Index begin, Index end) {
        const Index h = n.hidden, count = end - begin;
        const auto centre = [&](const F *from, Array<F> &to, Index rows) {
            const Index at = begin * rows * h;
            if (from) centre_rows(from + at, to.data() + at, count * rows, h, n.channels);
        };
        centre(n.target, target, n.T);
        centre(n.source, source, n.S);
        if (!n.scalar) return;
        const Index at = begin * n.S, rows = count * n.S;
        Array<F> signless(n.absolute ? rows * n.inputs : 0);
        to_stack(n, rows, n.x + at * n.inputs, signless.data(), a.data() + at * n.width());
        for (Index r = at; r < at + rows; ++r) norm[r] = n.canonical ? inverse_norm(n.x + r * n.inputs, n.inputs) : F(1);
    }
};

// One thread's place to work: the rows of a tile.
template <typename F>
class Worker {
  public:
    Worker(const Net<F> &net, const Shared<F> &shared, Index rows)
        : n(net), to(shared), targets(rows), sources(rows), edge_(rows * net.middle), m_(rows * net.middle),
          signless_(net.absolute ? rows * net.middle : 0), more_(net.more ? rows * net.hidden : 0),
          zeros_(net.first ? 0 : net.hidden, F(0)), z_(rows * net.width()), p_(rows * net.hidden), s_(rows * net.hidden), rho_(rows * net.outputs),
          numbers(6 * rows) {
        factor = numbers.data();
        along = factor + rows;
        plus = along + rows;
        minus = plus + rows;
        mean = minus + rows;
        mean2 = mean + rows;
    }

    // Write to `out`, or where it gathers at sources, to rows from the source `first` on.
    void forward(Index start, Index rows, F *out, Index first) {
        first_ = first;
        begin(start, rows, false);
        const Index outputs = n.outputs, width = n.width();
        F *rho = n.saved_rho ? n.saved_rho + start * outputs : rho_.data();
        if (n.saved_rho) fetch(rho, rows * outputs);
        if (n.reduce == NONE) fetch(out + start * outputs, rows * outputs);
        gate_forward(to.gate, tile, gate_rows, s_.data());
        const F *bias = n.last_bias;
        const auto last = to.last.matrix();
        if (!n.gamma && n.reduce == NONE) {
            F *o = out + start * outputs;
            product<Into::biased>(rows, outputs, n.hidden, s_.data(), n.hidden, Index(1), last, o, outputs, bias);
            if (n.residual) add_rows(o);
            return;
        }
        product<Into::set>(rows, outputs, n.hidden, s_.data(), n.hidden, Index(1), last, rho, outputs);
        const bool linear = n.gamma, add = n.reduce != NONE;
        for (Index r = 0; r < rows; ++r) {
            const F *g = z + r * width, *q = rho + r * outputs;
            F *o = out + (receiver(r) - (n.reduce == SOURCE ? first : 0)) * outputs;
            for (Index i = 0; i < outputs; i += lanes) {
                Vec<F> v = load(q + i) + load(bias + i);
                if (linear) v *= load(g + i);
                if (add) v += load(o + i);
                store(o + i, v);
            }
        }
        if (n.residual) add_rows(out + start * outputs);
    }

  protected:
    static constexpr Index lanes = Vector<F>::size;

    // Everything before the gate.
    void begin(Index start, Index rows, bool again) {
        tile = {start, rows, targets.data(), sources.data(), first_};
        Index target = start / n.S, s = start % n.S, t = target % n.T, first = target / n.T * n.S;
        for (Index r = 0; r < rows; ++r) {
            targets[r] = target;
            sources[r] = first + s;
            if (++s < n.S) continue;
            s = 0;
            ++target;
            if (++t < n.T) continue;
            t = 0;
            first += n.S;
        }
        n.scalar ? factored() : transform(again);
        if (n.more) centre_rows(n.more + start * n.hidden, more_.data(), rows, n.hidden, n.channels);
        // Without a first map all rows have the same zeros.
        gate_rows = {n.first ? z + n.linear() : zeros_.data(), n.first ? n.width() : 0, factor,
                     n.more ? more_.data() : nullptr, p_.data(), plus, minus};
        moments(to.gate, tile, gate_rows);
    }

    // z = w a, and 1 / |w x|: where the product of two small factors is subnormal it counts as 0.
    void factored() {
        const Index width = n.width();
        for (Index r = 0; r < tile.rows; ++r) {
            const F w = n.scalar[tile.start + r], *from = to.a.data() + sources[r] * width;
            F *q = z_.data() + r * width;
            const F size = n.absolute ? std::abs(w) : w;
            for (Index i = 0; i < n.linear(); i += lanes) store(q + i, load(from + i) * w);
            for (Index i = n.linear(); i < width; i += lanes) store(q + i, load(from + i) * size);
            const F inverse = to.norm[sources[r]] / std::abs(w);
            factor[r] = !n.canonical ? F(1) : inverse <= 1 / std::numeric_limits<F>::min() ? inverse : F(0);
        }
        z = z_.data();
        if (n.outer_target) add_outer(z_.data());
    }

    // e = edge x, m = vertex * e and z = stack m.
    void transform(bool again) {
        const Index rows = tile.rows, middle = n.middle;
        z = z_.data();
        std::fill(factor, factor + rows, F(1));
        if (!middle) return;
        x = n.x + tile.start * n.inputs;
        e = x;
        if (n.edge) {
            F *at = n.saved_edge ? n.saved_edge + tile.start * middle : edge_.data();
            if (!again && n.saved_edge) fetch(at, rows * middle);
            if (!again || !n.saved_edge) {
                product<Into::set>(rows, middle, n.inputs, x, n.inputs, Index(1), to.edge.matrix(), at, middle);
            }
            e = at;
        }
        m = e;
        if (n.vertex) {
            for (Index r = 0; r < rows; ++r) {
                const F *y = n.vertex + sender(r) * middle, *v = e + r * middle;
                F *o = m_.data() + r * middle;
                for (Index i = 0; i < middle; i += lanes) store(o + i, load(y + i) * load(v + i));
            }
            m = m_.data();
        }
        F *at = n.saved_z ? n.saved_z + tile.start * n.width() : z_.data();
        if (!again && n.saved_z) fetch(at, rows * n.width());
        if (!again || !n.saved_z) {
            to.to_stack(n, rows, m, signless_.data(), at);
            if (n.outer_target) add_outer(at);
        } else if (n.absolute) {
            absolute_of(m, signless_.data(), rows * middle);
        }
        z = at;
        if (n.canonical)
            for (Index r = 0; r < rows; ++r) factor[r] = inverse_norm(m + r * middle, middle);
    }

    void add_outer(F *at) {
        for (Index r = 0; r < tile.rows; ++r, at += n.width()) {
            const F *t = n.outer_target + targets[r] * n.outputs, *s = n.outer_source + sources[r] * n.outputs;
            for (Index i = 0; i < n.outputs; i += lanes) store(at + i, load(at + i) + load(t + i) * load(s + i));
        }
    }

    void add_rows(F *out) {
        const Index width = n.outputs;
        for (Index r = 0; r < tile.rows; ++r, out += width) {
            const F w = n.scalar ? n.scalar[tile.start + r] : F(1);
            const F *from = n.scalar ? n.x + sources[r] * width : x + r * width;
            for (Index i = 0; i < width; i += lanes) store(out + i, load(out + i) + load(from + i) * w);
        }
    }

    Index sender(Index r) const { return n.by_target ? targets[r] : sources[r]; }
    Index receiver(Index r) const {
        return n.reduce == NONE ? tile.start + r : n.reduce == TARGET ? targets[r] : sources[r];
    }

    const Net<F> &n;
    const Shared<F> &to;
    std::vector<Index> targets, sources;
    Array<F> edge_, m_, signless_, more_, zeros_, z_, p_, s_, rho_, numbers;
    Tile tile{};
    Index first_ = 0;
    GateRows<F> gate_rows{};
    const F *x = nullptr, *e = nullptr, *m = nullptr, *z = nullptr;
    F *factor, *along, *plus, *minus, *mean, *mean2;
};

}  // namespace
