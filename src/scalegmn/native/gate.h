// The gate s = silu(LN(p + v)), plus silu(LN(p - v)) if it symmetrises, with v = k z + more, on a tile of rows.
//
// Everything that enters LayerNorm has mean 0 already: its centring is a linear map that callers fold into the weights.

#pragma once

#include "products.h"

namespace {

// Some consecutive edges: the rows (b, t) and (b, s) of the vertices at their ends. What is gathered at sources begins
// with the row `first`.
struct Tile {
    Index start, rows;
    const Index *target, *source;
    Index first;
};

template <typename F>
struct Gate {
    const F *offset;          // (width)
    const F *target;          // (B, T, width) or null
    const F *source;          // (B, S, width) or null
    const F *weight, *bias;   // LayerNorm (width)
    Index width, channels;    // with and without padding
    F eps, drop;
    std::uint32_t seed;
    int symmetric;
    bool bounded;
};

// What the two passes over a tile share; z has stride ldz, everything else `width`.
template <typename F>
struct GateRows {
    const F *z;
    Index ldz;
    const F *factor;  // k of every row
    const F *more;    // added to k z, or null
    F *p;
    F *plus, *minus;  // 1 / std of p + v and of p - v

    // v of one row; by value, since stores to vectors might change anything that is behind a pointer.
    auto row(Index r, Index width) const {
        return [z = z + r * ldz, more = more ? more + r * width : nullptr, k = factor[r]](Index i) {
            const Vec<F> scaled = load(z + i) * k;
            return more ? scaled + load(more + i) : scaled;
        };
    }
};

inline std::uint32_t mix(std::uint32_t v) {
    v ^= v >> 16;
    v *= 0x85ebca6bu;
    v ^= v >> 13;
    v *= 0xc2b2ae35u;
    return v ^ (v >> 16);
}

template <typename F>
inline void mask(const Gate<F> &g, const Tile &tile, F *s) {
    const F scale = 1 / (1 - g.drop);
    const std::uint32_t threshold = static_cast<std::uint32_t>(static_cast<double>(g.drop) * 4294967295.0);
    for (Index r = 0; r < tile.rows; ++r, s += g.width) {
        const Index row = tile.start + r;
        const std::uint32_t base = mix(static_cast<std::uint32_t>(row) ^ g.seed) ^ static_cast<std::uint32_t>(row >> 32);
#pragma omp simd
        for (Index i = 0; i < g.width; ++i) {
            const std::uint32_t v = mix(base + static_cast<std::uint32_t>(i) * 0x9e3779b9u);
            s[i] *= v >= threshold ? scale : F(0);
        }
    }
}

// p = offset + target + source, and the standard deviations.
template <bool symmetric, typename F>
void moments_of(const Gate<F> &g, const Tile &tile, GateRows<F> &rows) {
    constexpr Index n = Vector<F>::size;
    const Index width = g.width;
    const F *offset = g.offset;
    for (Index r = 0; r < tile.rows; ++r) {
        const F *t = g.target ? g.target + tile.target[r] * g.width : nullptr;
        const F *s = g.source ? g.source + tile.source[r] * g.width : nullptr;
        F *p = rows.p + r * g.width;
        const auto v_at = rows.row(r, width);
        // Not as |p|^2 + |v|^2 and twice their product, which would cancel where one is nearly minus the other.
        Vec<F> sum{}, difference{};
        for (Index i = 0; i < width; i += n) {
            Vec<F> v = load(offset + i);
            if (t) v += load(t + i);
            if (s) v += load(s + i);
            const Vec<F> u = v_at(i);
            store(p + i, v);
            sum += (v + u) * (v + u);
            if (symmetric) difference += (v - u) * (v - u);
        }
        rows.plus[r] = sum_of(sum);
        rows.minus[r] = sum_of(difference);
    }
    const F share = F(1) / g.channels;
#pragma omp simd
    for (Index r = 0; r < tile.rows; ++r) {
        rows.plus[r] = 1 / std::sqrt(rows.plus[r] * share + g.eps);
        rows.minus[r] = 1 / std::sqrt(rows.minus[r] * share + g.eps);
    }
}

template <typename F>
void moments(const Gate<F> &g, const Tile &tile, GateRows<F> &rows) {
    g.symmetric ? moments_of<true>(g, tile, rows) : moments_of<false>(g, tile, rows);
}

// LayerNorm's result is at most sqrt(channels): usually the exponentials need not be guarded.
template <typename F>
bool is_bounded(const Gate<F> &g) {
    F largest = 0;
    for (Index i = 0; i < g.width; ++i) {
        largest = std::max(largest, std::abs(g.weight[i]) * std::sqrt(F(g.channels)) + std::abs(g.bias[i]));
    }
    return largest < 39;
}

// Sigmoids of both signs. Passes over a tile are short, so that many vectors are under way at once.
template <bool bounded, bool symmetric, typename F>
void sigmoids(const Gate<F> &g, const Tile &tile, const GateRows<F> &rows, F *sigma, F *tau) {
    const Index width = g.width;
    const F *weight = g.weight, *bias = g.bias;
    for (Index r = 0; r < tile.rows; ++r) {
        const F *p = rows.p + r * width, plus = rows.plus[r], minus = rows.minus[r];
        F *one_over = sigma + r * width, *other_over = tau + r * width;
        const auto v_at = rows.row(r, width);
        for (Index i = 0; i < width; i += Vector<F>::size) {
            const Vec<F> w = load(weight + i), c = load(bias + i), u = load(p + i), v = v_at(i);
            const Vec<F> one = exponential_of_minus<bounded>((u + v) * plus * w + c) + F(1);
            if (symmetric) {
                const Vec<F> two = exponential_of_minus<bounded>((u - v) * minus * w + c) + F(1);
                const Vec<F> inverse = F(1) / (one * two);
                store(one_over + i, inverse * two);
                store(other_over + i, inverse * one);
            } else {
                store(one_over + i, F(1) / one);
            }
        }
    }
}

template <bool bounded, bool symmetric, typename F>
void gate_forward_of(const Gate<F> &g, const Tile &tile, const GateRows<F> &rows, F *s) {
    const Index width = g.width;
    const F *weight = g.weight, *bias = g.bias;
    for (Index r = 0; r < tile.rows; ++r) {
        const F *p = rows.p + r * width, plus = rows.plus[r], minus = rows.minus[r];
        F *o = s + r * width;
        const auto v_at = rows.row(r, width);
        for (Index i = 0; i < width; i += Vector<F>::size) {
            const Vec<F> w = load(weight + i), c = load(bias + i), u = load(p + i), v = v_at(i);
            const Vec<F> a = (u + v) * plus * w + c;
            const Vec<F> one = exponential_of_minus<bounded>(a) + F(1);
            if (symmetric) {
                const Vec<F> b = (u - v) * minus * w + c;
                const Vec<F> two = exponential_of_minus<bounded>(b) + F(1);
                store(o + i, (a * two + b * one) / (one * two));
            } else {
                store(o + i, a / one);
            }
        }
    }
    if (g.drop > 0) mask(g, tile, s);
}

template <typename F>
struct GateGradients {
    F *offset, *target, *source, *weight, *bias;  // sums; with target the offset's is not written
    F *more;                                      // of all rows; target, source and more may be null
    F *other;                                     // scratch (rows x width)
    F *mean, *mean2;                              // scratch (rows)
};

// From ds and the sigmoids, which lie in s and to.other: s again, LayerNorm's gradients of both signs into ds and
// to.other, and their means along the normal vectors.
template <bool symmetric, typename F>
void normal_gradients(const Gate<F> &g, const Tile &tile, const GateRows<F> &rows, F *ds, F *s,
                      const GateGradients<F> &to) {
    const Index width = g.width;
    const F *weight = g.weight, *bias = g.bias, share = F(1) / g.channels;
    F *sum_weight = to.weight, *sum_bias = to.bias;
    for (Index r = 0; r < tile.rows; ++r) {
        const F *p = rows.p + r * width, plus = rows.plus[r], minus = rows.minus[r];
        F *o = s + r * width, *d = ds + r * width, *e = to.other + r * width;
        const auto v_at = rows.row(r, width);
        Vec<F> dot{}, dot2{};
        for (Index i = 0; i < width; i += Vector<F>::size) {
            const Vec<F> w = load(weight + i), c = load(bias + i), u = load(p + i), v = v_at(i), grad = load(d + i);
            const Vec<F> x = (u + v) * plus, sigma = load(o + i);
            Vec<F> silu = (x * w + c) * sigma;
            const Vec<F> da = grad * (sigma + silu * (F(1) - sigma)), dx = da * w;
            Vec<F> sum_w = da * x, sum_b = da;
            dot += dx * x;
            store(d + i, dx);
            if (symmetric) {
                const Vec<F> y = (u - v) * minus, tau = load(e + i), last = (y * w + c) * tau;
                const Vec<F> db = grad * (tau + last * (F(1) - tau)), dy = db * w;
                silu += last;
                sum_w += db * y;
                sum_b += db;
                dot2 += dy * y;
                store(e + i, dy);
            }
            store(o + i, silu);
            store(sum_weight + i, load(sum_weight + i) + sum_w);
            store(sum_bias + i, load(sum_bias + i) + sum_b);
        }
        to.mean[r] = sum_of(dot) * share * plus;
        to.mean2[r] = sum_of(dot2) * share * minus;
    }
}

// From LayerNorm's gradients those at z (dz, stride ldd), at k (along) and at p.
template <bool symmetric, typename F>
void input_gradients(const Gate<F> &g, const Tile &tile, const GateRows<F> &rows, const F *ds, F *dz, Index ldd,
                     F *along, const GateGradients<F> &to) {
    const Index width = g.width;
    for (Index r = 0; r < tile.rows; ++r) {
        const F *p = rows.p + r * width, *d = ds + r * width, *e = to.other + r * width, *z = rows.z + r * rows.ldz;
        const F plus = rows.plus[r], minus = rows.minus[r], k = rows.factor[r], mean = to.mean[r], mean2 = to.mean2[r];
        F *q = dz + r * ldd, *dt = to.target ? to.target + tile.target[r] * width : to.offset;
        F *dsource = to.source ? to.source + (tile.source[r] - tile.first) * width : nullptr;
        F *more = to.more ? to.more + (tile.start + r) * width : nullptr;
        const auto v_at = rows.row(r, width);
        Vec<F> sum{};
        for (Index i = 0; i < width; i += Vector<F>::size) {
            const Vec<F> u = load(p + i), v = v_at(i);
            Vec<F> dp = (load(d + i) - (u + v) * mean) * plus, dv = dp;
            if (symmetric) {
                const Vec<F> dm = (load(e + i) - (u - v) * mean2) * minus;
                dp += dm;
                dv -= dm;
            }
            store(q + i, dv * k);
            if (along) sum += dv * load(z + i);
            if (more) store(more + i, dv);
            store(dt + i, load(dt + i) + dp);
            if (dsource) store(dsource + i, load(dsource + i) + dp);
        }
        if (along) along[r] = sum_of(sum);
    }
}

template <bool bounded, bool symmetric, typename F>
void gate_backward_of(const Gate<F> &g, const Tile &tile, const GateRows<F> &rows, F *ds, F *s, F *dz, Index ldd,
                      F *along, const GateGradients<F> &to) {
    if (g.drop > 0) mask(g, tile, ds);
    sigmoids<bounded, symmetric>(g, tile, rows, s, to.other);
    normal_gradients<symmetric>(g, tile, rows, ds, s, to);
    input_gradients<symmetric>(g, tile, rows, ds, dz, ldd, along, to);
    if (g.drop > 0) mask(g, tile, s);
}

// Calls work(bounded, symmetric) with constants.
template <typename F, typename Work>
inline void with_kind(const Gate<F> &g, Work work) {
    using Yes = std::true_type;
    using No = std::false_type;
    if (g.symmetric) {
        g.bounded ? work(Yes(), Yes()) : work(No(), Yes());
    } else {
        g.bounded ? work(Yes(), No()) : work(No(), No());
    }
}

// s of a tile.
template <typename F>
void gate_forward(const Gate<F> &g, const Tile &tile, const GateRows<F> &rows, F *s) {
    with_kind(g, [&](auto b, auto y) { gate_forward_of<decltype(b)::value, decltype(y)::value>(g, tile, rows, s); });
}

// From ds, which is overwritten: s again, dz with stride ldd, the gradient at k (along, or null) and the sums.
template <typename F>
void gate_backward(const Gate<F> &g, const Tile &tile, const GateRows<F> &rows, F *ds, F *s, F *dz, Index ldd,
                   F *along, const GateGradients<F> &to) {
    with_kind(g, [&](auto b, auto y) {
        gate_backward_of<decltype(b)::value, decltype(y)::value>(g, tile, rows, ds, s, dz, ldd, along, to);
    });
}

}  // namespace
