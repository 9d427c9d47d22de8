// Products of matrices that are in the nearer caches.
#pragma once

#include "common.h"

// What becomes of a product: it is written, added or subtracted.
enum Into { SET, ADD, SUBTRACT };

// C = A B, C += A B or C -= A B: (rows, depth) times (depth, columns). In B and C the numbers of a row are next to each other; in A they
// are `along` apart, and rows `down`. Sums over `run` numbers are added up, so that errors do not grow with the depth.
template <typename T> struct Product {
    const T* a;
    int64_t down, along;
    const T* b;
    int64_t b_row;
    T* c;
    int64_t c_row, rows, columns, depth, run;
    Into into;
};

template <typename T, int64_t R, int64_t K, bool W> void block(const Product<T>& p, int64_t row, int64_t column, int64_t count) {
    constexpr int64_t L = LANES<T>, STARTS = (R + 2) / 3;  // of every third row: addresses of the others are sums of two
    const T* b = p.b + column;
    T* c = p.c + row * p.c_row + column;
    const T* a[STARTS];
    for (int64_t t = 0; t < STARTS; ++t) a[t] = p.a + (row + 3 * t) * p.down;
    for (int64_t begin = 0; begin < p.depth; begin += p.run) {
        const int64_t length = std::min(p.run, p.depth - begin);
        Vec<T> sums[R][K] = {};
        STEPS for (int64_t i = 0; i < length; ++i) {
            Vec<T> values[K];
            for (int64_t k = 0; k < K; ++k) values[k] = get<W>(b + k * L, count);
            for (int64_t r = 0; r < R; ++r) {
                const T factor = a[r / 3][r % 3 * p.down];
                for (int64_t k = 0; k < K; ++k) sums[r][k] += values[k] * factor;
            }
            for (int64_t t = 0; t < STARTS; ++t) a[t] += p.along;
            b += p.b_row;
        }
        const bool more = p.into != SET || begin > 0;
        for (int64_t r = 0; r < R; ++r)
            for (int64_t k = 0; k < K; ++k) {
                T* to = c + r * p.c_row + k * L;
                const Vec<T> sum = p.into == SUBTRACT ? -sums[r][k] : sums[r][k];
                put<W>(to, more ? get<W>(to, count) + sum : sum, count);
            }
    }
}

// As many rows at once as there are registers for.
template <typename T, int64_t K, bool W> void all_rows(const Product<T>& p, int64_t column, int64_t count) {
    constexpr int64_t R = VECTOR_BYTES == 64 ? 12 : 6;
    int64_t row = 0;
    for (; p.rows - row >= R; row += R) block<T, R, K, W>(p, row, column, count);
    if (R == 12 && p.rows - row >= 8) block<T, 8, K, W>(p, row, column, count), row += 8;
    if (p.rows - row >= 4) block<T, 4, K, W>(p, row, column, count), row += 4;
    if (p.rows - row >= 2) block<T, 2, K, W>(p, row, column, count), row += 2;
    for (; row < p.rows; ++row) block<T, 1, K, W>(p, row, column, count);
}

template <typename T> void multiply(const Product<T>& p) {
    constexpr int64_t L = LANES<T>;
    int64_t column = 0;
    for (; p.columns - column >= 2 * L; column += 2 * L) all_rows<T, 2, true>(p, column, L);
    for (; p.columns - column >= L; column += L) all_rows<T, 1, true>(p, column, L);
    if (column < p.columns) all_rows<T, 1, false>(p, column, p.columns - column);
}
