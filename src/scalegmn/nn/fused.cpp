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

// u = p + k z, then LayerNorm's statistics.
template <typename F>
inline void normalise(const F *p, const F *z, F k, F eps, Index h, F *n, F &rstd) {
    F mean = 0;
#pragma omp simd reduction(+ : mean)
    for (Index i = 0; i < h; ++i) {
        n[i] = p[i] + k * z[i];
        mean += n[i];
    }
    mean /= h;
    F var = 0;
#pragma omp simd reduction(+ : var)
    for (Index i = 0; i < h; ++i) {
        n[i] -= mean;
        var += n[i] * n[i];
    }
    rstd = 1 / std::sqrt(var / h + eps);
    const F scale = rstd;
#pragma omp simd
    for (Index i = 0; i < h; ++i) n[i] *= scale;
}

template <typename F>
inline void context(const Gate<F> &g, Index h, Index bt, Index bs, F *p) {
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

template <typename F>
void gate_forward(const Gate<F> &g, const Block &k, F *out) {
#pragma omp parallel num_threads(k.threads)
    {
        std::vector<F> space(2 * k.h);
        F *p = space.data(), *n = p + k.h;
#pragma omp for schedule(static)
        for (Index b = 0; b < k.B; ++b)
            for (Index t = 0; t < k.T; ++t)
                for (Index s = 0; s < k.S; ++s) {
                    const Index row = (b * k.T + t) * k.S + s;
                    const F *z = g.z + row * g.ldz;
                    F *o = out + row * k.h;
                    const F r = g.inverse ? g.inverse[row] : F(1);
                    context(g, k.h, b * k.T + t, b * k.S + s, p);
                    for (int sign = 0; sign <= g.symmetric; ++sign) {
                        F rstd;
                        normalise(p, z, sign ? -r : r, g.eps, k.h, n, rstd);
                        const F *w = g.weight, *c = g.bias;
                        if (sign == 0) {
#pragma omp simd
                            for (Index i = 0; i < k.h; ++i) {
                                const F a = w[i] * n[i] + c[i];
                                o[i] = a / (1 + exponential(-a));
                            }
                        } else {
#pragma omp simd
                            for (Index i = 0; i < k.h; ++i) {
                                const F a = w[i] * n[i] + c[i];
                                o[i] += a / (1 + exponential(-a));
                            }
                        }
                    }
                    if (g.drop > 0) mask(g, row, k.h, o);
                }
    }
}

// Gradients: dz with stride ldd, dtarget, dsource, dinverse where not null, and sums for offset, weight, bias.
template <typename F>
void gate_backward(const Gate<F> &g, const Block &k, F *grad, F *dz, Index ldd, F *dtarget, F *dsource,
                   F *dinverse, F *doffset, F *dweight, F *dbias) {
#pragma omp parallel num_threads(k.threads)
    {
        std::vector<F> space(5 * k.h), sums(3 * k.h, F(0));
        F *p = space.data(), *n = p + k.h, *dn = n + k.h, *dp = dn + k.h, *ds = dp + k.h;
        F *sum_p = sums.data(), *sum_w = sum_p + k.h, *sum_b = sum_w + k.h;
#pragma omp for schedule(static)
        for (Index b = 0; b < k.B; ++b)
            for (Index t = 0; t < k.T; ++t)
                for (Index s = 0; s < k.S; ++s) {
                    const Index row = (b * k.T + t) * k.S + s;
                    const F *z = g.z + row * g.ldz;
                    F *d = dz + row * ldd;
                    const F r = g.inverse ? g.inverse[row] : F(1);
                    std::memcpy(ds, grad + row * k.h, k.h * sizeof(F));
                    if (g.drop > 0) mask(g, row, k.h, ds);
                    context(g, k.h, b * k.T + t, b * k.S + s, p);
                    F dr = 0;
                    for (int sign = 0; sign <= g.symmetric; ++sign) {
                        F rstd, mean = 0, dot = 0;
                        normalise(p, z, sign ? -r : r, g.eps, k.h, n, rstd);
                        const F *w = g.weight, *c = g.bias;
#pragma omp simd reduction(+ : mean, dot)
                        for (Index i = 0; i < k.h; ++i) {
                            const F a = w[i] * n[i] + c[i];
                            const F sigma = 1 / (1 + exponential(-a));
                            const F da = ds[i] * sigma * (1 + a * (1 - sigma));
                            sum_w[i] += da * n[i];
                            sum_b[i] += da;
                            dn[i] = da * w[i];
                            mean += dn[i];
                            dot += dn[i] * n[i];
                        }
                        mean /= k.h;
                        dot /= k.h;
                        const F scale = sign ? -r : r;
                        F along = 0;
                        if (sign == 0) {
#pragma omp simd reduction(+ : along)
                            for (Index i = 0; i < k.h; ++i) {
                                const F du = rstd * (dn[i] - mean - n[i] * dot);
                                dp[i] = du;
                                d[i] = scale * du;
                                along += du * z[i];
                            }
                            dr += along;
                        } else {
#pragma omp simd reduction(+ : along)
                            for (Index i = 0; i < k.h; ++i) {
                                const F du = rstd * (dn[i] - mean - n[i] * dot);
                                dp[i] += du;
                                d[i] += scale * du;
                                along += du * z[i];
                            }
                            dr -= along;
                        }
                    }
                    if (dinverse) dinverse[row] = dr;
#pragma omp simd
                    for (Index i = 0; i < k.h; ++i) sum_p[i] += dp[i];
                    if (dtarget) {
                        F *q = dtarget + (b * k.T + t) * k.h;
#pragma omp simd
                        for (Index i = 0; i < k.h; ++i) q[i] += dp[i];
                    }
                    if (dsource) {
                        F *q = dsource + (b * k.S + s) * k.h;
#pragma omp simd
                        for (Index i = 0; i < k.h; ++i) q[i] += dp[i];
                    }
                }
#pragma omp critical
        for (Index i = 0; i < k.h; ++i) {
            doffset[i] += sum_p[i];
            dweight[i] += sum_w[i];
            dbias[i] += sum_b[i];
        }
    }
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

// out = sum over sources (or targets) of g * rho; g has stride ldg.
template <typename F>
void contract_forward(const F *g, Index ldg, const F *rho, int to_target, const Block &k, F *out) {
#pragma omp parallel for schedule(static) num_threads(k.threads)
    for (Index b = 0; b < k.B; ++b)
        for (Index t = 0; t < k.T; ++t)
            for (Index s = 0; s < k.S; ++s) {
                const Index row = (b * k.T + t) * k.S + s;
                const F *x = g + row * ldg, *r = rho + row * k.h;
                F *o = out + vertex(k, to_target, b, t, s) * k.h;
#pragma omp simd
                for (Index i = 0; i < k.h; ++i) o[i] += x[i] * r[i];
            }
}

template <typename F>
void contract_backward(const F *grad, const F *g, Index ldg, const F *rho, int to_target, const Block &k, F *dg,
                       Index ldd, F *drho) {
#pragma omp parallel for schedule(static) num_threads(k.threads)
    for (Index b = 0; b < k.B; ++b)
        for (Index t = 0; t < k.T; ++t)
            for (Index s = 0; s < k.S; ++s) {
                const Index row = (b * k.T + t) * k.S + s;
                const F *x = g + row * ldg, *r = rho + row * k.h;
                const F *o = grad + vertex(k, to_target, b, t, s) * k.h;
                F *d = dg + row * ldd, *q = drho + row * k.h;
#pragma omp simd
                for (Index i = 0; i < k.h; ++i) {
                    d[i] = o[i] * r[i];
                    q[i] = o[i] * x[i];
                }
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
    extern "C" void contract_forward_##suffix(const F *g, Index ldg, const F *rho, int to, const Block *k, F *out) {   \
        contract_forward(g, ldg, rho, to, *k, out);                                                                    \
    }                                                                                                                  \
    extern "C" void contract_backward_##suffix(const F *grad, const F *g, Index ldg, const F *rho, int to,             \
                                               const Block *k, F *dg, Index ldd, F *drho) {                           \
        contract_backward(grad, g, ldg, rho, to, *k, dg, ldd, drho);                                                   \
    }                                                                                                                  \
    extern "C" void outer_forward_##suffix(const F *w, const F *a, const Block *k, F *z) {                             \
        outer_forward(w, a, *k, z);                                                                                    \
    }                                                                                                                  \
    extern "C" void outer_backward_##suffix(const F *w, const F *dz, const Block *k, F *da) {                          \
        outer_backward(w, dz, *k, da);                                                                                 \
    }

EXPORT(float, float)
EXPORT(double, double)
