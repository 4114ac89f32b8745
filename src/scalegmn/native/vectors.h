// Arithmetic on whole vectors: products of small matrices, activations with their slopes, sums.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <vector>

namespace {

using Index = std::int64_t;

template <typename F>
struct Vector {
    static constexpr Index size = 32 / sizeof(F);
    typedef F type __attribute__((vector_size(32), aligned(sizeof(F)), may_alias));
};

// Memory that begins where a cache line does: vectors that straddle two lines are slow.
template <typename F>
struct Allocator {
    using value_type = F;
    Allocator() = default;
    template <typename G>
    Allocator(const Allocator<G> &) {}
    F *allocate(std::size_t n) { return static_cast<F *>(::operator new(n * sizeof(F), std::align_val_t(64))); }
    void deallocate(F *p, std::size_t) { ::operator delete(p, std::align_val_t(64)); }
    template <typename G>
    bool operator==(const Allocator<G> &) const { return true; }
    template <typename G>
    bool operator!=(const Allocator<G> &) const { return false; }
};

template <typename F>
using Array = std::vector<F, Allocator<F>>;

template <typename F>
inline auto vectors(Array<F> &a) { return reinterpret_cast<typename Vector<F>::type *>(a.data()); }

// Calls work(width). The width of the published collections is known to the compiler, which then unrolls loops and has
// few addresses to compute.
template <typename Work>
inline auto with_width(Index width, Work work) {
    return width == 32 ? work(std::integral_constant<Index, 32>()) : work(width);
}

// -- activations: value and slope from z, which lies in the place of the slope -----------------------------------

inline void sine(double z, double &value, double &slope) {
    value = std::sin(z);
    slope = std::cos(z);
}

// With r = z - n pi in [-pi/2, pi/2] both are (-1)^n times a polynomial, good to 1e-7 for |z| < 1e5. Plain arithmetic
// on numbers and bits, so compilers vectorise it.
inline void sine(float z, float &value, float &slope) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: the sum's last bits are n
    const float shifted = z * 0.318309886f + magic;
    const float n = shifted - magic;
    float r = z - n * 3.140625f;
    r = r - n * 9.67502593994140625e-4f;
    r = r - n * 1.509957990978376432e-7f;
    const float s = r * r;
    float p = 2.5997517916e-6f;
    p = p * s - 1.9806478960e-4f;
    p = p * s + 8.3330154176e-3f;
    p = p * s - 1.6666657021e-1f;
    p = p * s * r + r;
    float q = -2.6074220199e-7f;
    q = q * s + 2.4761730007e-5f;
    q = q * s - 1.3888400628e-3f;
    q = q * s + 4.1666640522e-2f;
    q = q * s - 4.9999999545e-1f;
    q = q * s + 1.0f;
    std::uint32_t odd, a, b;
    std::memcpy(&odd, &shifted, sizeof odd);
    std::memcpy(&a, &p, sizeof a);
    std::memcpy(&b, &q, sizeof b);
    odd <<= 31;
    a ^= odd;
    b ^= odd;
    std::memcpy(&value, &a, sizeof value);
    std::memcpy(&slope, &b, sizeof slope);
}

inline double tangent(double z) { return std::tanh(z); }

