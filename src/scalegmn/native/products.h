// Products of small matrices: one block of sums in registers, and how blocks cover a matrix.

#pragma once

#include "functions.h"

namespace {

template <int n>
using Number = std::integral_constant<int, n>;
template <Index n>
using Constant = std::integral_constant<Index, n>;

// Calls work(first, Number<rows>) for at most `most` rows.
template <int most, typename Work>
inline void in_one_block(Index first, Index rows, Work work) {
    if constexpr (most > 0) {
        if (rows == most) work(first, Number<most>());
        else in_one_block<most - 1>(first, rows, work);
    }
}

// Calls work(first, Number<tall>) for blocks that cover so many rows; only the last may be less tall.
template <int tall, typename Work>
inline void in_blocks_of(Index rows, Work work) {
    Index r = 0;
    for (; r + tall <= rows; r += tall) work(r, Number<tall>());
    in_one_block<tall - 1>(r, rows - r, work);
}

// Rows of a block as wide as so many vectors of 32 or of 64 bytes: as many as registers allow.
constexpr int tall_of(int wide, Index bytes = BYTES) { return wide == 1 ? 8 : (bytes == 64 ? 24 : 12) / wide; }

template <int wide, typename Work>
inline void in_blocks(Index rows, Work work) {
    in_blocks_of<tall_of(wide)>(rows, work);
}

// Calls work(first, Number<wide>) for stripes of vectors that cover so many columns; few rows want wide stripes, so that
// enough sums are under way.
template <typename F, Index bytes = BYTES, typename Work>
inline void in_stripes(Index columns, Index rows, Work work) {
    constexpr Index size = bytes / sizeof(F);
    for (Index j = 0; j < columns;) {
        const Index left = (columns - j) / size;
        if (rows < 6 && left > 3) work(j, Number<4>()), j += 4 * size;
        else if (left == 3) work(j, Number<3>()), j += 3 * size;
        else if (left > 1) work(j, Number<2>()), j += 2 * size;
        else work(j, Number<1>()), j += size;
    }
}

// A vector that is read once into a register: compilers might read it from memory again for every product.
template <typename V>
inline V in_register(V v) {
#ifdef __AVX512F__
    asm("" : "+v"(v));
#elif defined(__AVX__)
    asm("" : "+x"(v));
#endif
    return v;
}

// sum(r, j) += left(k)(r) * right_j(k) for all k, in registers: the one place where products are summed. The vectors of
// a row of the right factor lie `apart`.
template <int tall, int wide, typename F, typename Step, typename Entry, typename Apart = Constant<Vector<F>::size>>
inline void accumulate(Vec<F> (&sum)[tall][wide], Index depth, const F *right, Step step, Entry left, Apart apart = {}) {
    for (Index k = 0; k < depth; ++k, right += step) {
        Vec<F> row[wide];
        for (int j = 0; j < wide; ++j) row[j] = in_register(load(right + j * apart));
        const auto entries = left(k);
#pragma GCC unroll 32
        for (int r = 0; r < tall; ++r)
#pragma GCC unroll 32
            for (int j = 0; j < wide; ++j) sum[r][j] += entries(r) * row[j];
        // For some processors GCC would round a single product before it adds it; then sums would depend on the blocks.
        if (tall * wide == 1) sum[0][0] = in_register(sum[0][0]);
    }
}

// Right factors. Rows one after the other, at a distance that may be known to the compiler ...
template <typename F, typename Step>
struct Rows {
    const F *data;
    Step row;
    static constexpr Constant<Vector<F>::size> apart{};

    const F *at(Index column) const { return data + column; }
    template <typename Work>
    void stripes(Index columns, Index rows, Work work) const { in_stripes<F>(columns, rows, work); }
};

template <typename F, typename Step>
Rows<F, Step> rows_of(const F *x, Step row) { return {x, row}; }

// ... or in panels as wide as a cache line, which a product reads from the first number to the last, two vectors at once.
template <typename F>
struct Panels {
    static constexpr Index block = Vector<F>::block;
    static constexpr bool whole = block == Vector<F>::size;  // a panel is one vector
    static constexpr Constant<block> row{};
    const F *data;
    Index depth;
    std::conditional_t<whole, Index, Constant<Vector<F>::size>> apart;

    Panels(const F *data, Index depth) : data(data), depth(depth) {
        if constexpr (whole) apart = block * depth;
    }

