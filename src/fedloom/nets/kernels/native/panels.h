// Products of matrices whose columns are kept in panels: V vectors of a row's columns, then those of the next row.
//
// Everything that a product reads or writes is then a stream of whole cache lines, in whichever way a matrix is used.
#pragma once

#include "ahead.h"
#include "common.h"

#include <memory>

// A number of matrices in panels. They do not begin at the same place of a memory page, or caches would not hold them: an odd
// number of cache lines lies between their beginnings.
template <typename T, int64_t V> struct Panels {
    static constexpr int64_t WIDTH = V * LANES<T>, LINE = 64 / sizeof(T);
    static int64_t needed(int64_t columns) { return (columns + WIDTH - 1) / WIDTH; }
    static int64_t distance(int64_t count) { return ((count + LINE - 1) / LINE | 1) * LINE; }

    Panels(int64_t matrices, int64_t rows, int64_t columns)
        : rows(rows), panels(needed(columns)), apart(distance(rows * panels * WIDTH)), own(new T[matrices * apart + LINE]),
          numbers((T*)(((uintptr_t)own.get() + 63) / 64 * 64)) {}
    T* at(int64_t matrix, int64_t panel, int64_t row = 0) const { return numbers + matrix * apart + (panel * rows + row) * WIDTH; }
    int64_t jump() const { return rows * WIDTH; }  // from a panel to the next

    int64_t rows, panels, apart;
    std::unique_ptr<T[]> own;
    T* numbers;
};

// A panel of C = A B, or of C += A B. Steps over the depth are made in stretches of `length`, between which A jumps; the sums of
// `run` stretches are added up, so that errors do not grow with the depth. `apart`: from a row of A to the next, or where A is turned,
// from a column to the next. `down`: from a row of C to the next. `lost`: from numbers of C to what rounding took from them, which is added
// with the next stretches; none if it is zero.
template <typename T> struct Steps {
    int64_t depth, length, jump, run;
    bool add;
    int64_t apart, down;
    Ahead* ahead = nullptr;
    int64_t lost = 0;
};

// R rows and K vectors of columns. TURNED: A is stored with its columns as rows.
template <typename T, int64_t V, bool TURNED, int64_t R, int64_t K> void multiply_rows(const T* a, const T* b, T* c, const Steps<T>& steps) {
    constexpr int64_t L = LANES<T>;
    const int64_t below = TURNED ? 1 : steps.apart, along = TURNED ? steps.apart : 1;
    bool add = steps.add;
    for (int64_t done = 0; done < steps.depth;) {
        Vec<T> sums[R][K] = {};
        for (int64_t n = 0; n < steps.run && done < steps.depth; ++n) {
            const int64_t length = std::min(steps.length, steps.depth - done);
            const T* from = a;
            STEPS for (int64_t i = 0; i < length; ++i, from += along, b += V * L) {
                Vec<T> values[K];
                UNROLL for (int64_t k = 0; k < K; ++k) values[k] = load(b + k * L);
                UNROLL for (int64_t r = 0; r < R; ++r) {
                    const T factor = from[r * below];
                    UNROLL for (int64_t k = 0; k < K; ++k) sums[r][k] += values[k] * factor;
                }
            }
            a += steps.jump;
            done += length;
            if (steps.ahead) steps.ahead->fetch();
        }
        const int64_t down = steps.down, lost = steps.lost;  // read after the loop, where they would take registers
        const auto each = [&](auto work) INLINED {
            T* to = c;
            UNROLL for (int64_t r = 0; r < R; ++r, to += down)
                UNROLL for (int64_t k = 0; k < K; ++k) work(to + k * L, sums[r][k]);
        };
        if (lost)
            each([&](T* to, Vec<T> sum) INLINED {
                const Vec<T> before = add ? load(to) : Vec<T>{}, more = add ? sum + load(to + lost) : sum, after = before + more;
                store(to, after);
                store(to + lost, more - (after - before));
            });
        else if (add) each([](T* to, Vec<T> sum) INLINED { store(to, load(to) + sum); });
        else each([](T* to, Vec<T> sum) INLINED { store(to, sum); });
        add = true;
    }
}

// As many rows at once as there are registers for.
template <typename T, int64_t V, bool TURNED, int64_t K>
void multiply_vectors(const T* a, const T* b, T* c, int64_t rows, const Steps<T>& steps) {
    constexpr int64_t R = (VECTOR_BYTES == 64 ? 24 : 12) / K;
    const int64_t below = TURNED ? 1 : steps.apart;
    int64_t row = 0;
    const auto some = [&](auto number) {
        constexpr int64_t N = decltype(number)::value;
        for (; rows - row >= N; row += N) multiply_rows<T, V, TURNED, N, K>(a + row * below, b, c + row * steps.down, steps);
    };
    some(Number<R>{});
    if (R > 8) some(Number<8>{});
    if (R > 4) some(Number<4>{});
    some(Number<2>{});
    some(Number<1>{});
}

// `columns`: of the panel, as many as are needed.
template <typename T, int64_t V, bool TURNED>
void multiply_panel(const T* a, const T* b, T* c, int64_t rows, int64_t columns, const Steps<T>& steps) {
    if (columns <= LANES<T>) return multiply_vectors<T, V, TURNED, 1>(a, b, c, rows, steps);
    if (V > 2 && columns <= 2 * LANES<T>) return multiply_vectors<T, V, TURNED, 2>(a, b, c, rows, steps);
    multiply_vectors<T, V, TURNED, V>(a, b, c, rows, steps);
}
