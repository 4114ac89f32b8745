// Sums of products for a block of rows and vectors that stays in registers, and how blocks cover a matrix.

#pragma once

#include "vectors.h"

namespace {

template <int n>
using Number = std::integral_constant<int, n>;

// Calls work(first, Number<rows>) for at most `most` rows.
template <int most, typename Work>
inline void in_one_block(Index first, Index rows, Work work) {
    if constexpr (most > 0) {
        if (rows == most) work(first, Number<most>());
        else in_one_block<most - 1>(first, rows, work);
    }
}

// Calls work(first, Number<tall>) for blocks that cover so many rows, mostly as tall as registers allow.
template <int wide, typename Work>
inline void in_blocks(Index rows, Work work) {
    constexpr int tall = wide == 1 ? 8 : 12 / wide;
    Index r = 0;
    for (; r + tall <= rows; r += tall) work(r, Number<tall>());
    in_one_block<tall - 1>(r, rows - r, work);
}

// Calls work(first, Number<wide>) for stripes of one to three vectors that cover so many columns.
template <typename F, typename Work>
inline void in_stripes(Index columns, Work work) {
    constexpr Index size = Vector<F>::size;
    for (Index j = 0; j < columns;) {
        const Index left = (columns - j) / size;
        if (left == 3) work(j, Number<3>()), j += 3 * size;
        else if (left > 1) work(j, Number<2>()), j += 2 * size;
        else work(j, Number<1>()), j += size;
    }
}

// sum(r, j) += left(r, k) * right_j(k) for all k, in registers.
template <int tall, int wide, typename F, typename Entry>
inline void accumulate(typename Vector<F>::type (&sum)[tall][wide], Index depth, const F *right, Index step,
                       Entry left) {
    using V = typename Vector<F>::type;
    for (Index k = 0; k < depth; ++k, right += step) {
        V row[wide];
        for (int j = 0; j < wide; ++j) row[j] = reinterpret_cast<const V *>(right)[j];
        const auto entries = left(k);
        for (int r = 0; r < tall; ++r)
            for (int j = 0; j < wide; ++j) sum[r][j] += entries(r) * row[j];
    }
}

}  // namespace
