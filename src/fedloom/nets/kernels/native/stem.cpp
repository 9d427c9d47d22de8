// Convolutions of images, which have few channels, channels last: the direct sum, in windows of 2x2 pixels of the output.
//
// A window may be pooled at once: the largest of its four numbers, and where it was, are then all that is written. Images
// need no gradient, so there is none of the input.
#include "common.h"
#include "pooling.h"

#include <vector>

namespace {

struct Stem {
    int64_t images, high, wide, in, out, above, left, kernel_high, kernel_wide, made_high, made_wide, down, across;
    int64_t row() const { return (2 * across + kernel_wide - 1) * in; }   // of a padded image
    int64_t lines() const { return 2 * down + kernel_high - 1; }
    int64_t taps() const { return kernel_high * kernel_wide * in; }
    int64_t windows() const { return down * across; }
};

// What is in front of each tap, from the first pixel under a kernel, in a padded image.
std::vector<int64_t> tap_offsets(const Stem& s) {
    std::vector<int64_t> offsets;
    for (int64_t i = 0; i < s.kernel_high; ++i)
        for (int64_t j = 0; j < s.kernel_wide * s.in; ++j) offsets.push_back(i * s.row() + j);
    return offsets;
}

// An image with its border, and zeros where the last windows reach beyond it.
template <typename T> void pad(const T* image, T* padded, const Stem& s) {
    std::memset(padded, 0, s.lines() * s.row() * sizeof(T));
    const int64_t columns = std::min(s.wide * s.in, s.row() - s.left * s.in);
    for (int64_t i = 0; i < s.high && i + s.above < s.lines(); ++i)
        std::memcpy(padded + (i + s.above) * s.row() + s.left * s.in, image + i * s.wide * s.in, columns * sizeof(T));
}

// Where the four numbers of window (i, j) are in a map; those beyond it are in `nowhere`.
template <typename T> INLINE void places(T* y, T* nowhere, const Stem& s, int64_t image, int64_t i, int64_t j, T** four) {
    for (int k = 0; k < 4; ++k) {
        const int64_t row = 2 * i + k / 2, column = 2 * j + k % 2;
        const bool outside = row >= s.made_high || column >= s.made_wide;
        four[k] = outside ? nowhere : y + ((image * s.made_high + row) * s.made_wide + column) * s.out;
    }
}

// Blocks of channels that leave registers for four numbers each.
template <typename T, typename Work> INLINE void each_channels(int64_t channels, Work work) {
    constexpr int64_t L = LANES<T>, K = VECTOR_BYTES == 64 ? 4 : 2;
    int64_t c = 0;
    for (; channels - c >= K * L; c += K * L) work(c, Number<K>{}, Number<1>{}, L);
    if (K == 4 && channels - c >= 2 * L) work(c, Number<2>{}, Number<1>{}, L), c += 2 * L;
    if (channels - c >= L) work(c, Number<1>{}, Number<1>{}, L), c += L;
    if (channels > c) work(c, Number<1>{}, Number<0>{}, channels - c);
}

template <typename T, bool POOLED>
void forward(const T* x, const T* weight, const T* bias, T* y, T* which, const Stem& s) {
    const int64_t taps = s.taps();
    const std::vector<int64_t> offsets = tap_offsets(s);
    std::vector<T> padded(s.lines() * s.row()), turned(taps * s.out), nowhere(s.out);
    for (int64_t o = 0; o < s.out; ++o)
        for (int64_t tap = 0; tap < taps; ++tap) turned[tap * s.out + o] = weight[o * taps + tap];
    for (int64_t image = 0; image < s.images; ++image) {
        pad(x + image * s.high * s.wide * s.in, padded.data(), s);
        each_channels<T>(s.out, [&](int64_t c, auto vectors, auto whole, int64_t count) {
            constexpr int64_t K = decltype(vectors)::value, L = LANES<T>;
            constexpr bool W = decltype(whole)::value;
            Vec<T> shift[K];
            for (int64_t k = 0; k < K; ++k) shift[k] = bias ? get<W>(bias + c + k * L, count) : Vec<T>{};
            for (int64_t window = 0; window < s.windows(); ++window) {
                const int64_t i = window / s.across, j = window % s.across;
                const T* first = padded.data() + 2 * (i * s.row() + j * s.in);
                Vec<T> sums[4][K] = {};
                for (int64_t tap = 0; tap < taps; ++tap) {
                    const T* at = first + offsets[tap];
                    const T four[4] = {at[0], at[s.in], at[s.row()], at[s.row() + s.in]};
                    for (int64_t k = 0; k < K; ++k) {
                        const Vec<T> w = get<W>(&turned[tap * s.out + c + k * L], count);
                        for (int q = 0; q < 4; ++q) sums[q][k] += w * four[q];
                    }
                }
                if (POOLED) {
                    const int64_t to = (image * s.windows() + window) * s.out + c;
                    for (int64_t k = 0; k < K; ++k) {
                        const Vec<T> values[4] = {sums[0][k], sums[1][k], sums[2][k], sums[3][k]};
                        Vec<T> most, place;
                        rectified_most<T>(values, shift[k], most, place);
                        put<W>(y + to + k * L, most, count);
                        if (which) put<W>(which + to + k * L, place, count);
                    }
                } else {
                    T* four[4];
                    places(y, nowhere.data(), s, image, i, j, four);
                    for (int q = 0; q < 4; ++q)
                        for (int64_t k = 0; k < K; ++k) put<W>(four[q] + c + k * L, sums[q][k] + shift[k], count);
                }
            }
        });
    }
}

// Sums over the windows of a row are added to those of the other rows: errors grow with the root of the number of pixels.
template <typename T, bool POOLED, int64_t R, int64_t K, bool W>
INLINE void weight_rows(const T* padded, const T* g, const T* which, const T* zeros, const int64_t* offsets, T* sums, const Stem& s, int64_t image, int64_t c, int64_t count) {
    constexpr int64_t L = LANES<T>;
    for (int64_t i = 0; i < s.down; ++i) {
        Vec<T> parts[R][K] = {};
        for (int64_t j = 0; j < s.across; ++j) {
            const T* first = padded + 2 * (i * s.row() + j * s.in);
            const int64_t from = (image * s.windows() + i * s.across + j) * s.out + c;
            const T* four[4];
            if (!POOLED) places<const T>(g, zeros, s, image, i, j, four);
            for (int q = 0; q < 4; ++q) {
                const T* at = first + q / 2 * s.row() + q % 2 * s.in;
                Vec<T> value[K];
                UNROLL for (int64_t k = 0; k < K; ++k) {
                    if (POOLED) {
                        const Vec<T> place = get<W>(which + from + k * L, count);
                        value[k] = place == splat<T>(q) ? get<W>(g + from + k * L, count) : Vec<T>{};
                    } else value[k] = get<W>(four[q] + c + k * L, count);
                }
                UNROLL for (int64_t r = 0; r < R; ++r) {
                    const Vec<T> pixel = splat<T>(at[offsets[r]]);
                    UNROLL for (int64_t k = 0; k < K; ++k) parts[r][k] += value[k] * pixel;
                }
            }
        }
        for (int64_t r = 0; r < R; ++r)
            for (int64_t k = 0; k < K; ++k) {
                T* to = sums + r * s.out + c + k * L;
                put<W>(to, get<W>(to, count) + parts[r][k], count);
            }
    }
}

// Of a pooled window one number in four has a gradient, in another place for each channel: each channel adds the pixels under its
// own kernel, a kernel's row at a time. C channels of R rows of V vectors are in registers, for a row of windows.
// starts, values: (windows of a row, out), the place of each gradient's pixels in the image, and the gradient
template <typename T> using Start = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

template <typename T, int64_t C, int64_t R, int64_t V>
INLINE void pooled_rows(const T* pixels, const Start<T>* starts, const T* values, T* sums, const Stem& s) {
    constexpr int64_t L = LANES<T>;
    const int64_t length = s.kernel_high * V * L;
    Vec<T> parts[C][R][V] = {};
    for (int64_t window = 0; window < s.across; ++window)
        UNROLL for (int64_t c = 0; c < C; ++c) {
            const T* first = pixels + starts[window * s.out + c];
            const Vec<T> value = splat<T>(values[window * s.out + c]);
            UNROLL for (int64_t r = 0; r < R; ++r)
                UNROLL for (int64_t v = 0; v < V; ++v) parts[c][r][v] += value * load(first + r * s.row() + v * L);
        }
    UNROLL for (int64_t c = 0; c < C; ++c)
        UNROLL for (int64_t r = 0; r < R; ++r)
            UNROLL for (int64_t v = 0; v < V; ++v) {
                T* to = sums + c * length + (r * V + v) * L;
                store(to, load(to) + parts[c][r][v]);
            }
}

// A row of windows at a time, which the nearest cache holds. sums: (out, rows of a kernel, V vectors), of which the first
// kernel_wide * in numbers count
template <typename T, int64_t V> void pooled_weight(const T* padded, const T* g, const T* which, T* sums, const Stem& s) {
    constexpr int64_t MOST = VECTOR_BYTES == 64 ? 24 : 12;  // vectors in registers
    const int64_t length = s.kernel_high * V * LANES<T>, count = s.across * s.out;
    std::vector<Start<T>> starts(count + LANES<T>);
    std::vector<T> values(count + LANES<T>);
    for (int64_t i = 0; i < s.down; ++i, g += count, which += count) {
        for (int64_t window = 0; window < s.across; ++window)
            each_vector<T>(s.out, [&](int64_t c, auto whole, int64_t lanes) {
                constexpr bool W = decltype(whole)::value;
                typedef typename Vectors<T>::mask Places;
                const int64_t at = window * s.out + c;
                const Vec<T> place = get<W>(which + at, lanes);
                const Places right = (place == splat<T>(1)) | (place == splat<T>(3)), below = (place == splat<T>(2)) | (place == splat<T>(3));
                const Places start = (Start<T>)(2 * window * s.in) + (right & (Start<T>)s.in) + (below & (Start<T>)s.row());
                std::memcpy(&starts[at], &start, sizeof(start));
                store(&values[at], place == splat<T>(DEAD) ? Vec<T>{} : get<W>(g + at, lanes));
            });
        int64_t row = 0;
        const auto rows = [&](auto number) {
            constexpr int64_t R = decltype(number)::value, C = std::clamp<int64_t>(MOST / (R * V), 1, 4);
            for (; s.kernel_high - row >= R; row += R) {
                const T* pixels = padded + (2 * i + row) * s.row();
                T* to = sums + row * V * LANES<T>;
                int64_t c = 0;
                for (; s.out - c >= C; c += C) pooled_rows<T, C, R, V>(pixels, &starts[c], &values[c], to + c * length, s);
                for (; c < s.out; ++c) pooled_rows<T, 1, R, V>(pixels, &starts[c], &values[c], to + c * length, s);
            }
        };
        if constexpr (5 * V <= MOST) rows(Number<5>{});
        if constexpr (3 * V <= MOST) rows(Number<3>{});
        rows(Number<1>{});
    }
}

// Sums over the images, of sums over each: errors grow with the root of the number of pixels.
template <typename T, bool POOLED> struct Weight {
    static constexpr int64_t L = LANES<T>;
    // Rows of a kernel that fill most of their vectors.
    static bool by_rows(const Stem& s) { return POOLED && s.kernel_wide * s.in > L / 2 && s.kernel_wide * s.in <= 4 * L; }

    explicit Weight(const Stem& s)
        : s(s), vectors((s.kernel_wide * s.in + L - 1) / L), rows(by_rows(s)), offsets(tap_offsets(s)), zeros(s.out),
          sums(rows ? s.out * s.kernel_high * vectors * L : s.taps() * s.out), totals(sums.size()) {}

    void add(const T* padded, const T* g, const T* which, int64_t image) {
        std::fill(sums.begin(), sums.end(), T(0));
        if (rows) {
            const int64_t from = image * s.windows() * s.out;
            const auto sum = vectors == 1   ? pooled_weight<T, 1>
                             : vectors == 2 ? pooled_weight<T, 2>
                             : vectors == 3 ? pooled_weight<T, 3>
                                            : pooled_weight<T, 4>;
            sum(padded, g + from, which + from, sums.data(), s);
        } else {
            add_taps(padded, g, which, image);
        }
        for (size_t at = 0; at < totals.size(); ++at) totals[at] += sums[at];
    }

    void add_taps(const T* padded, const T* g, const T* which, int64_t image) {
        constexpr int64_t MOST = VECTOR_BYTES == 64 ? 9 : 6;  // sums of two vectors in registers
        const auto over = [&](int64_t c, auto vectors, auto whole, int64_t count) {
            int64_t tap = 0;
            const auto some = [&](auto number) {
                weight_rows<T, POOLED, decltype(number)::value, decltype(vectors)::value, decltype(whole)::value>(
                    padded, g, which, zeros.data(), &offsets[tap], &sums[tap * s.out], s, image, c, count);
                tap += decltype(number)::value;
            };
            while (s.taps() - tap >= MOST) some(Number<MOST>{});
            while (s.taps() - tap >= 3) some(Number<3>{});
            while (s.taps() > tap) some(Number<1>{});
        };
        int64_t c = 0;
        for (; s.out - c >= 2 * L; c += 2 * L) over(c, Number<2>{}, Number<1>{}, L);
        for (; s.out - c >= L; c += L) over(c, Number<1>{}, Number<1>{}, L);
        if (s.out > c) over(c, Number<1>{}, Number<0>{}, s.out - c);
    }

    // (out, kernel_high, kernel_wide, in)
    void write(T* of_weight) const {
        const int64_t wide = s.kernel_wide * s.in;
        for (int64_t o = 0; o < s.out; ++o)
            for (int64_t row = 0; row < s.kernel_high; ++row)
                for (int64_t k = 0; k < wide; ++k)
                    *of_weight++ = rows ? totals[(o * s.kernel_high + row) * vectors * L + k] : totals[(row * wide + k) * s.out + o];
    }

    const Stem& s;
    const int64_t vectors;
    const bool rows;
    const std::vector<int64_t> offsets;
    std::vector<T> zeros, sums, totals;
};

template <typename T, bool POOLED>
void backward(const T* x, const T* g, const T* which, T* of_weight, T* of_bias, const Stem& s) {
    const int64_t gradients = POOLED ? s.windows() : s.made_high * s.made_wide;
    std::vector<T> padded(s.lines() * s.row() + 4 * LANES<T>), sums(s.out);  // with room behind the last row of a kernel
    Weight<T, POOLED> weight(s);
    if (of_bias) std::fill(of_bias, of_bias + s.out, T(0));
    for (int64_t image = 0; image < s.images; ++image) {
        pad(x + image * s.high * s.wide * s.in, padded.data(), s);
        weight.add(padded.data(), g, which, image);
        if (!of_bias) continue;
        std::fill(sums.begin(), sums.end(), T(0));
        for (int64_t at = image * gradients; at < (image + 1) * gradients; ++at)
            for (int64_t o = 0; o < s.out; ++o)
                sums[o] += !POOLED || which[at * s.out + o] < DEAD ? g[at * s.out + o] : T(0);
        for (int64_t o = 0; o < s.out; ++o) of_bias[o] += sums[o];
    }
    weight.write(of_weight);
}

}  // namespace

#define FUNCTIONS(T, type)                                                                                             \
    EXPORT(stem_forward, type)                                                                                         \
    (const T* x, const T* weight, const T* bias, T* y, T* which, const Stem* shapes, int64_t pooled) {                 \
        (pooled ? forward<T, true> : forward<T, false>)(x, weight, bias, y, which, *shapes);                           \
    }                                                                                                                  \
    EXPORT(stem_backward, type)                                                                                        \
    (const T* x, const T* g, const T* which, T* of_weight, T* of_bias, const Stem* shapes, int64_t pooled) {           \
        (pooled ? backward<T, true> : backward<T, false>)(x, g, which, of_weight, of_bias, *shapes);                   \
    }
FUNCTIONS(float, f32)
FUNCTIONS(double, f64)
