// What all kernels share: vectors as wide as the processor's, and the names under which functions are exported.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

#define INLINED __attribute__((always_inline))  // of lambdas, too: what they refer to then stays in registers
#define INLINE inline INLINED
#define UNROLL _Pragma("GCC unroll 16")  // loops over vectors that are to stay in registers
#define STEPS _Pragma("GCC unroll 4")    // loops over a depth, whose counting would take a sixth of all instructions

// One function of the library for numbers of one type: EXPORT(name, f32)(...).
#define EXPORT(name, type) extern "C" __attribute__((visibility("default"))) void fedloom_##name##_##type

template <typename T> struct Vectors;
template <> struct Vectors<float> {
    typedef float type __attribute__((vector_size(VECTOR_BYTES)));
    typedef float loose __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
    typedef int32_t mask __attribute__((vector_size(VECTOR_BYTES)));
};
template <> struct Vectors<double> {
    typedef double type __attribute__((vector_size(VECTOR_BYTES)));
    typedef double loose __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
    typedef int64_t mask __attribute__((vector_size(VECTOR_BYTES)));
};

template <typename T> using Vec = typename Vectors<T>::type;
template <typename T> constexpr int64_t LANES = VECTOR_BYTES / sizeof(T);

template <typename T> INLINE Vec<T> load(const T* from) { return *(const typename Vectors<T>::loose*)from; }
template <typename T> INLINE void store(T* to, Vec<T> value) { *(typename Vectors<T>::loose*)to = value; }

// The first `count` lanes; the others are zero.
template <typename T> INLINE Vec<T> load(const T* from, int64_t count) {
    T lanes[LANES<T>] = {};
    std::memcpy(lanes, from, count * sizeof(T));
    return load(lanes);
}
template <typename T> INLINE void store(T* to, Vec<T> value, int64_t count) {
    T lanes[LANES<T>];
    store(lanes, value);
    std::memcpy(to, lanes, count * sizeof(T));
}
template <typename T> INLINE Vec<T> splat(T value) { return value - Vec<T>{}; }

// A whole number that is known when compiling, as an argument.
template <int64_t N> struct Number { static constexpr int64_t value = N; };

// All lanes, or where the last vector of a row is cut, the first `count`.
template <bool WHOLE, typename T> INLINE Vec<T> get(const T* from, int64_t count) {
    if constexpr (WHOLE) return load(from);
    else return load(from, count);
}
template <bool WHOLE, typename T> INLINE void put(T* to, Vec<T> value, int64_t count) {
    if constexpr (WHOLE) store(to, value);
    else store(to, value, count);
}

// Walks over the channels of a row in blocks of several vectors: work(first channel, vectors, whole, lanes of a cut one). BLOCKS: how
// many vectors, the largest number first, one last.
template <typename T, int64_t... BLOCKS, typename Work> INLINE void each_block_of(int64_t channels, Work work) {
    constexpr int64_t L = LANES<T>;
    int64_t c = 0;
    const auto blocks = [&](auto vectors) INLINED {
        constexpr int64_t K = decltype(vectors)::value;
        for (; channels - c >= K * L; c += K * L) work(c, vectors, Number<1>{}, L);
    };
    (blocks(Number<BLOCKS>{}), ...);
    if (channels > c) work(c, Number<1>{}, Number<0>{}, channels - c);
}
template <typename T, typename Work> INLINE void each_block(int64_t channels, Work work) { each_block_of<T, 8, 4, 2, 1>(channels, work); }

// Where rows of numbers are read or written: one after the other.
template <typename T> struct InRows {
    T* first;
    int64_t channels;
    template <typename Work> static INLINE void each(int64_t channels, Work work) { each_block<T>(channels, work); }
    // vector k of the block that begins with channel c
    INLINE T* at(int64_t row, int64_t c, int64_t k) const { return first + row * channels + c + k * LANES<T>; }
    template <bool W> INLINE void set(int64_t row, int64_t c, int64_t k, Vec<T> value, int64_t count) const { put<W>(at(row, c, k), value, count); }
};

// Adds lanes to totals in double precision, half a vector at a time.
template <typename T> INLINE void add_lanes(double* totals, Vec<T> value, int64_t count = LANES<T>) {
    typedef T Half __attribute__((vector_size(LANES<double> * sizeof(T)), may_alias));
    alignas(VECTOR_BYTES) T lanes[LANES<T>];
    store(lanes, value);
    int64_t lane = 0;
    for (; count - lane >= LANES<double>; lane += LANES<double>)
        store(totals + lane, load(totals + lane) + __builtin_convertvector(*(const Half*)(lanes + lane), Vec<double>));
    for (; lane < count; ++lane) totals[lane] += (double)lanes[lane];
}

// Hands out pieces of one block of memory, each at the beginning of a cache line.
struct Workspace {
    char* next;
    template <typename N> N* take(int64_t count) {
        char* piece = (char*)(((uintptr_t)next + 63) / 64 * 64);
        next = piece + count * sizeof(N);
        return (N*)piece;
    }
};
