// Convolutions as products of spectra, channels last: ../spectra.py has the transforms and their tables.
//
//     X = there(x)    W = there(w)    Y = X W, frequency by frequency, over channels    y = back(Y)
//
// A spectrum has two parts, real and imaginary, of U x V frequencies. Numbers that are multiplied together are kept together:
// (part, U, maps, V, channels). Images, kernels and their gradients are all transformed by the same two functions.
#include "common.h"
#include "pooling.h"
#include "product.h"
#include "turn.h"

#include <memory>
#include <vector>

namespace {

constexpr int64_t APART = 16;  // numbers between rows

struct Shape {
    int64_t images, high, wide, in, out, kernel_high, kernel_wide, made_high, made_wide, U, V;
    int64_t taps() const { return kernel_high * kernel_wide; }
    int64_t pixels() const { return high * wide; }
    int64_t made() const { return made_high * made_wide; }
};

// From maps of one size to their spectra, or by the transpose back. across: (2V, wide); down: (2U, 2 high)
template <typename T> struct Transform {
    int64_t high, wide, U, V;
    const T* across;
    const T* down;
    int64_t numbers() const { return 2 * V * wide + 4 * U * high; }
};

// The spectra of a number of maps. No two rows begin at the same place of a memory page, or caches would not hold them.
template <typename T> struct Spectra {
    Spectra(const Shape& s, int64_t maps, int64_t channels, T* room = nullptr)
        : U(s.U), channels(channels), map(s.V * channels + APART), row(maps * map + 3 * APART),
          own(room ? nullptr : new T[2 * U * row]), numbers(room ? room : own.get()) {}
    T* of(int64_t number) const { return numbers + number * map; }
    T* real(int64_t u, int64_t v) const { return numbers + u * row + v * channels; }
    T* imaginary(int64_t u, int64_t v) const { return real(U + u, v); }
    int64_t U, channels, map, row;
    std::unique_ptr<T[]> own;
    T* numbers;
};

// Rows of a map after the first transform: (high, part, V, channels), each part with some room behind it.
template <typename T> int64_t room(const Transform<T>& t, int64_t channels) { return 2 * t.high * (t.V * channels + APART); }

template <typename T> void there(const Transform<T>& t, const T* map, const Spectra<T>& spectra, int64_t number, T* rows) {
    const int64_t channels = spectra.channels, part = t.V * channels + APART;
    for (int64_t half = 0; half < 2 * t.high; ++half)
        multiply(Product<T>{t.across + half % 2 * t.V * t.wide, t.wide, 1, map + half / 2 * t.wide * channels, channels,
                            rows + half * part, channels, t.V, channels, t.wide, t.wide, SET});
    multiply(Product<T>{t.down, 2 * t.high, 1, rows, part, spectra.of(number), spectra.row, 2 * t.U, t.V * channels,
                        2 * t.high, 2 * t.high, SET});
}

template <typename T> void back(const Transform<T>& t, const Spectra<T>& spectra, int64_t number, T* map, T* rows) {
    const int64_t channels = spectra.channels, part = t.V * channels + APART;
    multiply(Product<T>{t.down, 1, 2 * t.high, spectra.of(number), spectra.row, rows, part, 2 * t.high, t.V * channels,
                        2 * t.U, 2 * t.U, SET});
    for (int64_t half = 0; half < 2 * t.high; ++half)
        multiply(Product<T>{t.across + half % 2 * t.V * t.wide, 1, t.wide, rows + half * part, channels,
                            map + half / 2 * t.wide * channels, channels, t.wide, channels, t.V, t.V, half % 2 ? ADD : SET});
}

// All maps, one after the other in memory.
template <typename T> void all_there(const Transform<T>& t, const T* maps, const Spectra<T>& spectra, int64_t count) {
    std::unique_ptr<T[]> rows(new T[room(t, spectra.channels)]);
    for (int64_t number = 0; number < count; ++number)
        there(t, maps + number * t.high * t.wide * spectra.channels, spectra, number, rows.get());
}

template <typename T> void all_back(const Transform<T>& t, const Spectra<T>& spectra, T* maps, int64_t count) {
    std::unique_ptr<T[]> rows(new T[room(t, spectra.channels)]);
    for (int64_t number = 0; number < count; ++number)
        back(t, spectra, number, maps + number * t.high * t.wide * spectra.channels, rows.get());
}

// C = A B at every frequency, over channels or maps; or A times the conjugate of B. `one` has the sizes of these products.
template <typename T, bool CONJUGATE>
void multiply_spectra(const Shape& s, const Spectra<T>& a, const Spectra<T>& b, const Spectra<T>& c, Product<T> one) {
    one.b_row = b.map, one.c_row = c.map;
    const auto product = [&](const T* left, const T* right, T* to, Into into) {
        one.a = left, one.b = right, one.c = to, one.into = into;
        multiply(one);
    };
    for (int64_t u = 0; u < s.U; ++u)
        for (int64_t v = 0; v < s.V; ++v) {
            const T *a_r = a.real(u, v), *a_i = a.imaginary(u, v), *b_r = b.real(u, v), *b_i = b.imaginary(u, v);
            T *real = c.real(u, v), *imaginary = c.imaginary(u, v);
            product(a_r, b_r, real, SET);
            product(a_i, b_i, real, CONJUGATE ? ADD : SUBTRACT);
            product(CONJUGATE ? a_i : a_r, CONJUGATE ? b_r : b_i, imaginary, SET);
            product(CONJUGATE ? a_r : a_i, CONJUGATE ? b_i : b_r, imaginary, CONJUGATE ? SUBTRACT : ADD);
        }
}

// (rows, depth) times (depth, columns); A's numbers are `along` apart in a row, its rows `down`.
template <typename T> Product<T> sizes(int64_t down, int64_t along, int64_t rows, int64_t columns, int64_t depth, int64_t run) {
    return Product<T>{nullptr, down, along, nullptr, 0, nullptr, 0, rows, columns, depth, run, SET};
}

// The tables of images, kernels and results, one after the other.
template <typename T> struct Plan {
    Plan(const T* tables, const Shape& s) {
        image = Transform<T>{s.high, s.wide, s.U, s.V, tables, tables + 2 * s.V * s.wide};
        tables += image.numbers();
        kernel = Transform<T>{s.kernel_high, s.kernel_wide, s.U, s.V, tables, tables + 2 * s.V * s.kernel_wide};
        tables += kernel.numbers();
        made = Transform<T>{s.made_high, s.made_wide, s.U, s.V, tables, tables + 2 * s.V * s.made_wide};
    }
    Transform<T> image, kernel, made;
};

// seen: room for the images' spectra, which the backward pass uses again; none without it
template <typename T>
void forward(const T* x, const T* weight, const T* bias, const T* tables, T* y, T* which, T* seen, const Shape& s, bool pooled) {
    const Plan<T> plan(tables, s);
    const Spectra<T> images(s, s.images, s.in, seen), kernels(s, s.in, s.out), results(s, s.images, s.out);
    {
        std::unique_ptr<T[]> turned(new T[s.taps() * s.in * s.out]);
        turn(weight, turned.get(), s.out, s.taps(), s.in);
        all_there<T>(plan.kernel, turned.get(), kernels, s.in);
    }
    all_there(plan.image, x, images, s.images);
    multiply_spectra<T, false>(s, images, kernels, results, sizes<T>(images.map, 1, s.images, s.out, s.in, s.in));
    const Pooling pooling{s.made_high, s.made_wide, s.out};
    std::unique_ptr<T[]> rows(new T[room(plan.made, s.out)]), map(new T[s.made() * s.out]);
    for (int64_t image = 0; image < s.images; ++image) {
        T* to = pooled ? map.get() : y + image * s.made() * s.out;
        back(plan.made, results, image, to, rows.get());
        const int64_t first = image * pooling.windows() * s.out;
        if (pooled) pool(map.get(), bias, y + first, which ? which + first : nullptr, pooling);
        else if (bias) shift(to, bias, s.made(), s.out);
    }
}

// No gradient is computed where there is no room for it.
template <typename T>
void backward(const T* seen, const T* weight, const T* g, const T* which, const T* tables, T* of_x, T* of_weight, T* of_bias, const Shape& s) {
    const Plan<T> plan(tables, s);
    const Spectra<T> gradients(s, s.images, s.out);
    const Pooling pooling{s.made_high, s.made_wide, s.out};
    std::fill(of_bias, of_bias + s.out, T(0));
    {
        std::unique_ptr<T[]> rows(new T[room(plan.made, s.out)]), map(new T[s.made() * s.out]), sums(new T[s.out]);
        for (int64_t image = 0; image < s.images; ++image) {
            const T* from = which ? map.get() : g + image * s.made() * s.out;
            const int64_t first = image * pooling.windows() * s.out;
            if (which) unpool(g + first, which + first, map.get(), pooling);
            sum_pixels(from, sums.get(), s.made(), s.out);
            for (int64_t c = 0; c < s.out; ++c) of_bias[c] += sums[c];
            there(plan.made, from, gradients, image, rows.get());
        }
    }
    if (of_x) {
        const Spectra<T> kernels(s, s.out, s.in), of_images(s, s.images, s.in);
        all_there(plan.kernel, weight, kernels, s.out);
        multiply_spectra<T, true>(s, gradients, kernels, of_images, sizes<T>(gradients.map, 1, s.images, s.in, s.out, s.out));
        all_back(plan.image, of_images, of_x, s.images);
    }
    if (of_weight) {
        const Spectra<T> images(s, s.images, s.in, const_cast<T*>(seen)), of_kernels(s, s.out, s.in);
        const int64_t run = std::max<int64_t>(12, std::sqrt((double)s.images));
        multiply_spectra<T, true>(s, gradients, images, of_kernels, sizes<T>(1, gradients.map, s.out, s.in, s.images, run));
        all_back(plan.kernel, of_kernels, of_weight, s.out);
    }
}

}  // namespace

#define FUNCTIONS(T, type)                                                                                             \
    EXPORT(spectral_forward, type)                                                                                     \
    (const T* x, const T* weight, const T* bias, const T* tables, T* y, T* which, T* seen, const Shape* shape,         \
     int64_t pooled) {                                                                                                 \
        forward(x, weight, bias, tables, y, which, seen, *shape, pooled);                                              \
    }                                                                                                                  \
    EXPORT(spectral_backward, type)                                                                                    \
    (const T* seen, const T* weight, const T* g, const T* which, const T* tables, T* of_x, T* of_weight, T* of_bias,   \
     const Shape* shape) {                                                                                             \
        backward(seen, weight, g, which, tables, of_x, of_weight, of_bias, *shape);                                    \
    }
FUNCTIONS(float, f32)
FUNCTIONS(double, f64)
