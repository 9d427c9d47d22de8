// Convolutions by Winograd's F(2x2, 3x3), channels last.
//
//     V = B' d B    4x4 pixels of the input, one tile every two pixels    U = G g G'    a kernel
//     M = V U       for each of the 16 numbers, over channels             y = A' M A    2x2 pixels of the output
//
//          | 1  0 -1  0 |        | 1    0    0  |        | 1  1  1  0 |
//     B' = | 0  1  1  0 |    G = | 1/2  1/2 1/2 |   A' = | 0  1 -1 -1 |
//          | 0 -1  1  0 |        | 1/2 -1/2 1/2 |
//          | 0  1  0 -1 |        | 0    0    1  |
//
// and the transposes of these maps for gradients. Tiles are computed in blocks that stay in cache from the input to the
// output. A pooling window of 2x2 is a tile: the largest of its four numbers, and where it was, are all that is then written.
#include "common.h"
#include "pooling.h"
#include "product.h"
#include "turn.h"

#include <memory>
#include <vector>

namespace {

struct Shape {
    int64_t images, high, wide, in, out, above, left, made_high, made_wide, down, across;
    int64_t tiles() const { return images * down * across; }
};

constexpr int64_t BYTES = 1 << 19;    // of a block of tiles, before and after the products
constexpr int64_t LEAST = 96, MOST = 288;  // tiles of a block

// Room for 16 matrices, of tiles or kernels; they do not begin at the same place of a memory page, or caches would not hold them.
template <typename T> struct Tiles {
    Tiles(int64_t rows, int64_t columns) : apart(rows * columns + 5 * LANES<T>), numbers(new T[16 * apart]) {}
    T* matrix(int64_t number) const { return numbers.get() + number * apart; }
    int64_t apart;
    std::unique_ptr<T[]> numbers;
};

// Consecutive tiles of all images.
struct Block {
    int64_t first, count;
};

template <typename T, typename Work> INLINE void each_block_of_tiles(const Shape& s, Work work) {
    const int64_t fitting = BYTES / (16 * (int64_t)sizeof(T) * (s.in + s.out));
    const int64_t size = std::min(MOST, std::max(LEAST, fitting - fitting % 12)), tiles = s.tiles();
    Tiles<T> inputs(std::min(size, tiles), s.in), outputs(std::min(size, tiles), s.out);
    for (int64_t first = 0; first < tiles; first += size)
        work(Block{first, std::min(size, tiles - first)}, inputs, outputs);
}

// For each tile: work(its number in the block, image, row and column among the tiles of the image).
template <typename Work> INLINE void each_tile(const Shape& s, const Block& block, Work work) {
    int64_t j = block.first % s.across, i = block.first / s.across % s.down, image = block.first / (s.across * s.down);
    for (int64_t tile = 0; tile < block.count; ++tile) {
        work(tile, image, i, j);
        if (++j < s.across) continue;
        j = 0;
        if (++i < s.down) continue;
        i = 0;
        ++image;
    }
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
template <typename Work> INLINE void each_inside(const Shape& s, int64_t y, int64_t x, Work work) {
    const int64_t begin = std::max<int64_t>(0, -x), end = std::min<int64_t>(4, s.wide - x);
    for (int64_t row = 0; row < 4; ++row)
        if (y + row >= 0 && y + row < s.high && begin < end) work(row, begin, end - begin);
}

INLINE bool inside(const Shape& s, int64_t y, int64_t x) {
    return y >= 0 && x >= 0 && y + 4 <= s.high && x + 4 <= s.wide;
}

template <typename T> void to_tiles(const T* x, const Tiles<T>& tiles, const Shape& s, const Block& block) {
    const int64_t channels = s.in, row = s.wide * channels;
    std::vector<T> patch(16 * channels);
    each_tile(s, block, [&](int64_t tile, int64_t image, int64_t i, int64_t j) {
        const int64_t top = 2 * i - s.above, left = 2 * j - s.left;
        const T* from = x + (image * s.high + top) * row + left * channels;
        T* to = tiles.matrix(0) + tile * channels;
        if (inside(s, top, left)) return to_tile(from, row, to, tiles.apart, channels);
        std::fill(patch.begin(), patch.end(), T(0));
        each_inside(s, top, left, [&](int64_t line, int64_t first, int64_t count) {
            const int64_t skipped = first * channels;
            std::memcpy(&patch[4 * line * channels + skipped], from + line * row + skipped, count * channels * sizeof(T));
        });
        to_tile(patch.data(), 4 * channels, to, tiles.apart, channels);
    });
}

template <typename T> void from_tiles(const Tiles<T>& tiles, T* x, const Shape& s, const Block& block) {
    const int64_t channels = s.in, row = s.wide * channels;
    std::vector<T> patch(16 * channels);
    each_tile(s, block, [&](int64_t tile, int64_t image, int64_t i, int64_t j) {
        const int64_t top = 2 * i - s.above, left = 2 * j - s.left;
        T* to = x + (image * s.high + top) * row + left * channels;
        const T* from = tiles.matrix(0) + tile * channels;
        if (inside(s, top, left)) return from_tile(from, tiles.apart, to, row, channels);
        std::fill(patch.begin(), patch.end(), T(0));
        from_tile(from, tiles.apart, patch.data(), 4 * channels, channels);
        each_inside(s, top, left, [&](int64_t line, int64_t first, int64_t count) {
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
template <typename T> INLINE void places(T* y, T* nowhere, const Shape& s, int64_t image, int64_t i, int64_t j, T** four) {
    for (int k = 0; k < 4; ++k) {
        const int64_t row = 2 * i + k / 2, column = 2 * j + k % 2;
        const bool outside = row >= s.made_high || column >= s.made_wide;
        four[k] = outside ? nowhere : y + ((image * s.made_high + row) * s.made_wide + column) * s.out;
    }
}

template <typename T> void to_maps(const Tiles<T>& tiles, const T* bias, T* y, const Shape& s, const Block& block) {
    std::vector<T> nowhere(s.out);
    each_tile(s, block, [&](int64_t tile, int64_t image, int64_t i, int64_t j) {
        T* four[4];
        places(y, nowhere.data(), s, image, i, j, four);
        each_vector<T>(s.out, [&](int64_t c, auto whole, int64_t count) {
            constexpr bool W = decltype(whole)::value;
            const Vec<T> shift = bias ? get<W>(bias + c, count) : Vec<T>{};
            Vec<T> values[4];
            gather<T, W>(tiles.matrix(0) + tile * s.out + c, tiles.apart, count, values);
            for (int k = 0; k < 4; ++k) put<W>(four[k] + c, values[k] + shift, count);
        });
    });
}

template <typename T>
void to_pooled(const Tiles<T>& tiles, const T* bias, T* y, T* which, const Shape& s, const Block& block) {
    for (int64_t tile = 0; tile < block.count; ++tile)
        each_vector<T>(s.out, [&](int64_t c, auto whole, int64_t count) {
            constexpr bool W = decltype(whole)::value;
            const int64_t to = (block.first + tile) * s.out + c;
            Vec<T> values[4], most, place;
            gather<T, W>(tiles.matrix(0) + tile * s.out + c, tiles.apart, count, values);
            rectified_most<T>(values, bias ? get<W>(bias + c, count) : Vec<T>{}, most, place);
            put<W>(y + to, most, count);
            if (which) put<W>(which + to, place, count);
        });
}

// Tiles of the output's gradient, and the bias's gradient, summed by rows of tiles and then over rows.
template <typename T>
void from_gradient(const T* g, const T* which, const Tiles<T>& tiles, T* of_bias, const Shape& s, const Block& block) {
    std::vector<T> zeros(s.out), sums(s.out);
    each_tile(s, block, [&](int64_t tile, int64_t image, int64_t i, int64_t j) {
        const T* four[4];
        if (!which) places<const T>(g, zeros.data(), s, image, i, j, four);
        each_vector<T>(s.out, [&](int64_t c, auto whole, int64_t count) {
            constexpr bool W = decltype(whole)::value;
            Vec<T> values[4];
            if (which) {
                const int64_t from = (block.first + tile) * s.out + c;
                const Vec<T> value = get<W>(g + from, count), place = get<W>(which + from, count);
                for (int k = 0; k < 4; ++k) values[k] = place == splat<T>(k) ? value : Vec<T>{};
            } else {
                for (int k = 0; k < 4; ++k) values[k] = get<W>(four[k] + c, count);
            }
            const Vec<T> sum = (values[0] + values[1]) + (values[2] + values[3]);
            put<W>(&sums[c], get<W>(&sums[c], count) + sum, count);
            spread<T, W>(values, tiles.matrix(0) + tile * s.out + c, tiles.apart, count);
        });
        if (j == s.across - 1 || tile == block.count - 1)
            for (int64_t c = 0; c < s.out; ++c) of_bias[c] += sums[c], sums[c] = 0;
    });
}

// weight: (out, 3, 3, in); taps: (16, out, in)
template <typename T> void to_taps(const T* weight, const Tiles<T>& taps, int64_t out, int64_t in) {
    const int64_t apart = taps.apart;
    const Vec<T> half = splat<T>(T(0.5));
    for (int64_t o = 0; o < out; ++o)
        each_vector<T>(in, [&](int64_t c, auto whole, int64_t count) {
            constexpr bool W = decltype(whole)::value;
            const T* from = weight + 9 * o * in + c;
            T* to = taps.matrix(0) + o * in + c;
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

template <typename T> void from_taps(const Tiles<T>& taps, T* weight, int64_t out, int64_t in) {
    const int64_t apart = taps.apart;
    const Vec<T> half = splat<T>(T(0.5));
    for (int64_t o = 0; o < out; ++o)
        each_vector<T>(in, [&](int64_t c, auto whole, int64_t count) {
            constexpr bool W = decltype(whole)::value;
            const T* from = taps.matrix(0) + o * in + c;
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

template <typename T> void forward(const T* x, const T* weight, const T* bias, T* y, T* which, const Shape& s, bool pooled) {
    std::unique_ptr<T[]> turned(new T[9 * s.in * s.out]);
    const Tiles<T> taps(s.in, s.out);
    turn(weight, turned.get(), s.out, 9, s.in);
    to_taps(turned.get(), taps, s.in, s.out);
    each_block_of_tiles<T>(s, [&](Block block, const Tiles<T>& inputs, const Tiles<T>& outputs) {
        to_tiles(x, inputs, s, block);
        for (int64_t number = 0; number < 16; ++number)
            multiply(Product<T>{inputs.matrix(number), s.in, 1, taps.matrix(number), s.out, outputs.matrix(number),
                                s.out, block.count, s.out, s.in, s.in, SET});
        if (pooled) to_pooled(outputs, bias, y, which, s, block);
        else to_maps(outputs, bias, y, s, block);
    });
}

// which: of the pooled output, else none. No gradient is computed where there is no room for it. Tiles of the weight's gradient are
// added up in runs, as many runs as there are tiles in one, or so: errors then grow with the fourth root of their number.
template <typename T>
void backward(const T* x, const T* weight, const T* g, const T* which, T* of_x, T* of_weight, T* of_bias, const Shape& s) {
    const Tiles<T> taps(s.out, s.in), of_taps(s.out, s.in);
    if (of_x) {
        to_taps(weight, taps, s.out, s.in);
        std::memset(of_x, 0, s.images * s.high * s.wide * s.in * sizeof(T));
    }
    std::fill(of_bias, of_bias + s.out, T(0));
    const int64_t run = std::max<int64_t>(12, std::sqrt((double)s.tiles()));
    each_block_of_tiles<T>(s, [&](Block block, const Tiles<T>& inputs, const Tiles<T>& outputs) {
        from_gradient(g, which, outputs, of_bias, s, block);
        if (of_weight) {
            to_tiles(x, inputs, s, block);
            for (int64_t number = 0; number < 16; ++number)
                multiply(Product<T>{outputs.matrix(number), 1, s.out, inputs.matrix(number), s.in, of_taps.matrix(number),
                                    s.in, s.out, s.in, block.count, run, block.first ? ADD : SET});
        }
        if (of_x) {
            for (int64_t number = 0; number < 16; ++number)
                multiply(Product<T>{outputs.matrix(number), s.out, 1, taps.matrix(number), s.in, inputs.matrix(number),
                                    s.in, block.count, s.in, s.out, s.out, SET});
            from_tiles(inputs, of_x, s, block);
        }
    });
    if (of_weight) from_taps(of_taps, of_weight, s.out, s.in);
}

}  // namespace

#define FUNCTIONS(T, type)                                                                                             \
    EXPORT(winograd_forward, type)                                                                                     \
    (const T* x, const T* weight, const T* bias, T* y, T* which, const Shape* shape, int64_t pooled) {                 \
        forward(x, weight, bias, y, which, *shape, pooled);                                                            \
    }                                                                                                                  \
    EXPORT(winograd_backward, type)                                                                                    \
    (const T* x, const T* weight, const T* g, const T* which, T* of_x, T* of_weight, T* of_bias, const Shape* shape) { \
        backward(x, weight, g, which, of_x, of_weight, of_bias, *shape);                                               \
    }
FUNCTIONS(float, f32)
FUNCTIONS(double, f64)
