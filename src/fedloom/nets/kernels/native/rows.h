// Products of rows of maps with matrices of weights, channels last: some rows at a time, in panels.
#pragma once

#include "norm.h"
#include "panels.h"
#include "turn.h"

namespace {

constexpr int64_t ROWS = 96;   // a multiple of the rows that panels.h computes at once
constexpr int64_t DEEP = 192;  // rows of a panel that the nearest cache holds
constexpr int64_t WIDE = 256;  // channels beyond which rows lie too far apart to be read side by side
constexpr int64_t RUNS = 8;    // stretches of a panel's width over which a product is added up
constexpr int64_t SUMMED = 32;  // rows over which a product is added up, where sums are over rows

constexpr int64_t VECTORS = VECTOR_BYTES == 64 ? 2 : 3;  // of a panel

template <typename T> using Matrix = Panels<T, VECTORS>;
template <typename T> constexpr int64_t P = Matrix<T>::WIDTH;

// Room for some rows of maps. A row more than there are, so that an odd number of cache lines lies between the beginnings of panels.
template <typename T> Matrix<T> some_rows(int64_t channels) { return Matrix<T>(1, ROWS + 1, channels); }

// Where rows are read or written: in panels.
template <typename T> struct InPanels {
    explicit InPanels(const Matrix<T>& panels, int64_t matrix = 0) : first(panels.at(matrix, 0)), jump(panels.jump()) {}
    T* first;
    int64_t jump;
    template <typename Work> static INLINE void each(int64_t channels, Work work) { each_block_of<T, 2 * VECTORS, VECTORS, 2, 1>(channels, work); }
    INLINE T* at(int64_t row, int64_t c, int64_t k) const {
        return first + c / P<T> * jump + row * P<T> + c % P<T> + k / VECTORS * jump + k % VECTORS * LANES<T>;
    }
    template <bool W> INLINE void set(int64_t row, int64_t c, int64_t k, Vec<T> value, int64_t) const { store(at(row, c, k), value); }
};

// from(row): where a row begins.
template <typename T, typename From> INLINE void gather_to_panels(From from, InPanels<T> to, int64_t rows, int64_t channels) {
    to.each(channels, [&](int64_t first, auto vectors, auto whole, int64_t count) INLINED {
        for (int64_t row = 0; row < rows; ++row)
            UNROLL for (int64_t k = 0; k < decltype(vectors)::value; ++k)
                store(to.at(row, first, k), get<decltype(whole)::value>(from(row) + first + k * LANES<T>, count));
    });
}

// Rows that are `apart`.
template <typename T> void to_panels(const T* from, int64_t apart, InPanels<T> to, int64_t rows, int64_t channels) {
    gather_to_panels<T>([&](int64_t row) INLINED { return from + row * apart; }, to, rows, channels);
}

template <typename T> void from_panels(InPanels<T> from, T* to, int64_t apart, int64_t rows, int64_t channels) {
    from.each(channels, [&](int64_t first, auto vectors, auto whole, int64_t count) INLINED {
        for (int64_t row = 0; row < rows; ++row)
            UNROLL for (int64_t k = 0; k < decltype(vectors)::value; ++k)
                put<decltype(whole)::value>(to + row * apart + first + k * LANES<T>, load(from.at(row, first, k)), count);
    });
}

// weight: (out, in), rows that are `apart`; its outputs become columns, in panels.
template <typename T> void turn_to_panels(const T* weight, int64_t apart, InPanels<T> to, int64_t out, int64_t in) {
    for (int64_t o = 0; o < out; o += P<T>) turn_matrix(weight + o * apart, apart, to.at(0, o, 0), P<T>, std::min(P<T>, out - o), in);
}

// Some rows of maps, or of their gradients: in panels, or one after the other.
template <typename T> struct Rows {
    const T* first;
    int64_t apart, jump;  // from a row to the next, and from P columns to the next
};
template <typename T> Rows<T> rows_of(const Matrix<T>& panels) { return {panels.at(0, 0), P<T>, panels.jump()}; }

// Rows that are one after the other in memory, as they are or in panels.
template <typename T> Rows<T> rows_of(const T* from, const Matrix<T>& panels, int64_t rows, int64_t channels) {
    if (channels <= WIDE) return {from, channels, P<T>};
    to_panels<T>(from, channels, InPanels<T>(panels), rows, channels);
    return rows_of(panels);
}

// About how often such a product fetches what is ahead.
template <typename T> int64_t fetches(int64_t rows, int64_t depth, int64_t columns) {
    return Matrix<T>::needed(columns) * std::max<int64_t>(rows / (24 / VECTORS), 1) * std::max<int64_t>(depth / P<T>, 1);
}

// C = A B, or with `add` C += A B: (rows, depth) times (depth, columns), where B is one of several matrices; rows of C are one after
// the other. `panel`: room for a panel of C whose last vector is cut.
template <typename T>
void multiply(const Rows<T>& a, const Matrix<T>& b, int64_t matrix, T* c, int64_t rows, int64_t depth, int64_t columns, bool add, const Matrix<T>& panel,
              Ahead* ahead = nullptr) {
    for (int64_t at = 0; at < columns; at += P<T>) {
        const int64_t count = std::min(P<T>, columns - at);
        const bool cut = count % LANES<T>;
        if (cut && add) to_panels<T>(c + at, columns, InPanels<T>(panel), rows, count);
        for (int64_t done = 0; done < depth; done += DEEP)
            multiply_panel<T, VECTORS, false>(
                a.first + done / P<T> * a.jump, b.at(matrix, at / P<T>, done), cut ? panel.at(0, 0) : c + at, rows, count,
                {std::min(DEEP, depth - done), P<T>, a.jump, RUNS, add || done > 0, a.apart, cut ? P<T> : columns, ahead});
        if (cut) from_panels<T>(InPanels<T>(panel), c + at, columns, rows, count);
    }
}

// Adds the sums over some rows of g' u, (out, in), to one of the matrices in `part`, or with `add` false begins them there.
template <typename T>
void multiply_turned(const Rows<T>& g, const Matrix<T>& u, const Matrix<T>& part, int64_t matrix, int64_t rows, int64_t out, int64_t in, bool add,
                     Ahead* ahead = nullptr) {
    const Steps<T> steps{rows, SUMMED, SUMMED * g.apart, 1, add, g.apart, P<T>, ahead};
    for (int64_t i = 0; i < in; i += P<T>)
        for (int64_t o = 0; o < out; o += P<T>)
            multiply_panel<T, VECTORS, true>(g.first + o / P<T> * g.jump, u.at(0, i / P<T>), part.at(matrix, i / P<T>, o), std::min(P<T>, out - o), in - i, steps);
}

}  // namespace
