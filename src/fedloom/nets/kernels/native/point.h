// A 1x1 convolution of z = relu(normalize(y)), forward and backward: products of matrices in panels, some rows of maps at a time.
// z is computed where it is needed, and never in memory as a whole.
#pragma once

#include "norm.h"
#include "panels.h"

#include <vector>

namespace {

constexpr int64_t ROWS = 96;     // a multiple of the rows that panels.h computes at once
constexpr int64_t DEEP = 192;    // rows of a panel that the nearest cache holds
constexpr int64_t WIDE = 256;    // channels beyond which rows lie too far apart to be read side by side
constexpr int64_t RUNS = 8;      // stretches of a panel's width over which a product is added up
constexpr int64_t ADDED = 2048;  // rows over which the weight's gradient is added up in T

template <typename T> using Matrix = Panels<T, 3>;
template <typename T> constexpr int64_t P = Matrix<T>::WIDTH;

// None without a weight, (out, in).
template <typename T> struct Point {
    const T* weight;
    int64_t in, out;
};

// Room for some rows of maps. A row more than there are, so that an odd number of cache lines lies between the beginnings of panels.
template <typename T> Matrix<T> some_rows(int64_t channels) { return Matrix<T>(1, ROWS + 1, channels); }

// Where rows are read or written: in panels.
template <typename T> struct InPanels {
    explicit InPanels(const Matrix<T>& panels) : first(panels.at(0, 0)), jump(panels.jump()) {}
    T* first;
    int64_t jump;
    template <typename Work> static INLINE void each(int64_t channels, Work work) { each_block_of<T, 6, 3, 2, 1>(channels, work); }
    INLINE T* at(int64_t row, int64_t c, int64_t k) const {
        return first + c / P<T> * jump + row * P<T> + c % P<T> + k / 3 * jump + k % 3 * LANES<T>;
    }
    template <bool W> INLINE void set(int64_t row, int64_t c, int64_t k, Vec<T> value, int64_t) const { store(at(row, c, k), value); }
};

template <typename T> void to_panels(const T* from, const Matrix<T>& panels, int64_t rows, int64_t channels) {
    const InPanels<T> to(panels);
    to.each(channels, [&](int64_t first, auto vectors, auto whole, int64_t count) INLINED {
        for (int64_t row = 0; row < rows; ++row)
            UNROLL for (int64_t k = 0; k < decltype(vectors)::value; ++k)
                store(to.at(row, first, k), get<decltype(whole)::value>(from + row * channels + first + k * LANES<T>, count));
    });
}

template <typename T> void from_panels(const Matrix<T>& panels, T* to, int64_t rows, int64_t channels) {
    const InPanels<T> from(panels);
    from.each(channels, [&](int64_t first, auto vectors, auto whole, int64_t count) INLINED {
        for (int64_t row = 0; row < rows; ++row)
            UNROLL for (int64_t k = 0; k < decltype(vectors)::value; ++k)
                put<decltype(whole)::value>(to + row * channels + first + k * LANES<T>, load(from.at(row, first, k)), count);
    });
}

// weight: (out, in); its outputs become columns, in panels.
template <typename T> void turn_to_panels(const T* weight, const Matrix<T>& panels, int64_t out, int64_t in) {
    const InPanels<T> to(panels);
    constexpr int64_t SOME = 64;  // rows of a panel that stay in the nearest cache
    for (int64_t first = 0; first < in; first += SOME)
        for (int64_t o = 0; o < out; ++o)
            for (int64_t i = first; i < std::min(first + SOME, in); ++i) *to.at(i, o, 0) = weight[o * in + i];
}

// Some rows of maps, or of their gradients: in panels, or one after the other.
template <typename T> struct Rows {
    const T* first;
    int64_t apart, jump;  // from a row to the next, and from P columns to the next
};
template <typename T> Rows<T> rows_of(const Matrix<T>& panels) { return {panels.at(0, 0), P<T>, panels.jump()}; }

// C = A B, (rows, depth) times (depth, columns); rows of C are one after the other. `panel`: room for a panel of C that is cut.
template <typename T>
void multiply(const Rows<T>& a, const Matrix<T>& b, T* c, int64_t rows, int64_t depth, int64_t columns, const Matrix<T>& panel) {
    for (int64_t at = 0; at < columns; at += P<T>) {
        const bool cut = columns - at < P<T>;
        for (int64_t done = 0; done < depth; done += DEEP)
            multiply_panel<T, 3, false>(
                a.first + done / P<T> * a.jump, b.at(0, at / P<T>, done), cut ? panel.at(0, 0) : c + at, rows, columns - at,
                {std::min(DEEP, depth - done), P<T>, a.jump, RUNS, done > 0, a.apart, cut ? P<T> : columns});
        if (cut)
            for (int64_t row = 0; row < rows; ++row)
                std::memcpy(c + row * columns + at, panel.at(0, 0, row), (columns - at) * sizeof(T));
    }
}

// From rows of y to z, or to what the 1x1 convolution makes of z. `moments`: where sums of that and of its squares are added up.
template <typename T> struct Result {
    Result(const Norm<T>& norm, const Point<T>& point, double* moments)
        : norm(norm), point(point), moments(moments), weight(1, point.weight ? point.in : 0, point.out),
          z(some_rows<T>(point.weight ? point.in : 0)), panel(some_rows<T>(1)) {
        if (point.weight) turn_to_panels(point.weight, weight, point.out, point.in);
    }
    void write(const T* y, T* to, int64_t rows) {
        if (!point.weight) return normalize<T, true>(y, to, norm, rows, point.in);
        for (int64_t row = 0; row < rows; row += ROWS) {
            const int64_t count = std::min(ROWS, rows - row);
            normalize<T, true>(y + row * point.in, InPanels<T>(z), norm, count, point.in);
            multiply(rows_of(z), weight, to + row * point.out, count, point.in, point.out, panel);
            if (moments) add_moments(to + row * point.out, count, point.out, moments, moments + point.out);
        }
    }
    const Norm<T>& norm;
    const Point<T>& point;
    double* moments;
    Matrix<T> weight, z, panel;
};

// The gradient of what a 1x1 convolution makes. It is g; or, where x is given, g is the gradient of relu(normalize(x)), and x is what
// the convolution made: then rows of its gradient are computed when they are asked for.
template <typename T> struct Gradient {
    Gradient(const T* g, const T* x, const Norm<T>& norm, const T* shares, int64_t channels)
        : g(g), x(x), shares(shares), norm(norm), channels(channels), panels(some_rows<T>(x || channels > WIDE ? channels : 0)) {}
    Rows<T> rows(int64_t first, int64_t count) const {
        const int64_t at = first * channels;
        if (x) apply_gradients<T, true>(x + at, g + at, InPanels<T>(panels), norm, shares, count, channels);
        else if (channels > WIDE) to_panels(g + at, panels, count, channels);
        else return {g + at, channels, P<T>};
        return rows_of(panels);
    }
    const T *g, *x, *shares;
    Norm<T> norm;
    int64_t channels;
    Matrix<T> panels;
};

// The gradient of the weight, and that of z, of which sums for the normalization of y are added up.
template <typename T>
void point_backward(const T* y, const Gradient<T>& gradient, const Norm<T>& norm, const Point<T>& point, T* of_z, T* of_weight, double* sums,
                    int64_t rows) {
    const int64_t in = point.in, out = point.out;
    const Matrix<T> weight(1, out, in), part(1, Matrix<T>::needed(out) * P<T>, in), z = some_rows<T>(in), panel = some_rows<T>(1);
    std::vector<double> totals(rows > ADDED ? out * in : 0);
    to_panels(point.weight, weight, out, in);
    int64_t added = 0;
    backwards_by(ROWS, rows, [&](int64_t row, int64_t count) {
        const Rows<T> gradients = gradient.rows(row, count);
        const Steps<T> steps{count, count, 0, 1, added > 0, gradients.apart, P<T>};
        normalize<T, true>(y + row * in, InPanels<T>(z), norm, count, in);
        for (int64_t i = 0; i < in; i += P<T>)
            for (int64_t o = 0; o < out; o += P<T>)
                multiply_panel<T, 3, true>(gradients.first + o / P<T> * gradients.jump, z.at(0, i / P<T>), part.at(0, i / P<T>, o),
                                           std::min(P<T>, out - o), in - i, steps);
        multiply(gradients, weight, of_z + row * in, count, out, in, panel);
        add_gradients<T, true>(y + row * in, of_z + row * in, norm, count, in, sums, sums + in);
        if ((added += count) < ADDED && row > 0) return;
        from_panels(part, of_weight, out, in);
        added = 0;
        for (size_t at = 0; at < totals.size(); ++at) totals[at] += of_weight[at];
    });
    for (size_t at = 0; at < totals.size(); ++at) of_weight[at] = (T)totals[at];
}

}  // namespace
