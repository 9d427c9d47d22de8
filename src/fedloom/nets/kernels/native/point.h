// A 1x1 convolution of z = relu(normalize(y)), forward and backward: products of matrices in panels, some rows of maps at a time.
// z is computed where it is needed, and never in memory as a whole.
#pragma once

#include "rows.h"

#include <vector>

namespace {

constexpr int64_t ADDED = 2048;  // rows over which the weight's gradient is added up in T

// None without a weight, (out, in).
template <typename T> struct Point {
    const T* weight;
    int64_t in, out;
};

// Rows of maps before `row`.
template <typename T> void add_rows_before(Ahead& ahead, const T* maps, int64_t row, int64_t channels) {
    const int64_t count = std::min(row, ROWS);
    if (maps) ahead.add(maps + (row - count) * channels, count * channels * sizeof(T));
}

// From rows of y to z, or to what the 1x1 convolution makes of z. `moments`: where sums of that and of its squares are added up.
template <typename T> struct Result {
    Result(const Norm<T>& norm, const Point<T>& point, double* moments)
        : norm(norm), point(point), moments(moments), weight(1, point.weight ? point.in : 0, point.out),
          z(some_rows<T>(point.weight ? point.in : 0)), panel(some_rows<T>(1)) {
        if (point.weight) turn_to_panels<T>(point.weight, point.in, InPanels<T>(weight), point.out, point.in);
    }
    // Some rows from `first` on.
    void write(const T* y, T* made, int64_t first, int64_t rows) {
        if (!point.weight) return normalize<T, true>(y + first * point.in, made + first * point.in, norm, rows, point.in);
        for (int64_t row = first; row < first + rows; row += ROWS) {
            const int64_t count = std::min(ROWS, first + rows - row);
            T* to = made + row * point.out;
            Ahead ahead(fetches<T>(count, point.in, point.out));
            add_rows_before(ahead, y, row, point.in);
            add_rows_before(ahead, made, row, point.out);
            normalize<T, true>(y + row * point.in, InPanels<T>(z), norm, count, point.in);
            multiply(rows_of(z), weight, 0, to, count, point.in, point.out, false, panel, &ahead);
            if (moments) add_moments(to, count, point.out, moments, moments + point.out);
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
        if (!x) return rows_of(g + at, panels, count, channels);
        apply_gradients<T, true>(x + at, g + at, InPanels<T>(panels), norm, shares, count, channels);
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
    to_panels<T>(point.weight, in, InPanels<T>(weight), out, in);
    int64_t added = 0;
    backwards_by(ROWS, rows, [&](int64_t row, int64_t count) {
        Ahead ahead(2 * fetches<T>(count, in, out));
        add_rows_before<T>(ahead, of_z, row, in);
        add_rows_before(ahead, y, row, in);
        add_rows_before(ahead, gradient.g, row, out);
        add_rows_before(ahead, gradient.x, row, out);
        const Rows<T> gradients = gradient.rows(row, count);
        normalize<T, true>(y + row * in, InPanels<T>(z), norm, count, in);
        multiply_turned(gradients, z, part, 0, count, out, in, added > 0, &ahead);
        multiply(gradients, weight, 0, of_z + row * in, count, out, in, false, panel, &ahead);
        add_gradients<T, true>(y + row * in, of_z + row * in, norm, count, in, sums, sums + in);
        if ((added += count) < ADDED && row > 0) return;
        from_panels<T>(InPanels<T>(part), of_weight, in, out, in);
        added = 0;
        for (size_t at = 0; at < totals.size(); ++at) totals[at] += of_weight[at];
    });
    for (size_t at = 0; at < totals.size(); ++at) of_weight[at] = (T)totals[at];
}

}  // namespace
