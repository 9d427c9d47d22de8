// Products of matrices whose columns are kept in panels: P columns of a row next to each other, then the next row's.
//
// Everything that a product reads or writes is then a stream of whole cache lines, in whichever way a matrix is used.
#pragma once

#include "common.h"

#include <memory>

template <typename T> constexpr int64_t P = 2 * LANES<T>;  // columns of a panel
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
template <typename T> struct Steps {
    int64_t depth, length, jump, run;
    bool add;
};

// R rows. TURNED: A is stored with its columns as rows, so that a row's numbers are P apart.
template <typename T, bool TURNED, int64_t R> void multiply_rows(const T* a, const T* b, T* c, const Steps<T>& steps) {
    constexpr int64_t L = LANES<T>, DOWN = TURNED ? 1 : P<T>, ALONG = TURNED ? P<T> : 1;
    bool add = steps.add;
    for (int64_t done = 0; done < steps.depth;) {
        Vec<T> sums[R][2] = {};
        for (int64_t k = 0; k < steps.run && done < steps.depth; ++k) {
            const int64_t length = std::min(steps.length, steps.depth - done);
            const T* from = a;
            for (int64_t i = 0; i < length; ++i, from += ALONG, b += P<T>) {
                const Vec<T> left = load(b), right = load(b + L);
                for (int64_t r = 0; r < R; ++r) {
                    const T factor = from[r * DOWN];
                    sums[r][0] += left * factor;
                    sums[r][1] += right * factor;
                }
            }
            a += steps.jump;
            done += length;
        }
        for (int64_t r = 0; r < R; ++r)
            for (int64_t half = 0; half < 2; ++half) {
                T* to = c + r * P<T> + half * L;
                store(to, add ? load(to) + sums[r][half] : sums[r][half]);
            }
        add = true;
    }
}

// As many rows at once as there are registers for.
template <typename T, bool TURNED>
void multiply_panel(const T* a, const T* b, T* c, int64_t rows, const Steps<T>& steps) {
    constexpr int64_t R = VECTOR_BYTES == 64 ? 12 : 6, DOWN = TURNED ? 1 : P<T>;
    int64_t row = 0;
    const auto some = [&](auto number) {
        constexpr int64_t N = decltype(number)::value;
        for (; rows - row >= N; row += N) multiply_rows<T, TURNED, N>(a + row * DOWN, b, c + row * P<T>, steps);
    };
    some(Number<R>{});
    if (R == 12) some(Number<8>{});
    some(Number<4>{});
    some(Number<2>{});
    some(Number<1>{});
}
