// Sums, exponentials and activations on numbers and whole vectors.

#pragma once

#include "vectors.h"

namespace {

// The sum of a vector, half by half.
template <typename V>
inline auto sum_of(V v) {
    using F = std::decay_t<decltype(v[0])>;
    if constexpr (sizeof(V) == 2 * sizeof(F)) {
        return v[0] + v[1];
    } else {
        typedef F Half __attribute__((vector_size(sizeof(V) / 2)));
        Half halves[2];
        std::memcpy(halves, &v, sizeof v);
        return sum_of(halves[0] + halves[1]);
    }
}

inline Vec<float> within(Vec<float> x, float low, float high) {
    x = x > low ? x : Vec<float>{} + low;
    return x < high ? x : Vec<float>{} + high;
}

template <bool bounded>
inline Vec<double> exponential_of_minus(Vec<double> x) {
    for (Index i = 0; i < Vector<double>::size; ++i) x[i] = std::exp(std::min(-x[i], 300.0));
    return x;
}

// e^-x = 2^n times a polynomial for 2^r with r in [-1/2, 1/2]. Where x is not `bounded` to [-40, 80] it is brought there:
// beyond, sigmoids are 0 or 1 in single precision, and within, the product of two results does not overflow.
template <bool bounded>
inline Vec<float> exponential_of_minus(Vec<float> x) {
    typedef std::int32_t Bits __attribute__((vector_size(BYTES)));
    const float magic = 12582912.0f;  // 1.5 * 2^23: the sum's last bits are n
    if (!bounded) x = within(x, -40.0f, 80.0f);
    const Vec<float> shifted = magic - x * 1.44269504f;
    const Vec<float> r = (magic - shifted) - x * 1.44269504f, square = r * r;
    const Vec<float> p = (r * 6.931469776e-1f + 1.0f) +
                         square * ((r * 5.550733744e-2f + 2.402224209e-1f) +
                                   square * (r * 1.326472707e-3f + 9.671512649e-3f));
    return (Vec<float>)((Bits)p + ((Bits)shifted << 23));
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
            const F z = slope[i];
            value[i] = z < 0 ? F(0) : z;
            slope[i] = z > 0 ? F(1) : F(0);
        }
    } else {
#pragma omp simd
        for (Index i = 0; i < count; ++i) {
            value[i] = tangent(slope[i]);
            slope[i] = 1 - value[i] * value[i];
        }
    }
}

}  // namespace
