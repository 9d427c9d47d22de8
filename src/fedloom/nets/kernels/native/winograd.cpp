// Winograd's F(2x2, 3x3), channels last: the linear maps before and after its sixteen matrix products.
//
//     V = B' d B    4x4 pixels of the input, one tile every two pixels    U = G g G'    a kernel
//     M = V U       for each of the 16 numbers, over channels             y = A' M A    2x2 pixels of the output
//
//          | 1  0 -1  0 |        | 1    0    0  |        | 1  1  1  0 |
//     B' = | 0  1  1  0 |    G = | 1/2  1/2 1/2 |   A' = | 0  1 -1 -1 |
//          | 0 -1  1  0 |        | 1/2 -1/2 1/2 |
//          | 0  1  0 -1 |        | 0    0    1  |
//
// and their transposes, for gradients. A pooling window of 2x2 is a tile: the largest of its four numbers, and where it was,
// are all that the pooled functions read and write.
#include "common.h"

#include <vector>

namespace {

// Maps of `high` x `wide` pixels in tiles: (images, down, across), which begin every two pixels at -border.
struct Maps {
    int64_t images, high, wide, channels, above, left, down, across;
    int64_t tiles() const { return images * down * across; }
    int64_t size() const { return tiles() * channels; }  // of one of the 16 matrices
};

// For each vector of channels: work(channel, whole, lanes of a cut one).
template <typename T, typename Work> INLINE void each_vector(int64_t channels, Work work) {
    int64_t c = 0;
    for (; channels - c >= LANES<T>; c += LANES<T>) work(c, Number<1>{}, LANES<T>);
    if (c < channels) work(c, Number<0>{}, channels - c);
}

// For each tile: work(its number, row and column of its first pixel, index of its image).
template <typename Work> INLINE void each_tile(const Maps& maps, Work work) {
    int64_t tile = 0;
    for (int64_t image = 0; image < maps.images; ++image)
        for (int64_t i = 0; i < maps.down; ++i)
            for (int64_t j = 0; j < maps.across; ++j, ++tile) work(tile, 2 * i - maps.above, 2 * j - maps.left, image);
}

template <typename T> INLINE void to_tile(const T* pixels, int64_t row, T* v, int64_t apart, int64_t channels) {
    each_vector<T>(channels, [&](int64_t c, auto whole, int64_t count) {
        constexpr bool W = decltype(whole)::value;
        Vec<T> t[4][4];
        for (int j = 0; j < 4; ++j) {
            const T* at = pixels + j * channels + c;
            const Vec<T> p = get<W>(at, count), q = get<W>(at + row, count);
            const Vec<T> r = get<W>(at + 2 * row, count), s = get<W>(at + 3 * row, count);
            t[0][j] = p - r, t[1][j] = q + r, t[2][j] = r - q, t[3][j] = q - s;
        }
        for (int i = 0; i < 4; ++i) {
            T* to = v + 4 * i * apart + c;
            put<W>(to, t[i][0] - t[i][2], count);
            put<W>(to + apart, t[i][1] + t[i][2], count);
            put<W>(to + 2 * apart, t[i][2] - t[i][1], count);
            put<W>(to + 3 * apart, t[i][1] - t[i][3], count);
        }
    });
}

// Adds up: tiles overlap.
template <typename T> INLINE void from_tile(const T* v, int64_t apart, T* pixels, int64_t row, int64_t channels) {
    each_vector<T>(channels, [&](int64_t c, auto whole, int64_t count) {
        constexpr bool W = decltype(whole)::value;
        Vec<T> t[4][4];
        for (int i = 0; i < 4; ++i) {
            const T* at = v + 4 * i * apart + c;
            const Vec<T> p = get<W>(at, count), q = get<W>(at + apart, count);
            const Vec<T> r = get<W>(at + 2 * apart, count), s = get<W>(at + 3 * apart, count);
            t[i][0] = p, t[i][1] = q - r + s, t[i][2] = q + r - p, t[i][3] = -s;
        }
        for (int j = 0; j < 4; ++j) {
            T* to = pixels + j * channels + c;
            put<W>(to, get<W>(to, count) + t[0][j], count);
            put<W>(to + row, get<W>(to + row, count) + (t[1][j] - t[2][j] + t[3][j]), count);
            put<W>(to + 2 * row, get<W>(to + 2 * row, count) + (t[1][j] + t[2][j] - t[0][j]), count);
            put<W>(to + 3 * row, get<W>(to + 3 * row, count) - t[3][j], count);
        }
    });
}

// The part of a tile's 4x4 pixels that is inside of the map: work(row, first column, columns).
template <typename Work> INLINE void each_inside(const Maps& maps, int64_t y, int64_t x, Work work) {
    const int64_t begin = std::max<int64_t>(0, -x), end = std::min<int64_t>(4, maps.wide - x);
    for (int64_t row = 0; row < 4; ++row)
        if (y + row >= 0 && y + row < maps.high && begin < end) work(row, begin, end - begin);
}

template <typename T> INLINE bool inside(const Maps& maps, int64_t y, int64_t x) {
    return y >= 0 && x >= 0 && y + 4 <= maps.high && x + 4 <= maps.wide;
}

template <typename T> void input(const T* x, T* v, const Maps& maps) {
    const int64_t channels = maps.channels, row = maps.wide * channels, apart = maps.size();
    std::vector<T> patch(16 * channels);
    each_tile(maps, [&](int64_t tile, int64_t i, int64_t j, int64_t image) {
        const T* from = x + (image * maps.high + i) * row + j * channels;
        T* to = v + tile * channels;
        if (inside<T>(maps, i, j)) return to_tile(from, row, to, apart, channels);
        std::fill(patch.begin(), patch.end(), T(0));
        each_inside(maps, i, j, [&](int64_t line, int64_t first, int64_t count) {
            const int64_t skipped = first * channels;
            std::memcpy(&patch[4 * line * channels + skipped], from + line * row + skipped, count * channels * sizeof(T));
        });
        to_tile(patch.data(), 4 * channels, to, apart, channels);
    });
}

template <typename T> void input_gradient(const T* v, T* x, const Maps& maps) {
    const int64_t channels = maps.channels, row = maps.wide * channels, apart = maps.size();
    std::vector<T> patch(16 * channels);
    std::memset(x, 0, maps.images * maps.high * row * sizeof(T));
    each_tile(maps, [&](int64_t tile, int64_t i, int64_t j, int64_t image) {
        T* to = x + (image * maps.high + i) * row + j * channels;
        const T* from = v + tile * channels;
        if (inside<T>(maps, i, j)) return from_tile(from, apart, to, row, channels);
        std::fill(patch.begin(), patch.end(), T(0));
        from_tile(from, apart, patch.data(), 4 * channels, channels);
        each_inside(maps, i, j, [&](int64_t line, int64_t first, int64_t count) {
            const T* values = &patch[(4 * line + first) * channels];
            T* sums = to + line * row + first * channels;
            for (int64_t k = 0; k < count * channels; ++k) sums[k] += values[k];
        });
    });
}

template <typename T, bool W> INLINE void gather(const T* m, int64_t apart, int64_t count, Vec<T> (&y)[4]) {
    Vec<T> t[2][4];
    for (int j = 0; j < 4; ++j) {
        const T* at = m + j * apart;
        const Vec<T> q = get<W>(at + 4 * apart, count), r = get<W>(at + 8 * apart, count);
        t[0][j] = get<W>(at, count) + q + r, t[1][j] = q - r - get<W>(at + 12 * apart, count);
    }
    for (int i = 0; i < 2; ++i) {
        y[2 * i] = t[i][0] + t[i][1] + t[i][2];
        y[2 * i + 1] = t[i][1] - t[i][2] - t[i][3];
    }
}

template <typename T, bool W> INLINE void spread(const Vec<T> (&y)[4], T* m, int64_t apart, int64_t count) {
    Vec<T> t[4][2];
    for (int j = 0; j < 2; ++j) t[0][j] = y[j], t[1][j] = y[j] + y[2 + j], t[2][j] = y[j] - y[2 + j], t[3][j] = -y[2 + j];
    for (int i = 0; i < 4; ++i) {
        T* to = m + 4 * i * apart;
        put<W>(to, t[i][0], count);
        put<W>(to + apart, t[i][0] + t[i][1], count);
        put<W>(to + 2 * apart, t[i][0] - t[i][1], count);
        put<W>(to + 3 * apart, -t[i][1], count);
    }
}

// Where a tile's 2x2 numbers are in the map; those beyond it are in `nowhere`.
template <typename T> INLINE void places(T* y, T* nowhere, const Maps& maps, int64_t i, int64_t j, int64_t image, T** four) {
    for (int k = 0; k < 4; ++k) {
        const int64_t row = i + k / 2, column = j + k % 2;
        const bool outside = row >= maps.high || column >= maps.wide;
        four[k] = outside ? nowhere : y + ((image * maps.high + row) * maps.wide + column) * maps.channels;
    }
}

template <typename T> void output(const T* m, const T* bias, T* y, const Maps& maps) {
    const int64_t apart = maps.size();
    std::vector<T> nowhere(maps.channels);
    each_tile(maps, [&](int64_t tile, int64_t i, int64_t j, int64_t image) {
        T* four[4];
        places(y, nowhere.data(), maps, i, j, image, four);
        each_vector<T>(maps.channels, [&](int64_t c, auto whole, int64_t count) {
            constexpr bool W = decltype(whole)::value;
            const Vec<T> shift = bias ? get<W>(bias + c, count) : Vec<T>{};
            Vec<T> values[4];
            gather<T, W>(m + tile * maps.channels + c, apart, count, values);
            for (int k = 0; k < 4; ++k) put<W>(four[k] + c, values[k] + shift, count);
        });
    });
}

// The bias's gradient is summed by rows of tiles, then over rows: errors grow with the root of the number of pixels.
template <typename T, typename Values> INLINE void output_gradient(T* m, T* of_bias, const Maps& maps, Values read) {
    const int64_t apart = maps.size(), channels = maps.channels;
    std::vector<T> sums(channels);
    std::fill(of_bias, of_bias + channels, T(0));
    each_tile(maps, [&](int64_t tile, int64_t i, int64_t j, int64_t image) {
        each_vector<T>(channels, [&](int64_t c, auto whole, int64_t count) {
            constexpr bool W = decltype(whole)::value;
            Vec<T> values[4];
            read(tile, i, j, image, c, whole, count, values);
            const Vec<T> sum = (values[0] + values[1]) + (values[2] + values[3]);
            put<W>(&sums[c], get<W>(&sums[c], count) + sum, count);
            spread<T, W>(values, m + tile * channels + c, apart, count);
        });
        if ((tile + 1) % maps.across == 0)
            for (int64_t c = 0; c < channels; ++c) of_bias[c] += sums[c], sums[c] = 0;
    });
}

template <typename T> void plain_gradient(const T* g, T* m, T* of_bias, const Maps& maps) {
    std::vector<T> zeros(maps.channels);
    output_gradient<T>(m, of_bias, maps, [&](int64_t, int64_t i, int64_t j, int64_t image, int64_t c, auto whole, int64_t count, Vec<T>* values) {
        const T* four[4];
        places<const T>(g, zeros.data(), maps, i, j, image, four);
        for (int k = 0; k < 4; ++k) values[k] = get<decltype(whole)::value>(four[k] + c, count);
    });
}

constexpr int DEAD = 4;  // in place of 0 to 3, where the ReLU made a zero

template <typename T> void pooled(const T* m, const T* bias, T* y, T* which, const Maps& maps) {
    const int64_t apart = maps.size(), channels = maps.channels;
    for (int64_t tile = 0; tile < maps.tiles(); ++tile)
        each_vector<T>(channels, [&](int64_t c, auto whole, int64_t count) {
            constexpr bool W = decltype(whole)::value;
            Vec<T> values[4];
            gather<T, W>(m + tile * channels + c, apart, count, values);
            Vec<T> most = values[0], place = {};
            for (int k = 1; k < 4; ++k) {
                const auto more = (values[k] > most) | (values[k] != values[k]);  // keeps what is not a number
                most = more ? values[k] : most;
                place = more ? splat<T>(k) : place;
            }
            if (bias) most += get<W>(bias + c, count);
            put<W>(y + tile * channels + c, most <= 0 ? Vec<T>{} : most, count);
            if (which) put<W>(which + tile * channels + c, most <= 0 ? splat<T>(DEAD) : place, count);
        });
}

template <typename T> void pooled_gradient(const T* g, const T* which, T* m, T* of_bias, const Maps& maps) {
    output_gradient<T>(m, of_bias, maps, [&](int64_t tile, int64_t, int64_t, int64_t, int64_t c, auto whole, int64_t count, Vec<T>* values) {
        constexpr bool W = decltype(whole)::value;
        const Vec<T> value = get<W>(g + tile * maps.channels + c, count);
        const Vec<T> place = get<W>(which + tile * maps.channels + c, count);
        for (int k = 0; k < 4; ++k) values[k] = place == splat<T>(k) ? value : Vec<T>{};
    });
}

// weight: (out, 3, 3, in); u: (16, out, in)
template <typename T> void kernels(const T* weight, T* u, int64_t out, int64_t in) {
    const int64_t apart = out * in;
    const Vec<T> half = splat<T>(T(0.5));
    for (int64_t o = 0; o < out; ++o)
        each_vector<T>(in, [&](int64_t c, auto whole, int64_t count) {
            constexpr bool W = decltype(whole)::value;
            const T* from = weight + 9 * o * in + c;
            T* to = u + o * in + c;
            Vec<T> t[4][3];
            for (int j = 0; j < 3; ++j) {
                const Vec<T> p = get<W>(from + j * in, count), q = get<W>(from + (3 + j) * in, count);
                const Vec<T> r = get<W>(from + (6 + j) * in, count);
                t[0][j] = p, t[1][j] = half * (p + r + q), t[2][j] = half * (p + r - q), t[3][j] = r;
            }
            for (int i = 0; i < 4; ++i, to += 4 * apart) {
                put<W>(to, t[i][0], count);
                put<W>(to + apart, half * (t[i][0] + t[i][2] + t[i][1]), count);
                put<W>(to + 2 * apart, half * (t[i][0] + t[i][2] - t[i][1]), count);
                put<W>(to + 3 * apart, t[i][2], count);
            }
        });
}

template <typename T> void kernels_gradient(const T* u, T* weight, int64_t out, int64_t in) {
    const int64_t apart = out * in;
    const Vec<T> half = splat<T>(T(0.5));
    for (int64_t o = 0; o < out; ++o)
        each_vector<T>(in, [&](int64_t c, auto whole, int64_t count) {
            constexpr bool W = decltype(whole)::value;
            const T* from = u + o * in + c;
            T* to = weight + 9 * o * in + c;
            Vec<T> t[4][3];
            for (int i = 0; i < 4; ++i, from += 4 * apart) {
                const Vec<T> q = get<W>(from + apart, count), r = get<W>(from + 2 * apart, count);
                const Vec<T> sum = half * (q + r);
                t[i][0] = get<W>(from, count) + sum, t[i][1] = half * (q - r), t[i][2] = get<W>(from + 3 * apart, count) + sum;
            }
            for (int j = 0; j < 3; ++j) {
                const Vec<T> sum = half * (t[1][j] + t[2][j]);
                put<W>(to + j * in, t[0][j] + sum, count);
                put<W>(to + (3 + j) * in, half * (t[1][j] - t[2][j]), count);
                put<W>(to + (6 + j) * in, t[3][j] + sum, count);
            }
        });
}

}  // namespace

