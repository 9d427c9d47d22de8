// Convolutions with any kernel and stride, channels last, as products of matrices: what is under one tap of the kernel, at some of
// its places at a time, and the weights of that tap.
//
//     y = sum of U_t W_t'    over taps t; U_t: (places, in), pixels of the input    W_t: (out, in)
//     of W_t: g' U_t         of the input: g W_t, added where U_t was taken from
#include "pooling.h"
#include "rows.h"

#include <vector>

namespace {

constexpr int64_t ADDED = 2048;  // places over which the weight's gradient is added up in T

struct Shape {
    int64_t images, high, wide, in, out, kernel_high, kernel_wide, down, right, above, left, made_high, made_wide;
    int64_t taps() const { return kernel_high * kernel_wide; }
    int64_t places() const { return images * made_high * made_wide; }
    // whether rows of the input are what is under the kernel, one after the other
    bool plain() const { return taps() == 1 && down == 1 && right == 1 && above == 0 && left == 0; }
};

// For some places of the kernel, where the pixel under its first tap begins, and its row and column.
struct Places {
    Places(const Shape& s, int64_t first, int64_t count) : s(s), pixels(count) {
        int64_t j = first % s.made_wide, i = first / s.made_wide % s.made_high, image = first / (s.made_high * s.made_wide);
        for (Pixel& pixel : pixels) {
            pixel = {image * s.high * s.wide, i * s.down - s.above, j * s.right - s.left};
            if (++j < s.made_wide) continue;
            j = 0;
            if (++i < s.made_high) continue;
            i = 0;
            ++image;
        }
    }
    struct Pixel {
        int64_t image, row, column;
    };
    // Where the pixel under a tap begins at every place; `outside` where that is not in the image.
    template <typename T> void under(int64_t tap, T* x, T* outside, std::vector<T*>& begins) const {
        const int64_t below = tap / s.kernel_wide, along = tap % s.kernel_wide;
        for (size_t place = 0; place < pixels.size(); ++place) {
            const int64_t row = pixels[place].row + below, column = pixels[place].column + along;
            const bool inside = row >= 0 && row < s.high && column >= 0 && column < s.wide;
            begins[place] = inside ? x + (pixels[place].image + row * s.wide + column) * s.in : outside;
        }
    }
    const Shape& s;
    std::vector<Pixel> pixels;
};

template <typename T> void forward(const T* x, const T* weight, const T* bias, T* y, const Shape& s) {
    const int64_t taps = s.taps();
    const Matrix<T> weights(taps, s.in, s.out), pixels = some_rows<T>(s.in), panel = some_rows<T>(1);
    const std::vector<T> zeros(s.in);
    std::vector<const T*> begins(ROWS);
    for (int64_t tap = 0; tap < taps; ++tap) turn_to_panels<T>(weight + tap * s.in, taps * s.in, InPanels<T>(weights, tap), s.out, s.in);
    for (int64_t first = 0; first < s.places(); first += ROWS) {
        const int64_t count = std::min(ROWS, s.places() - first);
        const Places places(s, first, count);
        T* to = y + first * s.out;
        for (int64_t tap = 0; tap < taps; ++tap) {
            Rows<T> rows = rows_of(pixels);
            if (s.plain()) {
                rows = rows_of(x + first * s.in, pixels, count, s.in);
            } else {
                places.under(tap, x, zeros.data(), begins);
                gather_to_panels<T>([&](int64_t row) INLINED { return begins[row]; }, InPanels<T>(pixels), count, s.in);
            }
            multiply(rows, weights, tap, to, count, s.in, s.out, tap > 0, panel);
        }
        if (bias) shift(to, bias, count, s.out);
    }
}

template <typename T> void weight_gradient(const T* x, const T* g, T* of_weight, const Shape& s) {
    const int64_t taps = s.taps(), all = s.places();
    const Matrix<T> parts(taps, Matrix<T>::needed(s.out) * P<T>, s.in), pixels = some_rows<T>(s.in), gradients = some_rows<T>(s.out);
    const std::vector<T> zeros(s.in);
    std::vector<const T*> begins(ROWS);
    std::vector<double> totals(all > ADDED ? taps * s.out * s.in : 0);
    int64_t added = 0;
    for (int64_t first = 0; first < all; first += ROWS) {
        const int64_t count = std::min(ROWS, all - first);
        const Places places(s, first, count);
        const Rows<T> rows = rows_of(g + first * s.out, gradients, count, s.out);
        for (int64_t tap = 0; tap < taps; ++tap) {
            places.under(tap, x, zeros.data(), begins);
            gather_to_panels<T>([&](int64_t row) INLINED { return begins[row]; }, InPanels<T>(pixels), count, s.in);
            multiply_turned(rows, pixels, parts, tap, count, s.out, s.in, added > 0);
        }
        if ((added += count) < ADDED && first + count < all) continue;
        added = 0;
        for (int64_t tap = 0; tap < taps; ++tap) from_panels<T>(InPanels<T>(parts, tap), of_weight + tap * s.in, taps * s.in, s.out, s.in);
        for (size_t at = 0; at < totals.size(); ++at) totals[at] += of_weight[at];
    }
    for (size_t at = 0; at < totals.size(); ++at) of_weight[at] = (T)totals[at];
}

template <typename T> void input_gradient(const T* weight, const T* g, T* of_x, const Shape& s) {
    const int64_t taps = s.taps(), all = s.places();
    const Matrix<T> weights(taps, s.out, s.in), gradients = some_rows<T>(s.out), panel = some_rows<T>(1);
    std::vector<T> products(ROWS * s.in);
    std::vector<T*> begins(ROWS);
    for (int64_t tap = 0; tap < taps; ++tap) to_panels<T>(weight + tap * s.in, taps * s.in, InPanels<T>(weights, tap), s.out, s.in);
    if (!s.plain()) std::fill(of_x, of_x + s.images * s.high * s.wide * s.in, T(0));
    for (int64_t first = 0; first < all; first += ROWS) {
        const int64_t count = std::min(ROWS, all - first);
        const Places places(s, first, count);
        const Rows<T> rows = rows_of(g + first * s.out, gradients, count, s.out);
        for (int64_t tap = 0; tap < taps; ++tap) {
            multiply(rows, weights, tap, s.plain() ? of_x + first * s.in : products.data(), count, s.out, s.in, false, panel);
            if (s.plain()) continue;
            places.under(tap, of_x, (T*)nullptr, begins);
            for (int64_t row = 0; row < count; ++row)
                if (begins[row])
                    for (int64_t c = 0; c < s.in; ++c) begins[row][c] += products[row * s.in + c];
        }
    }
}

}  // namespace

#define FUNCTIONS(T, type)                                                                                             \
    EXPORT(im2col_forward, type)(const T* x, const T* weight, const T* bias, T* y, const Shape* shape) {               \
        forward(x, weight, bias, y, *shape);                                                                           \
    }                                                                                                                  \
    EXPORT(im2col_weight, type)(const T* x, const T* g, T* of_weight, const Shape* shape) {                            \
        weight_gradient(x, g, of_weight, *shape);                                                                      \
    }                                                                                                                  \
    EXPORT(im2col_input, type)(const T* weight, const T* g, T* of_x, const Shape* shape) {                             \
        input_gradient(weight, g, of_x, *shape);                                                                       \
    }                                                                                                                  \
    EXPORT(im2col_bias, type)(const T* g, T* of_bias, const Shape* s) {                                                \
        sum_gradients<T>(g, nullptr, of_bias, s->images, s->made_high * s->made_wide, s->out);                         \
    }
FUNCTIONS(float, f32)
FUNCTIONS(double, f64)
