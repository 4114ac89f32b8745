// Elementwise work of scale equivariant message passing, fused so that every edge is read and written once.
//
// An edge block has B networks, T targets, S sources and h channels: row (b, t, s) is a contiguous vector of h numbers.
// Threads share out networks, so that sums over the rows of one network need no locks.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using Index = std::int64_t;

inline double exponential(double x) { return std::exp(x); }

// exp for |x| < 87: 2^n times a polynomial on [-ln2/2, ln2/2]; plain arithmetic, so compilers vectorise it.
inline float exponential(float x) {
    x = std::min(std::max(x, -87.0f), 88.0f);
    const float magic = 12582912.0f;
    const float n = (x * 1.44269504088896f + magic) - magic;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const std::int32_t bits = (static_cast<std::int32_t>(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

inline std::uint32_t mix(std::uint32_t v) {
    v ^= v >> 16;
    v *= 0x85ebca6bu;
    v ^= v >> 13;
    v *= 0xc2b2ae35u;
    return v ^ (v >> 16);
}

struct Block {
    Index B, T, S, h;
    int threads;
};

template <typename F>
struct Gate {
    const F *z;      // rows of A x, stride ldz
    Index ldz;
    const F *offset;  // (h)
    const F *target;  // (B, T, h) or null
    const F *source;  // (B, S, h) or null
    const F *inverse; // (B, T, S) 1 / ||x||, or null
    const F *weight, *bias;  // LayerNorm (h)
    F eps;
    int symmetric;
    F drop;
    std::uint32_t seed;
};

// What both signs of one row share: centred p and z, their second moments, and 1/std of p + k z and of p - k z.
template <typename F>
struct Row {
    F *p, *z;  // centred
    F plus, minus;
};

template <int H, typename F>
inline F centre(const F *x, Index channels, F *out) {
    const Index h = H ? H : channels;
    F mean = 0;
#pragma omp simd reduction(+ : mean)
    for (Index i = 0; i < h; ++i) mean += x[i];
    mean /= h;
    F square = 0;
#pragma omp simd reduction(+ : square)
    for (Index i = 0; i < h; ++i) {
        out[i] = x[i] - mean;
        square += out[i] * out[i];
    }
    return square;
}

// `square` is |p|^2 of the centred p, which is already in row.p; z is centred and multiplied by k.
template <int H, typename F>
inline void statistics(const F *z, F k, F square, F eps, Index channels, Row<F> &row) {
    const Index h = H ? H : channels;
    F mean = 0;
#pragma omp simd reduction(+ : mean)
    for (Index i = 0; i < h; ++i) mean += z[i];
    mean /= h;
    F own = 0, both = 0;
    const F *p = row.p;
    F *c = row.z;
#pragma omp simd reduction(+ : own, both)
    for (Index i = 0; i < h; ++i) {
        c[i] = k * (z[i] - mean);
        own += c[i] * c[i];
        both += c[i] * p[i];
    }
    row.plus = 1 / std::sqrt(std::max(own + square + 2 * both, F(0)) / h + eps);
    row.minus = 1 / std::sqrt(std::max(own + square - 2 * both, F(0)) / h + eps);
}

template <int H, typename F>
inline void context(const Gate<F> &g, Index channels, Index bt, Index bs, F *p) {
    const Index h = H ? H : channels;
#pragma omp simd
    for (Index i = 0; i < h; ++i) p[i] = g.offset[i];
    if (g.target) {
        const F *t = g.target + bt * h;
#pragma omp simd
        for (Index i = 0; i < h; ++i) p[i] += t[i];
    }
    if (g.source) {
        const F *s = g.source + bs * h;
#pragma omp simd
        for (Index i = 0; i < h; ++i) p[i] += s[i];
    }
}

template <typename F>
inline void mask(const Gate<F> &g, Index row, Index h, F *s) {
    const F scale = 1 / (1 - g.drop);
    const std::uint32_t threshold = static_cast<std::uint32_t>(static_cast<double>(g.drop) * 4294967295.0);
    const std::uint32_t base = mix(static_cast<std::uint32_t>(row) ^ g.seed) ^ static_cast<std::uint32_t>(row >> 32);
#pragma omp simd
    for (Index i = 0; i < h; ++i) {
        const std::uint32_t v = mix(base + static_cast<std::uint32_t>(i) * 0x9e3779b9u);
        s[i] *= v >= threshold ? scale : F(0);
    }
}

// Centred context of a row; recomputed only where the context differs between rows.
template <int H, typename F>
struct Centred {
    const Gate<F> &g;
    const Block &k;
    F *raw, *p;
    F square;
    bool varies;

    Centred(const Gate<F> &gate, const Block &block, F *raw_, F *p_)
        : g(gate), k(block), raw(raw_), p(p_), varies(gate.target || gate.source) {
        square = centre<H>(g.offset, k.h, p);
    }

    void at(Index bt, Index bs) {
        if (!varies) return;
        context<H>(g, k.h, bt, bs, raw);
        square = centre<H>(raw, k.h, p);
    }
};

template <int H, typename F>
void gate_forward_of(const Gate<F> &g, const Block &k, F *out) {
    const Index h = H ? H : k.h;
#pragma omp parallel num_threads(k.threads)
    {
        std::vector<F> space(3 * k.h);
        Row<F> row{space.data(), space.data() + k.h, 0, 0};
        Centred<H, F> centred(g, k, space.data() + 2 * k.h, row.p);
        const F *w = g.weight, *c = g.bias, *p = row.p, *zc = row.z;
#pragma omp for schedule(static)
        for (Index b = 0; b < k.B; ++b)
            for (Index t = 0; t < k.T; ++t)
                for (Index s = 0; s < k.S; ++s) {
                    const Index at = (b * k.T + t) * k.S + s;
                    F *o = out + at * k.h;
                    centred.at(b * k.T + t, b * k.S + s);
                    statistics<H>(g.z + at * g.ldz, g.inverse ? g.inverse[at] : F(1), centred.square, g.eps, k.h, row);
                    const F plus = row.plus, minus = row.minus;
                    if (g.symmetric) {
#pragma omp simd
                        for (Index i = 0; i < h; ++i) {
                            const F a = w[i] * (plus * (p[i] + zc[i])) + c[i];
                            const F b2 = w[i] * (minus * (p[i] - zc[i])) + c[i];
                            const F ea = 1 + exponential(-a), eb = 1 + exponential(-b2);
                            o[i] = (a * eb + b2 * ea) / (ea * eb);
                        }
                    } else {
#pragma omp simd
                        for (Index i = 0; i < h; ++i) {
                            const F a = w[i] * (plus * (p[i] + zc[i])) + c[i];
                            o[i] = a / (1 + exponential(-a));
                        }
                    }
                    if (g.drop > 0) mask(g, at, k.h, o);
                }
    }
}

// One sign: n = rstd (p + sign z), its silu's gradient times LayerNorm's weight into dn, and the two means of LayerNorm.
template <int H, typename F>
inline void normal_gradient(const Gate<F> &g, const Row<F> &row, F sign, F rstd, const F *ds, Index channels, F *n,
                            F *dn, F *sum_w, F *sum_b, F &mean, F &dot) {
    const Index h = H ? H : channels;
    const F *w = g.weight, *c = g.bias, *p = row.p, *z = row.z;
    F m = 0, q = 0;
#pragma omp simd reduction(+ : m, q)
    for (Index i = 0; i < h; ++i) {
        const F u = rstd * (p[i] + sign * z[i]);
        const F a = w[i] * u + c[i];
        const F sigma = 1 / (1 + exponential(-a));
        const F da = ds[i] * sigma * (1 + a * (1 - sigma));
        n[i] = u;
        sum_w[i] += da * u;
        sum_b[i] += da;
        dn[i] = da * w[i];
        m += dn[i];
        q += dn[i] * u;
    }
    mean = m / h;
    dot = q / h;
}

// Gradients: dz with stride ldd, dtarget, dsource, dinverse where not null, and sums for offset, weight, bias.
template <int H, typename F>
void gate_backward_of(const Gate<F> &g, const Block &k, F *grad, F *dz, Index ldd, F *dtarget, F *dsource,
                      F *dinverse, F *doffset, F *dweight, F *dbias) {
    const Index h = H ? H : k.h;
#pragma omp parallel num_threads(k.threads)
    {
        std::vector<F> space(9 * k.h), sums(3 * k.h, F(0));
        F *base = space.data();
        Row<F> row{base, base + k.h, 0, 0};
        F *n = base + 3 * k.h, *dn = n + k.h, *n2 = dn + k.h, *dn2 = n2 + k.h, *dp = dn2 + k.h, *masked = dp + k.h;
        Centred<H, F> centred(g, k, base + 2 * k.h, row.p);
        F *sum_p = sums.data(), *sum_w = sum_p + k.h, *sum_b = sum_w + k.h;
#pragma omp for schedule(static)
        for (Index b = 0; b < k.B; ++b)
            for (Index t = 0; t < k.T; ++t)
                for (Index s = 0; s < k.S; ++s) {
                    const Index at = (b * k.T + t) * k.S + s;
                    const F *z = g.z + at * g.ldz, *ds = grad + at * k.h;
                    F *d = dz + at * ldd;
                    const F r = g.inverse ? g.inverse[at] : F(1);
                    if (g.drop > 0) {
                        std::memcpy(masked, ds, k.h * sizeof(F));
                        mask(g, at, k.h, masked);
                        ds = masked;
                    }
                    centred.at(b * k.T + t, b * k.S + s);
                    statistics<H>(z, r, centred.square, g.eps, k.h, row);
                    F mean, dot, mean2 = 0, dot2 = 0, along = 0;
                    normal_gradient<H>(g, row, F(1), row.plus, ds, k.h, n, dn, sum_w, sum_b, mean, dot);
                    const F plus = row.plus, minus = row.minus;
                    if (g.symmetric) {
                        normal_gradient<H>(g, row, F(-1), minus, ds, k.h, n2, dn2, sum_w, sum_b, mean2, dot2);
#pragma omp simd reduction(+ : along)
                        for (Index i = 0; i < h; ++i) {
                            const F du = plus * (dn[i] - mean - n[i] * dot);
                            const F dv = minus * (dn2[i] - mean2 - n2[i] * dot2);
                            dp[i] = du + dv;
                            d[i] = r * (du - dv);
                            along += (du - dv) * z[i];
                        }
                    } else {
#pragma omp simd reduction(+ : along)
                        for (Index i = 0; i < h; ++i) {
                            const F du = plus * (dn[i] - mean - n[i] * dot);
                            dp[i] = du;
                            d[i] = r * du;
                            along += du * z[i];
                        }
                    }
                    if (dinverse) dinverse[at] = along;
#pragma omp simd
                    for (Index i = 0; i < h; ++i) sum_p[i] += dp[i];
                    if (dtarget) {
                        F *q = dtarget + (b * k.T + t) * k.h;
#pragma omp simd
                        for (Index i = 0; i < h; ++i) q[i] += dp[i];
                    }
                    if (dsource) {
                        F *q = dsource + (b * k.S + s) * k.h;
#pragma omp simd
                        for (Index i = 0; i < h; ++i) q[i] += dp[i];
                    }
                }
#pragma omp critical
        for (Index i = 0; i < h; ++i) {
            doffset[i] += sum_p[i];
            dweight[i] += sum_w[i];
            dbias[i] += sum_b[i];
        }
    }
}

// Common widths are known to the compiler, which then keeps a row in registers.
#define BY_WIDTH(call)                         \
    switch (k.h) {                             \
        case 32: return call(32);              \
        case 64: return call(64);              \
        case 128: return call(128);            \
        default: return call(0);               \
    }

template <typename F>
void gate_forward(const Gate<F> &g, const Block &k, F *out) {
#define CALL(H) gate_forward_of<H>(g, k, out)
    BY_WIDTH(CALL)
#undef CALL
}

template <typename F>
void gate_backward(const Gate<F> &g, const Block &k, F *grad, F *dz, Index ldd, F *dt, F *ds, F *di, F *doff, F *dw,
                   F *db) {
#define CALL(H) gate_backward_of<H>(g, k, grad, dz, ldd, dt, ds, di, doff, dw, db)
    BY_WIDTH(CALL)
#undef CALL
}

// Row of a vertex tensor that belongs to an edge: by source or by target.
inline Index vertex(const Block &k, int by_target, Index b, Index t, Index s) {
    return by_target ? b * k.T + t : b * k.S + s;
}

// m = y * e, and 1 / ||m|| (0 for m = 0) if inverse is not null.
template <typename F>
void hadamard_forward(const F *y, const F *e, int by_target, const Block &k, F *m, F *inverse) {
#pragma omp parallel for schedule(static) num_threads(k.threads)
    for (Index b = 0; b < k.B; ++b)
        for (Index t = 0; t < k.T; ++t)
            for (Index s = 0; s < k.S; ++s) {
                const Index row = (b * k.T + t) * k.S + s;
                const F *v = y + vertex(k, by_target, b, t, s) * k.h, *x = e + row * k.h;
                F *o = m + row * k.h;
                F largest = 0;
#pragma omp simd reduction(max : largest)
                for (Index i = 0; i < k.h; ++i) {
                    o[i] = v[i] * x[i];
                    largest = std::max(largest, std::abs(o[i]));
                }
                if (!inverse) continue;
                F square = 0;
                const F unit = largest > 0 ? 1 / largest : F(0);
                if (std::isfinite(unit)) {
#pragma omp simd reduction(+ : square)
                    for (Index i = 0; i < k.h; ++i) square += (o[i] * unit) * (o[i] * unit);
                }
                inverse[row] = square > 0 ? unit / std::sqrt(square) : F(0);
            }
}

// grad is overwritten with the gradient at m; then de = grad * y and dy = sum of grad * e.
template <typename F>
void hadamard_backward(const F *y, const F *e, const F *m, const F *inverse, const F *dinverse, int by_target,
                       const Block &k, const F *grad, F *de, F *dy) {
#pragma omp parallel num_threads(k.threads)
    {
        std::vector<F> space(k.h);
        F *dm = space.data();
#pragma omp for schedule(static)
        for (Index b = 0; b < k.B; ++b)
            for (Index t = 0; t < k.T; ++t)
                for (Index s = 0; s < k.S; ++s) {
                    const Index row = (b * k.T + t) * k.S + s, at = vertex(k, by_target, b, t, s);
                    const F *v = y + at * k.h, *x = e + row * k.h, *g = grad + row * k.h;
                    F *o = de + row * k.h, *q = dy + at * k.h;
                    F factor = 0;
                    if (inverse) factor = dinverse[row] * inverse[row];
                    if (factor != 0) {
                        const F r = inverse[row];
                        const F *u = m + row * k.h;
#pragma omp simd
                        for (Index i = 0; i < k.h; ++i) dm[i] = g[i] - (factor * (u[i] * r)) * r;
                    } else {
                        std::memcpy(dm, g, k.h * sizeof(F));
                    }
#pragma omp simd
                    for (Index i = 0; i < k.h; ++i) {
                        q[i] += dm[i] * x[i];
                        o[i] = dm[i] * v[i];
                    }
                }
    }
}

// out += g * (rho + bias), summed over sources (or targets); g has stride ldg. With S = 1 it is set instead of added to.
template <typename F>
void contract_forward(const F *g, Index ldg, const F *rho, const F *bias, int to_target, const Block &k, F *out) {
#pragma omp parallel for schedule(static) num_threads(k.threads)
    for (Index b = 0; b < k.B; ++b)
        for (Index t = 0; t < k.T; ++t)
            for (Index s = 0; s < k.S; ++s) {
                const Index row = (b * k.T + t) * k.S + s;
                const F *x = g + row * ldg, *r = rho + row * k.h;
                F *o = out + vertex(k, to_target, b, t, s) * k.h;
                if (k.S == 1) {
#pragma omp simd
                    for (Index i = 0; i < k.h; ++i) o[i] = x[i] * (r[i] + bias[i]);
                } else {
#pragma omp simd
                    for (Index i = 0; i < k.h; ++i) o[i] += x[i] * (r[i] + bias[i]);
                }
            }
}

// dg = grad * rho with stride ldd, drho = grad * g, and sum gathers drho over all rows.
template <typename F>
void contract_backward(const F *grad, const F *g, Index ldg, const F *rho, const F *bias, int to_target,
                       const Block &k, F *dg, Index ldd, F *drho, F *sum) {
#pragma omp parallel num_threads(k.threads)
    {
        std::vector<F> space(k.h, F(0));
        F *own = space.data();
#pragma omp for schedule(static)
        for (Index b = 0; b < k.B; ++b)
            for (Index t = 0; t < k.T; ++t)
                for (Index s = 0; s < k.S; ++s) {
                    const Index row = (b * k.T + t) * k.S + s;
                    const F *x = g + row * ldg, *r = rho + row * k.h;
                    const F *o = grad + vertex(k, to_target, b, t, s) * k.h;
                    F *d = dg + row * ldd, *q = drho + row * k.h;
#pragma omp simd
                    for (Index i = 0; i < k.h; ++i) {
                        d[i] = o[i] * (r[i] + bias[i]);
                        const F v = o[i] * x[i];
                        q[i] = v;
                        own[i] += v;
                    }
                }
#pragma omp critical
        for (Index i = 0; i < k.h; ++i) sum[i] += own[i];
    }
}

// z[b, t, s] = w[b, t, s] a[b, s] with k.h numbers a row; and da = sum over targets of w dz.
template <typename F>
void outer_forward(const F *w, const F *a, const Block &k, F *z) {
#pragma omp parallel for schedule(static) num_threads(k.threads)
    for (Index b = 0; b < k.B; ++b)
        for (Index t = 0; t < k.T; ++t)
            for (Index s = 0; s < k.S; ++s) {
                const Index row = (b * k.T + t) * k.S + s;
                const F *x = a + (b * k.S + s) * k.h;
                const F c = w[row];
                F *o = z + row * k.h;
#pragma omp simd
                for (Index i = 0; i < k.h; ++i) o[i] = c * x[i];
            }
}

template <typename F>
void outer_backward(const F *w, const F *dz, const Block &k, F *da) {
#pragma omp parallel for schedule(static) num_threads(k.threads)
    for (Index b = 0; b < k.B; ++b)
        for (Index t = 0; t < k.T; ++t)
            for (Index s = 0; s < k.S; ++s) {
                const Index row = (b * k.T + t) * k.S + s;
                const F *d = dz + row * k.h;
                const F c = w[row];
                F *o = da + (b * k.S + s) * k.h;
#pragma omp simd
                for (Index i = 0; i < k.h; ++i) o[i] += c * d[i];
            }
}

}  // namespace

#define EXPORT(F, suffix)                                                                                              \
    extern "C" void gate_forward_##suffix(const Gate<F> *g, const Block *k, F *out) { gate_forward(*g, *k, out); }     \
    extern "C" void gate_backward_##suffix(const Gate<F> *g, const Block *k, F *grad, F *dz, Index ldd, F *dt, F *ds,  \
                                           F *di, F *doff, F *dw, F *db) {                                            \
        gate_backward(*g, *k, grad, dz, ldd, dt, ds, di, doff, dw, db);                                                \
    }                                                                                                                  \
    extern "C" void hadamard_forward_##suffix(const F *y, const F *e, int by, const Block *k, F *m, F *r) {            \
        hadamard_forward(y, e, by, *k, m, r);                                                                          \
    }                                                                                                                  \
    extern "C" void hadamard_backward_##suffix(const F *y, const F *e, const F *m, const F *r, const F *dr, int by,    \
                                               const Block *k, const F *grad, F *de, F *dy) {                         \
        hadamard_backward(y, e, m, r, dr, by, *k, grad, de, dy);                                                       \
    }                                                                                                                  \
    extern "C" void contract_forward_##suffix(const F *g, Index ldg, const F *rho, const F *bias, int to,              \
                                              const Block *k, F *out) {                                                \
        contract_forward(g, ldg, rho, bias, to, *k, out);                                                              \
    }                                                                                                                  \
    extern "C" void contract_backward_##suffix(const F *grad, const F *g, Index ldg, const F *rho, const F *bias,      \
                                               int to, const Block *k, F *dg, Index ldd, F *drho, F *sum) {            \
        contract_backward(grad, g, ldg, rho, bias, to, *k, dg, ldd, drho, sum);                                        \
    }                                                                                                                  \
    extern "C" void outer_forward_##suffix(const F *w, const F *a, const Block *k, F *z) {                             \
        outer_forward(w, a, *k, z);                                                                                    \
    }                                                                                                                  \
    extern "C" void outer_backward_##suffix(const F *w, const F *dz, const Block *k, F *da) {                          \
        outer_backward(w, dz, *k, da);                                                                                 \
    }

EXPORT(float, float)
EXPORT(double, double)
