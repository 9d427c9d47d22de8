// Products of matrices whose columns are kept in panels: P columns of a row next to each other, then the next row's.
//
// Everything that a product reads or writes is then a stream of whole cache lines, in whichever way a matrix is used.
#pragma once

#include "common.h"

#include <memory>

template <typename T> constexpr int64_t P = 3 * LANES<T>;  // columns of a panel
template <typename T> int64_t panels_of(int64_t columns) { return (columns + P<T> - 1) / P<T>; }

// A number of matrices in panels. They do not begin at the same place of a memory page, or caches would not hold them: an odd
// number of cache lines lies between their beginnings.
template <typename T> struct Panels {
    Panels(int64_t matrices, int64_t rows, int64_t columns)
        : rows(rows), panels(panels_of<T>(columns)), apart(distance(rows * panels * P<T>)), own(new T[matrices * apart + LINE]),
          numbers((T*)(((uintptr_t)own.get() + 63) / 64 * 64)) {}
    T* at(int64_t matrix, int64_t panel, int64_t row = 0) const { return numbers + matrix * apart + (panel * rows + row) * P<T>; }
    int64_t jump() const { return rows * P<T>; }  // from a panel to the next

    static constexpr int64_t LINE = 64 / sizeof(T);
    static int64_t distance(int64_t count) { return ((count + LINE - 1) / LINE | 1) * LINE; }
    int64_t rows, panels, apart;
    std::unique_ptr<T[]> own;
    T* numbers;
};

// A panel of C = A B, or of C += A B. Steps over the depth are made in stretches of `length`, between which A jumps; the sums of
// `run` stretches are added up, so that errors do not grow with the depth.
// Rows of A, or its columns where it is turned, are `apart`; rows of C are `down`.
template <typename T> struct Steps {
    int64_t depth, length, jump, run;
    bool add;
    int64_t apart = P<T>, down = P<T>;
};

// R rows and K vectors of columns. TURNED: A is stored with its columns as rows.
template <typename T, bool TURNED, int64_t R, int64_t K> void multiply_rows(const T* a, const T* b, T* c, const Steps<T>& steps) {
    constexpr int64_t L = LANES<T>;
    const int64_t below = TURNED ? 1 : steps.apart, along = TURNED ? steps.apart : 1;
    bool add = steps.add;
    for (int64_t done = 0; done < steps.depth;) {
        Vec<T> sums[R][K] = {};
        for (int64_t n = 0; n < steps.run && done < steps.depth; ++n) {
            const int64_t length = std::min(steps.length, steps.depth - done);
            const T* from = a;
            STEPS for (int64_t i = 0; i < length; ++i, from += along, b += P<T>) {
                Vec<T> values[K];
                UNROLL for (int64_t k = 0; k < K; ++k) values[k] = load(b + k * L);
                UNROLL for (int64_t r = 0; r < R; ++r) {
                    const T factor = from[r * below];
                    UNROLL for (int64_t k = 0; k < K; ++k) sums[r][k] += values[k] * factor;
                }
            }
            a += steps.jump;
            done += length;
        }
        UNROLL for (int64_t r = 0; r < R; ++r)
            UNROLL for (int64_t k = 0; k < K; ++k) {
                T* to = c + r * steps.down + k * L;
                store(to, add ? load(to) + sums[r][k] : sums[r][k]);
            }
        add = true;
    }
}

// As many rows at once as there are registers for.
template <typename T, bool TURNED, int64_t K>
void multiply_vectors(const T* a, const T* b, T* c, int64_t rows, const Steps<T>& steps) {
    constexpr int64_t R = (VECTOR_BYTES == 64 ? 24 : 12) / K;
    const int64_t below = TURNED ? 1 : steps.apart;
    int64_t row = 0;
    const auto some = [&](auto number) {
        constexpr int64_t N = decltype(number)::value;
        for (; rows - row >= N; row += N) multiply_rows<T, TURNED, N, K>(a + row * below, b, c + row * steps.down, steps);
    };
    some(Number<R>{});
    if (R > 8) some(Number<8>{});
    if (R > 4) some(Number<4>{});
    some(Number<2>{});
    some(Number<1>{});
}

// `columns`: of the panel, as many as are needed.
template <typename T, bool TURNED>
void multiply_panel(const T* a, const T* b, T* c, int64_t rows, int64_t columns, const Steps<T>& steps) {
    if (columns > 2 * LANES<T>) multiply_vectors<T, TURNED, 3>(a, b, c, rows, steps);
    else if (columns > LANES<T>) multiply_vectors<T, TURNED, 2>(a, b, c, rows, steps);
    else multiply_vectors<T, TURNED, 1>(a, b, c, rows, steps);
}
