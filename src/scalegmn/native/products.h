// Vectors of numbers and products of small matrices that stay in the nearest caches.
//
// All widths are multiples of `Vector<F>::block`; callers pad with zeros.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <vector>

#ifdef __AVX__
#include <immintrin.h>
#endif

namespace {

using Index = std::int64_t;

template <typename F>
struct Vector {
    typedef F type __attribute__((vector_size(32), aligned(sizeof(F)), may_alias));
    static constexpr Index size = 32 / sizeof(F);
    static constexpr Index block = 2 * size;
};

template <typename F>
using Vec = typename Vector<F>::type;

template <typename F>
inline Vec<F> load(const F *p) { return *reinterpret_cast<const Vec<F> *>(p); }

template <typename F>
inline void store(F *p, Vec<F> v) { *reinterpret_cast<Vec<F> *>(p) = v; }

inline double sum_of(Vec<double> v) { return (v[0] + v[2]) + (v[1] + v[3]); }

#ifdef __AVX__
inline float sum_of(Vec<float> v) {
    const __m256 w = (__m256)v;
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline Vec<float> within(Vec<float> x, float low, float high) {
    return (Vec<float>)_mm256_min_ps(_mm256_max_ps((__m256)x, _mm256_set1_ps(low)), _mm256_set1_ps(high));
}
#else
inline float sum_of(Vec<float> v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
inline Vec<float> within(Vec<float> x, float low, float high) {
    for (int i = 0; i < 8; ++i) x[i] = std::min(std::max(x[i], low), high);
    return x;
}
#endif

template <bool bounded>
inline Vec<double> exponential_of_minus(Vec<double> x) {
    for (int i = 0; i < 4; ++i) x[i] = std::exp(std::min(-x[i], 300.0));
    return x;
}

// e^-x = 2^n times a polynomial for 2^r with r in [-1/2, 1/2]. Where x is not `bounded` to [-40, 80] it is brought there:
// beyond, sigmoids are 0 or 1 in single precision, and within, the product of two results does not overflow.
template <bool bounded>
inline Vec<float> exponential_of_minus(Vec<float> x) {
    typedef std::int32_t Bits __attribute__((vector_size(32)));
    const float magic = 12582912.0f;  // 1.5 * 2^23: the sum's last bits are n
    if (!bounded) x = within(x, -40.0f, 80.0f);
    const Vec<float> shifted = magic - x * 1.44269504f;
    const Vec<float> r = (magic - shifted) - x * 1.44269504f, square = r * r;
    const Vec<float> p = (r * 6.931469776e-1f + 1.0f) +
                         square * ((r * 5.550733744e-2f + 2.402224209e-1f) +
                                   square * (r * 1.326472707e-3f + 9.671512649e-3f));
    return (Vec<float>)((Bits)p + ((Bits)shifted << 23));
}

// Memory that begins where a cache line does and is not cleared.
template <typename F>
struct Allocator {
    using value_type = F;
    Allocator() = default;
    template <typename G>
    Allocator(const Allocator<G> &) {}
    F *allocate(std::size_t n) { return static_cast<F *>(::operator new(n * sizeof(F), std::align_val_t(64))); }
    void deallocate(F *p, std::size_t) { ::operator delete(p, std::align_val_t(64)); }
    void construct(F *p) { ::new (static_cast<void *>(p)) F; }
    void construct(F *p, const F &value) { ::new (static_cast<void *>(p)) F(value); }
    template <typename G>
    bool operator==(const Allocator<G> &) const { return true; }
    template <typename G>
    bool operator!=(const Allocator<G> &) const { return false; }
};

template <typename F>
using Array = std::vector<F, Allocator<F>>;

// A matrix that products read: element (k, column) lies at data[(column / block) * panel + k * row + column % block].
template <typename F>
struct Matrix {
    const F *data;
    Index row, panel;
};

// R rows of C (stride ldc) and one block of columns: C = A B or C += A B, where A(i, k) = a[i * ai + k * ak].
template <int R, typename F>
inline void rows_times(Index depth, const F *a, Index ai, Index ak, const F *b, Index bk, F *c, Index ldc, bool add) {
    constexpr Index n = Vector<F>::size;
    Vec<F> left[R], right[R];
#pragma GCC unroll 6
    for (int i = 0; i < R; ++i) {
        left[i] = add ? load(c + i * ldc) : Vec<F>{};
        right[i] = add ? load(c + i * ldc + n) : Vec<F>{};
    }
    for (Index k = 0; k < depth; ++k, a += ak, b += bk) {
        const Vec<F> b0 = load(b), b1 = load(b + n);
#pragma GCC unroll 6
        for (int i = 0; i < R; ++i) {
            const F x = a[i * ai];
            left[i] += x * b0;
            right[i] += x * b1;
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < R; ++i) {
        store(c + i * ldc, left[i]);
        store(c + i * ldc + n, right[i]);
    }
}

// C (rows x columns, stride ldc) = A B, or C += A B.
template <typename F>
void product(Index rows, Index columns, Index depth, const F *a, Index ai, Index ak, Matrix<F> b, F *c, Index ldc,
             bool add = false) {
    constexpr Index block = Vector<F>::block;
    for (Index j = 0; j < columns; j += block, b.data += b.panel, c += block) {
        Index i = 0;
        for (; i + 6 <= rows; i += 6) rows_times<6>(depth, a + i * ai, ai, ak, b.data, b.row, c + i * ldc, ldc, add);
        const F *x = a + i * ai;
        F *y = c + i * ldc;
        switch (rows - i) {
            case 1: rows_times<1>(depth, x, ai, ak, b.data, b.row, y, ldc, add); break;
            case 2: rows_times<2>(depth, x, ai, ak, b.data, b.row, y, ldc, add); break;
            case 3: rows_times<3>(depth, x, ai, ak, b.data, b.row, y, ldc, add); break;
            case 4: rows_times<4>(depth, x, ai, ak, b.data, b.row, y, ldc, add); break;
            case 5: rows_times<5>(depth, x, ai, ak, b.data, b.row, y, ldc, add); break;
            default: break;
        }
    }
}

// A weight matrix w (outputs x inputs) in panels, for x w^T (`transposed`) and for x w.
template <typename F>
struct Packed {
    Array<F> data;
    Index depth = 0;

    void pack(const F *w, Index outputs, Index inputs, bool transposed) {
        constexpr Index block = Vector<F>::block;
        const Index columns = transposed ? outputs : inputs;
        depth = transposed ? inputs : outputs;
        data.resize(depth * columns);
        F *p = data.data();
        for (Index j = 0; j < columns; j += block)
            for (Index k = 0; k < depth; ++k, p += block)
                for (Index i = 0; i < block; ++i) p[i] = transposed ? w[(j + i) * inputs + k] : w[k * inputs + j + i];
    }

    Matrix<F> matrix() const { return {data.data(), Vector<F>::block, depth * Vector<F>::block}; }
};

// Rows of a tile as the right factor of a product.
template <typename F>
Matrix<F> rows_of(const F *x, Index stride) { return {x, stride, Vector<F>::block}; }

}  // namespace