#define FUNCTIONS(T, type)                                                                                             \
    EXPORT(winograd_input, type)(const T* x, T* v, const Maps* maps) { input(x, v, *maps); }                           \
    EXPORT(winograd_input_gradient, type)(const T* v, T* x, const Maps* maps) { input_gradient(v, x, *maps); }         \
    EXPORT(winograd_output, type)(const T* m, const T* bias, T* y, const Maps* maps) { output(m, bias, y, *maps); }    \
    EXPORT(winograd_output_gradient, type)(const T* g, T* m, T* of_bias, const Maps* maps) {                           \
        plain_gradient(g, m, of_bias, *maps);                                                                          \
    }                                                                                                                  \
    EXPORT(winograd_pooled, type)(const T* m, const T* bias, T* y, T* which, const Maps* maps) {                       \
        pooled(m, bias, y, which, *maps);                                                                              \
    }                                                                                                                  \
    EXPORT(winograd_pooled_gradient, type)(const T* g, const T* which, T* m, T* of_bias, const Maps* maps) {           \
        pooled_gradient(g, which, m, of_bias, *maps);                                                                  \
    }                                                                                                                  \
    EXPORT(winograd_kernels, type)(const T* weight, T* u, int64_t out, int64_t in) { kernels(weight, u, out, in); }    \
    EXPORT(winograd_kernels_gradient, type)(const T* u, T* weight, int64_t out, int64_t in) {                          \
        kernels_gradient(u, weight, out, in);                                                                          \
    }
FUNCTIONS(float, f32)
FUNCTIONS(double, f64)
