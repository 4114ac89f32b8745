// Vectors of numbers, memory for them, and the boundary: what Python hands over is checked here before it is used.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef __AVX__
#include <immintrin.h>
#endif

namespace {

using Index = std::int64_t;

// Vectors as wide as the processor's, and the numbers of a cache line, to whole multiples of which widths are padded.
#ifdef __AVX512F__
constexpr Index BYTES = 64;
#else
constexpr Index BYTES = 32;
#endif

template <typename F>
struct Vector {
    typedef F type __attribute__((vector_size(BYTES), aligned(sizeof(F)), may_alias));
    static constexpr Index size = BYTES / sizeof(F);
    static constexpr Index block = 64 / sizeof(F);
};

template <typename F>
using Vec = typename Vector<F>::type;

template <typename F>
inline Vec<F> load(const F *p) { return *reinterpret_cast<const Vec<F> *>(p); }

template <typename F>
inline void store(F *p, Vec<F> v) { *reinterpret_cast<Vec<F> *>(p) = v; }

// Fetch rows that will be written soon, so that they are there by then.
template <typename F>
inline void fetch(F *p, Index count) {
    constexpr Index line = 64 / sizeof(F);
    for (Index i = 0; i < count; i += line) __builtin_prefetch(p + i, 1);
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

template <typename F>
inline auto vectors(Array<F> &a) { return reinterpret_cast<Vec<F> *>(a.data()); }

// -- the boundary ----------------------------------------------------------------------------------------------------

// What a caller did wrong; it becomes one line there.
struct Refusal {
    const char *what;
};

inline void expect(bool right, const char *what) {
    if (!right) throw Refusal{what};
}

template <typename T>
inline bool aligned(const T *p) { return reinterpret_cast<std::uintptr_t>(p) % alignof(T) == 0; }

// Numbers in a row, and how many there are.
template <typename T>
struct Span {
    T *data;
    Index count;

    void expect_count(Index wanted, const char *what) const {
        expect(count == wanted && (data || !count) && aligned(data), what);
    }

    void expect_within(Index low, Index high, const char *what) const {
        bool right = true;
        for (Index i = 0; i < count; ++i) right &= low <= data[i] && data[i] <= high;
        expect(right, what);
    }
};

// Runs work() and gives null, or what was wrong: nothing is thrown into Python.
template <typename Work>
const char *guarded(Work work) {
    try {
        work();
        return nullptr;
    } catch (const Refusal &refusal) {
        return refusal.what;
    } catch (const std::bad_alloc &) {
        return "not enough memory";
    } catch (...) {
        return "an unknown failure";
    }
}

}  // namespace
