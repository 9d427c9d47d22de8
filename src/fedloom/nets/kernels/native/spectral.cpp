// Convolutions as products of spectra, channels last: ../spectra.py has the transforms and their tables.
//
//     X = there(x)    W = there(w)    Y = X W, frequency by frequency, over channels    y = back(Y)
//
// A spectrum has two parts, real and imaginary, of U x V frequencies. Numbers that are multiplied together are next to each
// other: (part, U, V, maps, channels). Images, kernels and their gradients are all transformed by the same two functions.
#include "common.h"
#include "complex_product.h"
#include "pooling.h"
#include "product.h"
#include "turn.h"

#include <memory>
#include <vector>

namespace {

constexpr int64_t APART = 16;  // numbers between rows
constexpr int64_t RUN = 16;    // products that are added up, at least

struct Shape {
    int64_t images, high, wide, in, out, kernel_high, kernel_wide, made_high, made_wide, U, period;
    int64_t V() const { return period / 2 + 1; }  // of conjugate frequencies one is kept
    int64_t taps() const { return kernel_high * kernel_wide; }
    int64_t pixels() const { return high * wide; }
    int64_t made() const { return made_high * made_wide; }
};

// From maps of one size to their spectra, or by the transpose back. across: (V, part, wide). down: (U, high), the cosines of the
// frequencies up to U / 2, then the sines of those that are not their own conjugates.
template <typename T> struct Transform {
    int64_t high, wide, U, V;
    const T* across;
    const T* down;
    int64_t numbers() const { return 2 * V * wide + U * high; }
    int64_t pairs() const { return (U - 1) / 2; }  // of frequencies u and U - u
};

// The spectra of a number of maps: a matrix (maps, channels) for each part of each frequency. Matrices do not begin at the same
// place of a memory page, or caches would not hold them: an odd number of cache lines lies between their beginnings.
template <typename T> struct Spectra {
    Spectra(const Shape& s, int64_t maps, int64_t channels, T* room = nullptr)
        : U(s.U), V(s.V()), maps(maps), channels(channels), apart(((maps * channels + APART - 1) / APART | 1) * APART),
          own(room ? nullptr : new T[2 * U * V * apart]), numbers(room ? room : own.get()) {}
    Complex<T> at(int64_t u, int64_t v) const { return {numbers + (u * V + v) * apart, numbers + ((U + u) * V + v) * apart}; }
    Complex<T> of(int64_t number, int64_t u, int64_t v) const {
        const Complex<T> all = at(u, v);
        return {all.real + number * channels, all.imaginary + number * channels};
    }
    int64_t U, V, maps, channels, apart;
    std::unique_ptr<T[]> own;
    T* numbers;
};

// What a transform needs besides: rows of a map after its first half, (high, V, part, channels) with some room behind each row, and
// sums over columns, (U, part, channels).
template <typename T> struct Between {
    Between(const Transform<T>& t, int64_t channels)
        : row(2 * t.V * channels + APART), rows(new T[t.high * row]), sums(new T[2 * t.U * channels]) {}
    int64_t row;
    std::unique_ptr<T[]> rows, sums;
};

// Sums of cosines and sines of frequency u are those of U - u, but for the sines' sign: each is computed once.
template <typename T>
void there(const Transform<T>& t, const T* map, const Spectra<T>& spectra, int64_t number, const Between<T>& between) {
    const int64_t channels = spectra.channels, both = 2 * channels;
    for (int64_t i = 0; i < t.high; ++i)
        multiply(Product<T>{t.across, t.wide, 1, map + i * t.wide * channels, channels, between.rows.get() + i * between.row,
                            channels, 2 * t.V, channels, t.wide, t.wide, SET});
    for (int64_t v = 0; v < t.V; ++v) {
        multiply(Product<T>{t.down, t.high, 1, between.rows.get() + v * both, between.row, between.sums.get(), both, t.U, both,
                            t.high, t.high, SET});
        for (int64_t u = 0; u <= t.U / 2; ++u) {
            const T *cosines = between.sums.get() + u * both, *sines = between.sums.get() + (t.U / 2 + u) * both;
            const Complex<T> here = spectra.of(number, u, v), there = spectra.of(number, (t.U - u) % t.U, v);
            const bool paired = u > 0 && u <= t.pairs();
            each_vector<T>(channels, [&](int64_t c, auto whole, int64_t count) {
                constexpr bool W = decltype(whole)::value;
                const Vec<T> real = get<W>(cosines + c, count), imaginary = get<W>(cosines + channels + c, count);
                const Vec<T> sine_r = paired ? get<W>(sines + c, count) : Vec<T>{}, sine_i = paired ? get<W>(sines + channels + c, count) : Vec<T>{};
                put<W>(here.real + c, real - sine_i, count), put<W>(here.imaginary + c, imaginary + sine_r, count);
                if (paired) put<W>(there.real + c, real + sine_i, count), put<W>(there.imaginary + c, imaginary - sine_r, count);
            });
        }
    }
}

template <typename T>
void back(const Transform<T>& t, const Spectra<T>& spectra, int64_t number, T* map, const Between<T>& between) {
    const int64_t channels = spectra.channels, both = 2 * channels;
    for (int64_t v = 0; v < t.V; ++v) {
        for (int64_t u = 0; u <= t.U / 2; ++u) {
            T *cosines = between.sums.get() + u * both, *sines = between.sums.get() + (t.U / 2 + u) * both;
            const Complex<T> here = spectra.of(number, u, v), there = spectra.of(number, (t.U - u) % t.U, v);
            const bool paired = u > 0 && u <= t.pairs();
            each_vector<T>(channels, [&](int64_t c, auto whole, int64_t count) {
                constexpr bool W = decltype(whole)::value;
                Vec<T> real = get<W>(here.real + c, count), imaginary = get<W>(here.imaginary + c, count);
                if (paired) {
                    const Vec<T> other_r = get<W>(there.real + c, count), other_i = get<W>(there.imaginary + c, count);
                    put<W>(sines + c, imaginary - other_i, count), put<W>(sines + channels + c, other_r - real, count);
                    real += other_r, imaginary += other_i;
                }
                put<W>(cosines + c, real, count), put<W>(cosines + channels + c, imaginary, count);
            });
        }
        multiply(Product<T>{t.down, 1, t.high, between.sums.get(), both, between.rows.get() + v * both, between.row, t.high, both,
                            t.U, t.U, SET});
    }
    for (int64_t i = 0; i < t.high; ++i)
        multiply(Product<T>{t.across, 1, t.wide, between.rows.get() + i * between.row, channels, map + i * t.wide * channels,
                            channels, t.wide, channels, 2 * t.V, 2 * t.V, SET});
}

// All maps, one after the other in memory.
template <typename T> void all_there(const Transform<T>& t, const T* maps, const Spectra<T>& spectra) {
    const Between<T> between(t, spectra.channels);
    for (int64_t number = 0; number < spectra.maps; ++number)
        there(t, maps + number * t.high * t.wide * spectra.channels, spectra, number, between);
}

template <typename T> void all_back(const Transform<T>& t, const Spectra<T>& spectra, T* maps) {
    const Between<T> between(t, spectra.channels);
    for (int64_t number = 0; number < spectra.maps; ++number)
        back(t, spectra, number, maps + number * t.high * t.wide * spectra.channels, between);
}

// C = A B at every frequency, over channels; or over maps, with A transposed. CONJUGATE: with B's conjugate. Maps are real, so in
// the first column of frequencies, and with an even period in the last, those below the middle are conjugates of those above.
template <typename T, bool CONJUGATE>
void multiply_spectra(const Shape& s, const Spectra<T>& a, const Spectra<T>& b, const Spectra<T>& c, bool over_maps) {
    ComplexProduct<T> one{};
    one.down = over_maps ? 1 : a.channels, one.along = over_maps ? a.channels : 1;
    one.rows = c.maps, one.columns = c.channels, one.depth = b.maps;
    one.run = std::max<int64_t>(RUN, std::sqrt((double)one.depth));
    for (int64_t u = 0; u < s.U; ++u)
        for (int64_t v = 0; v < s.V(); ++v) {
            const int64_t partner = (s.U - u) % s.U;
            one.a = a.at(u, v), one.b = b.at(u, v), one.c = c.at(u, v);
            if (partner < u && (v == 0 || 2 * v == s.period)) {
                const Complex<T> from = c.at(partner, v);
                for (int64_t at = 0; at < c.maps * c.channels; ++at)
                    one.c.real[at] = from.real[at], one.c.imaginary[at] = -from.imaginary[at];
            } else {
                multiply<T, CONJUGATE>(one);
            }
        }
}

// The tables of images, kernels and results, one after the other.
template <typename T> struct Plan {
    Plan(const T* tables, const Shape& s) {
        image = Transform<T>{s.high, s.wide, s.U, s.V(), tables, tables + 2 * s.V() * s.wide};
        tables += image.numbers();
        kernel = Transform<T>{s.kernel_high, s.kernel_wide, s.U, s.V(), tables, tables + 2 * s.V() * s.kernel_wide};
        tables += kernel.numbers();
        made = Transform<T>{s.made_high, s.made_wide, s.U, s.V(), tables, tables + 2 * s.V() * s.made_wide};
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
        all_there<T>(plan.kernel, turned.get(), kernels);
    }
    all_there(plan.image, x, images);
    multiply_spectra<T, false>(s, images, kernels, results, false);
    const Pooling pooling{s.made_high, s.made_wide, s.out};
    const Between<T> between(plan.made, s.out);
    std::unique_ptr<T[]> map(new T[s.made() * s.out]);
    for (int64_t image = 0; image < s.images; ++image) {
        T* to = pooled ? map.get() : y + image * s.made() * s.out;
        back(plan.made, results, image, to, between);
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
        const Between<T> between(plan.made, s.out);
        std::unique_ptr<T[]> map(new T[s.made() * s.out]), sums(new T[s.out]);
        for (int64_t image = 0; image < s.images; ++image) {
            const T* from = which ? map.get() : g + image * s.made() * s.out;
            const int64_t first = image * pooling.windows() * s.out;
            if (which) unpool(g + first, which + first, map.get(), pooling);
            sum_pixels(from, sums.get(), s.made(), s.out);
            for (int64_t c = 0; c < s.out; ++c) of_bias[c] += sums[c];
            there(plan.made, from, gradients, image, between);
        }
    }
    if (of_x) {
        const Spectra<T> kernels(s, s.out, s.in), of_images(s, s.images, s.in);
        all_there(plan.kernel, weight, kernels);
        multiply_spectra<T, true>(s, gradients, kernels, of_images, false);
        all_back(plan.image, of_images, of_x);
    }
    if (of_weight) {
        const Spectra<T> images(s, s.images, s.in, const_cast<T*>(seen)), of_kernels(s, s.out, s.in);
        multiply_spectra<T, true>(s, gradients, images, of_kernels, true);
        all_back(plan.kernel, of_kernels, of_weight);
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
