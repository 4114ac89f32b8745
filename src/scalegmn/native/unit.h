// Unit vectors, row by row, and their gradients.

#pragma once

#include "parts.h"

namespace {

template <typename F>
struct Units {
    Index rows, width, threads;
    const F *x, *grad;  // (rows, width); the gradient of the result, or null: then the result is wanted
    F *result;          // (rows, width)
};

template <typename F>
void check(const Units<F> &u) {
    expect(u.rows >= 0 && u.width > 0 && 0 < u.threads && u.threads <= 4096, "rows, width and threads must be positive");
    for (const F *p : {u.x, static_cast<const F *>(u.result)}) expect(p && aligned(p), "an array is missing");
    expect(aligned(u.grad), "an array does not begin at a number");
}

// y = k x with k = 1 / |x|, or the gradient at x: k (g - y <g, y>).
template <typename F>
void unit_row(const F *x, const F *grad, F *to, Index width) {
    const F k = inverse_norm(x, width);
    if (!grad) {
        for (Index i = 0; i < width; ++i) to[i] = x[i] * k;
        return;
    }
    F along = 0;
#pragma omp simd reduction(+ : along)
    for (Index i = 0; i < width; ++i) along += grad[i] * (x[i] * k);
    for (Index i = 0; i < width; ++i) to[i] = (grad[i] - x[i] * k * along) * k;
}

template <typename F>
void units(const Units<F> &u) {
    const Index each = std::max(Index(16384) / u.width, Index(1));
    over((u.rows + each - 1) / each, static_cast<int>(u.threads), [&](int, Index i) {
        for (Index at = i * each * u.width, end = std::min((i + 1) * each, u.rows) * u.width; at < end; at += u.width)
            unit_row(u.x + at, u.grad ? u.grad + at : nullptr, u.result + at, u.width);
    });
}

}  // namespace
