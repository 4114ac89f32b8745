// The vectors m = vertex * (edge x) on edges as one tensor, and their gradients, a tile of rows at a time.
//
// Of `Net` only sizes, x, edge, vertex, by_target and threads are read.

#pragma once

#include "parts.h"

namespace {

template <typename F>
struct DenseGradients {
    const F *out;          // (B, T, S, middle)
    F *x, *edge, *vertex;  // x is set and may be null, the others are added to
};

template <typename F>
void check_dense(const Net<F> &n) {
    constexpr Index most = Index(1) << 31, block = Vector<F>::block;
    for (Index size : {n.B, n.T, n.S}) expect(0 < size && size < most, "B, T and S must be 1 or more");
    for (Index width : {n.inputs, n.middle})
        expect(0 < width && width < most && width % block == 0, "widths must be multiples of two vectors");
    for (const F *p : {n.x, n.edge, n.vertex}) expect(p && aligned(p), "an array is missing");
    expect(0 < n.threads && n.threads <= 4096, "threads must be 1 to 4096");
}

// Calls work(r, row of the vertex) for the rows of a tile.
template <typename F, typename Work>
void over_vertices(const Net<F> &n, Index start, Index rows, Work work) {
    Index target = start / n.S, s = start % n.S;
    for (Index r = 0; r < rows; ++r) {
        work(r, n.by_target ? target : target / n.T * n.S + s);
        if (++s == n.S) s = 0, ++target;
    }
}

template <typename F>
void dense_forward(const Net<F> &n, F *out) {
    const Index middle = n.middle, k = n.inputs, tile = tile_rows(std::max(k, middle));
    const auto parts = parts_of(n, 64, 64);
    Packed<F> edge;
    edge.pack(n.edge, middle, k, true);
    over(parts.size(), n.threads, [&](int, Index i) {
        over_tiles(parts[i], tile, [&](Index start, Index rows) {
            F *m = out + start * middle;
            fetch(m, rows * middle);
            product<Into::set>(rows, middle, k, n.x + start * k, k, Index(1), edge.matrix(), m, middle);
            over_vertices(n, start, rows, [&](Index r, Index vertex) {
                const F *v = n.vertex + vertex * middle;
                F *o = m + r * middle;
                for (Index i = 0; i < middle; i += Vector<F>::size) store(o + i, load(o + i) * load(v + i));
            });
        });
    });
}

template <typename F>
void dense_backward(const Net<F> &n, const DenseGradients<F> &d) {
    const Index middle = n.middle, k = n.inputs, tile = tile_rows(std::max(k, middle));
    const auto parts = parts_of(n, least_rows(n.rows()), 32);
    const bool pieces = parts.front().piece;
    Packed<F> edge, back;
    edge.pack(n.edge, middle, k, true);
    back.pack(n.edge, middle, k, false);
    std::vector<Array<F>> sums(parts.size()), scratch(n.threads);
    std::vector<std::unique_ptr<Gathered<F>>> places(parts.size());
    over(parts.size(), n.threads, [&](int t, Index i) {
        sums[i].assign(middle * k, F(0));
        scratch[t].resize(tile * middle);
        places[i].reset(new Gathered<F>(parts[i], n.S, {{n.by_target ? nullptr : d.vertex, middle}}));
        const Index first = n.by_target ? 0 : places[i]->first;
        F *de = scratch[t].data(), *to = n.by_target ? d.vertex : places[i]->at(0);
        over_tiles(parts[i], tile, [&](Index start, Index rows) {
            const F *x = n.x + start * k;
            if (d.x) fetch(d.x + start * k, rows * k);
            product<Into::set>(rows, middle, k, x, k, Index(1), edge.matrix(), de, middle);
            over_vertices(n, start, rows, [&](Index r, Index vertex) {
                const F *v = n.vertex + vertex * middle, *g = d.out + (start + r) * middle;
                F *dv = to + (vertex - first) * middle, *e = de + r * middle;
                for (Index i = 0; i < middle; i += Vector<F>::size) {
                    const Vec<F> q = load(g + i);
                    store(dv + i, load(dv + i) + q * load(e + i));
                    store(e + i, q * load(v + i));
                }
            });
            product<Into::plus>(middle, k, rows, de, Index(1), middle, rows_of(x, k), sums[i].data(), k);
            if (d.x) product<Into::set>(rows, k, middle, de, middle, Index(1), back.matrix(), d.x + start * k, k);
        });
    });
    if (pieces) {
        const Index each = parts.size() / n.B;
        over(n.B, n.threads, [&](int, Index b) {
            for (Index i = b * each; i < (b + 1) * each; ++i) places[i]->add();
        });
    }
    for (const auto &sum : sums)
        for (Index j = 0; j < middle * k; ++j) d.edge[j] += sum[j];
}

}  // namespace