    const F *at(Index column) const { return data + column * depth; }
    template <typename Work>
    void stripes(Index columns, Index, Work work) const {
        Index j = 0;
        for (; j + 2 * Vector<F>::size <= columns; j += 2 * Vector<F>::size) work(j, Number<2>());
        if (j < columns) work(j, Number<1>());
    }
};

enum class Into { set, biased, times, plus };

// One block of a product, whose sums stay in registers.
template <Into into, int tall, int wide, typename F, typename Right, typename Step>
inline void block(Index depth, const F *a, Index ai, Index ak, const F *b, const Right &right, F *c, Step ldc,
                  const F *bias) {
    constexpr Index size = Vector<F>::size;
    Vec<F> sum[tall][wide];
    // Loops over sums are unrolled from the start: unrolled later, GCC 12 would keep the sums in memory as well.
#pragma GCC unroll 32
    for (int r = 0; r < tall; ++r)
#pragma GCC unroll 32
        for (int j = 0; j < wide; ++j) sum[r][j] = into == Into::biased ? load(bias + j * size) : Vec<F>{};
    const auto left = [a, ai, ak](Index k) { return [entry = a + k * ak, ai](int r) { return entry[r * ai]; }; };
    accumulate(sum, depth, b, right.row, left, right.apart);
#pragma GCC unroll 32
    for (int r = 0; r < tall; ++r)
#pragma GCC unroll 32
        for (int j = 0; j < wide; ++j) {
            F *to = c + r * ldc + j * size;
            store(to, into == Into::times ? load(to) * sum[r][j] : into == Into::plus ? load(to) + sum[r][j] : sum[r][j]);
        }
}

// C = A B, C = A B + bias, C *= A B or C += A B, where A(i, k) = a[i * ai + k * ak], the rows of C lie ldc apart, and
// columns come in whole vectors.
template <Into into, typename F, typename Right, typename Step>
inline void product(Index rows, Index columns, Index depth, const F *a, Index ai, Index ak, Right b, F *c, Step ldc,
                    const F *bias = nullptr) {
    b.stripes(columns, rows, [&](Index column, auto wide) {
        constexpr int width = decltype(wide)::value;
        const F *right = b.at(column), *offset = bias + (into == Into::biased ? column : 0);
        in_blocks<width>(rows, [&](Index first, auto tall) {
            F *to = c + first * ldc + column;
            block<into, decltype(tall)::value, width>(depth, a + first * ai, ai, ak, right, b, to, ldc, offset);
        });
    });
}

// Calls work(width). The width of the published collections is known to the compiler, which then unrolls loops and has
// few addresses to compute.
template <typename Work>
inline auto with_width(Index width, Work work) {
    return width == 32 ? work(Constant<32>()) : work(width);
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

    Panels<F> matrix() const { return {data.data(), depth}; }
};

// Adds the rows of a matrix to `sum`, `wide` vectors at a time.
template <int wide, typename F>
inline void add_rows(const F *a, Index rows, Index columns, F *sum) {
    using V = Vec<F>;
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

// The sums below have the same order on every processor, that of vectors of 32 bytes, and it is not left to the compiler
// whether products are rounded before they are added.

// The sum of squares, in double precision; `count` is a multiple of eight.
template <typename F>
inline double square_of(const F *x, Index count) {
    typedef double V __attribute__((vector_size(32)));
    constexpr Index size = 32 / sizeof(F);
    V sum[size / 4] = {};
    for (Index i = 0; i < count; i += size)
        for (Index j = 0; j < size; j += 4) {
            const V v = {x[i + j], x[i + j + 1], x[i + j + 2], x[i + j + 3]};
            sum[j / 4] += in_register(v * v);
        }
    return sum_of(size == 4 ? sum[0] : sum[0] + sum[size / 4 - 1]);
}

template <bool rounded, typename F, typename Width>
inline F dot(const F *a, const F *b, Width count) {
    typedef F V __attribute__((vector_size(32), aligned(sizeof(F)), may_alias));
    constexpr Index size = 32 / sizeof(F);
    V sum{};
    for (Index i = 0; i < count; i += size) {
        const V product = *reinterpret_cast<const V *>(a + i) * *reinterpret_cast<const V *>(b + i);
        sum += rounded ? in_register(product) : product;
    }
    F total = 0;
    for (Index i = 0; i < size; ++i) total += sum[i];
    return total;
}

#ifdef __AVX__
// Of eight vectors the sums over their lanes, each from the first lane to the last.
inline __m256 sums_over_lanes(const __m256 *v) {
    __m256 lane[8];
    for (int half = 0; half < 2; ++half, v += 4) {
        const __m256 a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpacklo_ps(v[2], v[3]);
        const __m256 c = _mm256_unpackhi_ps(v[0], v[1]), d = _mm256_unpackhi_ps(v[2], v[3]);
        lane[half] = _mm256_shuffle_ps(a, b, 0x44), lane[half + 2] = _mm256_shuffle_ps(a, b, 0xEE);
        lane[half + 4] = _mm256_shuffle_ps(c, d, 0x44), lane[half + 6] = _mm256_shuffle_ps(c, d, 0xEE);
    }
    __m256 total = _mm256_setzero_ps();
    for (int i = 0; i < 8; i += 2) total += _mm256_permute2f128_ps(lane[i], lane[i + 1], 0x20);
    for (int i = 0; i < 8; i += 2) total += _mm256_permute2f128_ps(lane[i], lane[i + 1], 0x31);
    return total;
}
#endif

// to[r] = dot(w, row r) for rows that lie one after the other, with the sums of `dot`.
template <bool rounded, typename F, typename Width>
inline void dots(const F *w, const F *rows, Index count, Width width, F *to) {
    Index r = 0;
#ifdef __AVX__
    if constexpr (std::is_same_v<F, float>)
        for (; r + 8 <= count; r += 8) {
            __m256 sum[8] = {};
            for (Index i = 0; i < width; i += 8) {
                const __m256 weight = _mm256_loadu_ps(w + i);
                for (int j = 0; j < 8; ++j) {
                    const __m256 product = weight * _mm256_loadu_ps(rows + (r + j) * width + i);
                    sum[j] += rounded ? in_register(product) : product;
                }
            }
            _mm256_storeu_ps(to + r, sums_over_lanes(sum));
        }
#endif
    for (; r < count; ++r) to[r] = dot<rounded>(w, rows + r * width, width);
}

}  // namespace
