// Matrices with their rows and columns exchanged.
#pragma once

#include "common.h"

#include <utility>

#if !defined(__has_builtin)
#define __has_builtin(x) 0
#endif

// Exchanges the numbers of `a` whose lane has bit S with those of `b` whose lane does not have it.
template <int64_t S, typename T, size_t... LANE> INLINE void exchange(Vec<T>& a, Vec<T>& b, std::index_sequence<LANE...>) {
    constexpr int64_t L = LANES<T>;
#if __has_builtin(__builtin_shufflevector)
    const Vec<T> first = __builtin_shufflevector(a, b, (LANE & S ? L + LANE - S : LANE)...);
    b = __builtin_shufflevector(a, b, (LANE & S ? L + LANE : LANE + S)...);
#else
    const typename Vectors<T>::mask low = {(LANE & S ? L + LANE - S : LANE)...}, high = {(LANE & S ? L + LANE : LANE + S)...};
    const Vec<T> first = __builtin_shuffle(a, b, low);
    b = __builtin_shuffle(a, b, high);
#endif
    a = first;
}

// A square of numbers in vectors: S = 1, then 2, 4 and so on.
template <typename T, int64_t S = 1> INLINE void turn_square(Vec<T>* rows) {
    if constexpr (S < LANES<T>) {
        UNROLL for (int64_t row = 0; row < LANES<T>; ++row)
            if (!(row & S)) exchange<S, T>(rows[row], rows[row + S], std::make_index_sequence<LANES<T>>{});
        turn_square<T, 2 * S>(rows);
    }
}

// to[column][row] = from[row][column]; `apart` and `down`: from a row to the next, of either.
template <typename T> void turn_matrix(const T* from, int64_t apart, T* to, int64_t down, int64_t rows, int64_t columns) {
    constexpr int64_t L = LANES<T>;
    for (int64_t row = 0; row < rows; row += L)
        for (int64_t column = 0; column < columns; column += L) {
            const int64_t high = std::min(L, rows - row), wide = std::min(L, columns - column);
            const T* first = from + row * apart + column;
            T* made = to + column * down + row;
            if (high == L && wide == L) {
                Vec<T> square[L];
                UNROLL for (int64_t r = 0; r < L; ++r) square[r] = load(first + r * apart);
                turn_square<T>(square);
                UNROLL for (int64_t r = 0; r < L; ++r) store(made + r * down, square[r]);
                continue;
            }
            for (int64_t c = 0; c < wide; ++c)
                for (int64_t r = 0; r < high; ++r) made[c * down + r] = first[r * apart + c];
        }
}

// Kernels with their inputs and outputs exchanged: weight: (out, taps, in); turned: (in, taps, out)
template <typename T> void turn(const T* weight, T* turned, int64_t out, int64_t taps, int64_t in) {
    for (int64_t tap = 0; tap < taps; ++tap) turn_matrix(weight + tap * in, taps * in, turned + tap * out, taps * out, out, in);
}
