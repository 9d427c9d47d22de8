// Products of complex matrices, real and imaginary parts apart, that are in the nearer caches.
#pragma once

#include "common.h"

template <typename T> struct Complex {
    T *real, *imaginary;
};

// C = A B, or A times the conjugate of B: (rows, depth) times (depth, columns). Rows of B and C are next to each other; in A the
// numbers of a row are `along` apart, and rows `down`. Sums over `run` numbers are added up, so that errors do not grow with the depth.
template <typename T> struct ComplexProduct {
    Complex<T> a, b, c;
    int64_t down, along, rows, columns, depth, run;
};

template <typename T, bool CONJUGATE, int64_t R, int64_t K, bool W>
void block(const ComplexProduct<T>& p, int64_t row, int64_t column, int64_t count) {
    constexpr int64_t L = LANES<T>;
    const T *a_r = p.a.real + row * p.down, *a_i = p.a.imaginary + row * p.down;
    const T *b_r = p.b.real + column, *b_i = p.b.imaginary + column;
    T *c_r = p.c.real + row * p.columns + column, *c_i = p.c.imaginary + row * p.columns + column;
    for (int64_t begin = 0; begin < p.depth; begin += p.run) {
        const int64_t length = std::min(p.run, p.depth - begin);
        Vec<T> real[R][K] = {}, imaginary[R][K] = {};
        STEPS for (int64_t i = 0; i < length; ++i, a_r += p.along, a_i += p.along, b_r += p.columns, b_i += p.columns) {
            Vec<T> right_r[K], right_i[K];
            UNROLL for (int64_t k = 0; k < K; ++k) right_r[k] = get<W>(b_r + k * L, count), right_i[k] = get<W>(b_i + k * L, count);
            UNROLL for (int64_t r = 0; r < R; ++r) {
                const Vec<T> left_r = splat<T>(a_r[r * p.down]), left_i = splat<T>(a_i[r * p.down]);
                UNROLL for (int64_t k = 0; k < K; ++k) {
                    real[r][k] += left_r * right_r[k];
                    imaginary[r][k] += left_i * right_r[k];
                }
                UNROLL for (int64_t k = 0; k < K; ++k) {
                    if (CONJUGATE) real[r][k] += left_i * right_i[k], imaginary[r][k] -= left_r * right_i[k];
                    else real[r][k] -= left_i * right_i[k], imaginary[r][k] += left_r * right_i[k];
                }
            }
        }
        UNROLL for (int64_t r = 0; r < R; ++r)
            UNROLL for (int64_t k = 0; k < K; ++k) {
                T *to_r = c_r + r * p.columns + k * L, *to_i = c_i + r * p.columns + k * L;
                put<W>(to_r, begin > 0 ? get<W>(to_r, count) + real[r][k] : real[r][k], count);
                put<W>(to_i, begin > 0 ? get<W>(to_i, count) + imaginary[r][k] : imaginary[r][k], count);
            }
    }
}

// As many rows at once as there are registers for.
template <typename T, bool CONJUGATE, int64_t K, bool W> void all_rows(const ComplexProduct<T>& p, int64_t column, int64_t count) {
    constexpr int64_t R = VECTOR_BYTES == 64 ? 6 : 2;
    int64_t row = 0;
    for (; p.rows - row >= R; row += R) block<T, CONJUGATE, R, K, W>(p, row, column, count);
    if (R == 6 && p.rows - row >= 3) block<T, CONJUGATE, 3, K, W>(p, row, column, count), row += 3;
    for (; row < p.rows; ++row) block<T, CONJUGATE, 1, K, W>(p, row, column, count);
}

template <typename T, bool CONJUGATE> void multiply(const ComplexProduct<T>& p) {
    constexpr int64_t L = LANES<T>;
    int64_t column = 0;
    for (; p.columns - column >= 2 * L; column += 2 * L) all_rows<T, CONJUGATE, 2, true>(p, column, L);
    for (; p.columns - column >= L; column += L) all_rows<T, CONJUGATE, 1, true>(p, column, L);
    if (column < p.columns) all_rows<T, CONJUGATE, 1, false>(p, column, p.columns - column);
}