// (1 - e) / (1 + e) with e = exp(-2 |z|) = 2^n times a polynomial.
inline float tangent(float z) {
    const float x = std::max(-2.0f * std::fabs(z), -80.0f);
    const float magic = 12582912.0f;
    const float n = (x * 1.44269504f + magic) - magic;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r * r + r;
    const std::int32_t bits = (static_cast<std::int32_t>(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    const float below = p * scale + (scale - 1.0f);  // e - 1
    return std::copysign(-below / (2.0f + below), z);
}

enum Activation : int { SINE, RELU, TANH };

template <typename F>
void activate(int kind, Index count, F *value, F *slope) {
    if (kind == SINE) {
#pragma omp simd
        for (Index i = 0; i < count; ++i) sine(slope[i], value[i], slope[i]);
    } else if (kind == RELU) {
#pragma omp simd
        for (Index i = 0; i < count; ++i) {
            value[i] = std::max(slope[i], F(0));
            slope[i] = slope[i] > 0 ? F(1) : F(0);
        }
    } else {
#pragma omp simd
        for (Index i = 0; i < count; ++i) {
            value[i] = tangent(slope[i]);
            slope[i] = 1 - value[i] * value[i];
        }
    }
}

// -- products --------------------------------------------------------------------------------------------------------

enum class Into { biased, times, plus };

// A matrix whose entry (r, k) is at r * row + k * step.
template <typename F>
struct Left {
    const F *data;
    Index row, step;
};

// C = A B + bias, C *= A B or C += A B for a block of so many rows and vectors, whose sums stay in registers.
template <Into into, int tall, int wide, typename F, typename Width>
inline void block(Left<F> a, const F *b, Index depth, Width columns, const F *bias, F *c) {
    using V = typename Vector<F>::type;
    V sum[tall][wide];
    for (int r = 0; r < tall; ++r)
        for (int j = 0; j < wide; ++j) sum[r][j] = into == Into::biased ? reinterpret_cast<const V *>(bias)[j] : V{};
    for (Index k = 0; k < depth; ++k) {
        V right[wide];
        for (int j = 0; j < wide; ++j) right[j] = reinterpret_cast<const V *>(b + k * columns)[j];
        for (int r = 0; r < tall; ++r)
            for (int j = 0; j < wide; ++j) sum[r][j] += a.data[r * a.row + k * a.step] * right[j];
    }
    for (int r = 0; r < tall; ++r)
        for (int j = 0; j < wide; ++j) {
            V &out = reinterpret_cast<V *>(c + r * columns)[j];
            out = into == Into::biased ? sum[r][j] : into == Into::times ? out * sum[r][j] : out + sum[r][j];
        }
}

// Some columns of the product, all rows: with twelve sums at a time both multipliers are busy.
template <Into into, int wide, typename F, typename Width>
inline void stripe(Left<F> a, const F *b, Index rows, Index depth, Width columns, const F *bias, F *c) {
    constexpr int tall = 12 / wide;
    Index r = 0;
    const auto part = [&] { return Left<F>{a.data + r * a.row, a.row, a.step}; };
    for (; r + tall <= rows; r += tall) block<into, tall, wide>(part(), b, depth, columns, bias, c + r * columns);
    for (; r + 2 <= rows; r += 2) block<into, 2, wide>(part(), b, depth, columns, bias, c + r * columns);
    if (r < rows) block<into, 1, wide>(part(), b, depth, columns, bias, c + r * columns);
}

template <Into into, typename F, typename Width>
void stripes(Left<F> a, const F *b, Index rows, Index depth, Width columns, const F *bias, F *c) {
    constexpr Index size = Vector<F>::size;
    Index j = 0;
    for (; rows < 6 && j + 4 * size <= columns; j += 4 * size)
        stripe<into, 4>(a, b + j, rows, depth, columns, bias + j, c + j);
    for (; j + 2 * size <= columns; j += 2 * size)
        stripe<into, 2>(a, b + j, rows, depth, columns, bias + j, c + j);
    if (j < columns) stripe<into, 1>(a, b + j, rows, depth, columns, bias + j, c + j);
}

// For whole vectors of columns, which are those of b and c.
template <Into into, typename F>
void product(Left<F> a, const F *b, Index rows, Index depth, Index columns, const F *bias, F *c) {
    with_width(columns, [&](auto wide) { stripes<into>(a, b, rows, depth, wide, bias, c); });
}

// Adds the rows of a matrix to `sum`, `wide` vectors at a time.
template <int wide, typename F>
inline void add_rows(const F *a, Index rows, Index columns, F *sum) {
    using V = typename Vector<F>::type;
    V part[wide] = {};
    for (Index r = 0; r < rows; ++r)
        for (int j = 0; j < wide; ++j) part[j] += reinterpret_cast<const V *>(a + r * columns)[j];
    for (int j = 0; j < wide; ++j) reinterpret_cast<V *>(sum)[j] += part[j];
}

template <typename F>
void add_rows(const F *a, Index rows, Index columns, F *sum) {
    constexpr Index size = Vector<F>::size;
    Index j = 0;
    for (; j + 4 * size <= columns; j += 4 * size) add_rows<4>(a + j, rows, columns, sum + j);
    for (; j < columns; j += size) add_rows<1>(a + j, rows, columns, sum + j);
}

template <typename F, typename Width>
inline F dot(const F *a, const F *b, Width count) {
    using V = typename Vector<F>::type;
    V sum{};
    for (Index i = 0; i < count; i += Vector<F>::size)
        sum += *reinterpret_cast<const V *>(a + i) * *reinterpret_cast<const V *>(b + i);
    F total = 0;
    for (Index i = 0; i < Vector<F>::size; ++i) total += sum[i];
    return total;
}

}  // namespace
