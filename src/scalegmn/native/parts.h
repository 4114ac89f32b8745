// What threads share out: parts of the rows of a net, and sums whose order does not depend on who is first.
//
// The parts follow from the sizes of the net alone. Every part has its own sums, which are added up one part after the
// other, so any number of threads gives the same bytes. Where there are fewer networks than parts a network is cut
// between targets, and what its pieces add to the same sources is added up in the same way.

#pragma once

#include <memory>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "net.h"

namespace {

struct Part {
    Index begin, end;    // networks
    Index start, stop;   // rows
    bool piece;          // of one network
};

// At most `most` parts of networks, and no part has fewer rows than `least` but for need.
template <typename F>
std::vector<Part> parts_of(const Net<F> &n, Index least, Index most) {
    const Index each = n.T * n.S, size = std::max(least, (n.rows() + most - 1) / most);
    std::vector<Part> found;
    if (each <= size || n.T == 1) {
        const Index count = std::max(size / each, Index(1));
        for (Index b = 0; b < n.B; b += count) {
            const Index end = std::min(b + count, n.B);
            found.push_back({b, end, b * each, end * each, false});
        }
        return found;
    }
    const Index pieces = (each + size - 1) / size, step = (n.T + pieces - 1) / pieces;
    for (Index b = 0; b < n.B; ++b)
        for (Index t = 0; t < n.T; t += step)
            found.push_back({b, b + 1, (b * n.T + t) * n.S, (b * n.T + std::min(t + step, n.T)) * n.S, true});
    return found;
}

// Rows of parts that have sums of their own, which cost as much as some rows: few parts, but never so few that threads wait.
inline Index least_rows(Index rows) {
    const Index least = std::max(rows / 8, std::min(std::max(rows / 4, Index(64)), Index(256)));
    return std::min(least, Index(1024));
}

// Rows of a tile: few enough for the caches, and a multiple of the rows that a product takes at once. Sums over rows want
// more of them: every tile adds to a whole matrix.
inline Index tile_rows(Index widest) { return std::min(std::max(6144 / widest / 12 * 12, Index(12)), Index(96)); }

// Calls work(thread, i) for i in [0, count).
template <typename Work>
void over(Index count, int threads, Work work) {
    const int team = static_cast<int>(std::min(Index(threads), count));
    bool failed = false;
#pragma omp parallel for schedule(dynamic, 1) num_threads(team) if (team > 1) reduction(|| : failed)
    for (Index i = 0; i < count; ++i) {
        // Nothing may be thrown out of a thread.
        try {
#ifdef _OPENMP
            work(omp_get_thread_num(), i);
#else
            work(0, i);
#endif
        } catch (const std::bad_alloc &) {
            failed = true;
        }
    }
    if (failed) throw std::bad_alloc();
}

// Calls work(first row, rows) for every tile of a part.
template <typename Work>
void over_tiles(const Part &part, Index size, Work work) {
    for (Index at = part.start; at < part.stop; at += size) work(at, std::min(size, part.stop - at));
}

// Arrays (B, S, width) that rows add to: those that Python sees, or a piece's own (S, width).
template <typename F>
class Gathered {
  public:
    using Arrays = std::vector<std::pair<F *, Index>>;

    // Arrays and their widths; some may be null.
    Gathered(const Part &part, Index S, Arrays arrays)
        : first(part.piece ? part.begin * S : 0), all(std::move(arrays)), own(part.piece ? all.size() : 0) {
        for (std::size_t i = 0; i < own.size(); ++i) own[i].assign(all[i].first ? S * all[i].second : 0, F(0));
    }

    // An array whose row (b S + s) - first belongs to source s of network b.
    F *at(std::size_t i) { return own.empty() || !all[i].first ? all[i].first : own[i].data(); }

    // Add a piece's own to what Python sees.
    void add() const {
        for (std::size_t i = 0; i < own.size(); ++i) {
            F *to = all[i].first + first * all[i].second;
            for (std::size_t j = 0; j < own[i].size(); ++j) to[j] += own[i][j];
        }
    }

    const Index first;

  private:
    Arrays all;
    std::vector<Array<F>> own;
};

}  // namespace
