// 3x3 convolutions by Winograd's algorithms, channels last.
//
//     V = B d B'    pixels of the input, for a tile of MADE x MADE pixels of the output    U = G g G'    a kernel
//     M = V U       for each number of a tile, over channels                               y = A' M A    the tile
//
// Three ways: F(2x2, 3x3) takes 16 multiplications for 4 outputs; F(4x4, 3x3) takes 36 for 16; a map of 2x2 pixels with a border
// is one tile of 9. B, G and A have a row for each point at which polynomials are evaluated. The gradient of the input is the
// convolution of the output's gradient with kernels turned around. That of the weight is G' (sum of D V) G, D = A g A'.
//
// Tiles are computed in blocks that stay in cache from the input to the output. Where there are few tiles and many channels they
// are one block, and kernels are transformed a group of outputs at a time, so that transformed kernels stay in cache, too.
#include "panels.h"
#include "pooling.h"
#include "turn.h"

#include <type_traits>
#include <vector>

namespace {

struct Shape {
    int64_t images, high, wide, in, out, above, left, made_high, made_wide;
};

// A way's maps of one dimension: B, G and A of pixels or taps x to points y, and the transposes of G and A back.

// Points 0, 1, -1 and infinity.
struct Two {
    static constexpr int SIDE = 4, POINTS = 4, MADE = 2, TAPS = 4, SKIP = 0;
    template <typename V> static INLINE void B(const V* x, V* y) { y[0] = x[0] - x[2], y[1] = x[1] + x[2], y[2] = x[2] - x[1], y[3] = x[3] - x[1]; }
    template <typename V> static INLINE void G(const V* x, V* y) {
        const V even = (x[0] + x[2]) / 2, odd = x[1] / 2;
        y[0] = x[0], y[1] = even + odd, y[2] = even - odd, y[3] = x[2];
    }
    template <typename V> static INLINE void G_back(const V* y, V* x) {
        const V even = (y[1] + y[2]) / 2;
        x[0] = y[0] + even, x[1] = (y[1] - y[2]) / 2, x[2] = y[3] + even;
    }
    template <typename V> static INLINE void A(const V* x, V* y) { y[0] = x[0], y[1] = x[0] + x[1], y[2] = x[0] - x[1], y[3] = x[1]; }
    template <typename V> static INLINE void A_back(const V* y, V* x) { x[0] = y[0] + y[1] + y[2], x[1] = y[1] - y[2] + y[3]; }
    static constexpr int tap(int d, int v) { return d == v ? d : -1; }
};

// Points 0, a, -a, b, -b and infinity. Of exact numbers, a = 5/8 and b = 3/2 have the smallest rounding errors: a third of those of
// the usual points 1 and 2.
struct Four {
    static constexpr int SIDE = 6, POINTS = 6, MADE = 4, TAPS = 6, SKIP = 0;
    static constexpr float a = 0.625, b = 1.5, s = a * a, t = b * b;
    template <typename V> using Scalar = std::remove_reference_t<decltype(V{}[0])>;
    template <typename V> static constexpr Scalar<V> p = Scalar<V>(1) / (2 * s * (s - t));
    template <typename V> static constexpr Scalar<V> q = Scalar<V>(1) / (2 * t * (t - s));
    template <typename V> static INLINE void B(const V* x, V* y) {
        const V even = x[4] - t * x[2], odd = a * (x[3] - t * x[1]), even2 = x[4] - s * x[2], odd2 = b * (x[3] - s * x[1]);
        y[0] = s * t * x[0] - (s + t) * x[2] + x[4];
        y[1] = even + odd, y[2] = even - odd, y[3] = even2 + odd2, y[4] = even2 - odd2;
        y[5] = s * t * x[1] - (s + t) * x[3] + x[5];
    }
    template <typename V> static INLINE void G(const V* x, V* y) {
        const V even = p<V> * (x[0] + s * x[2]), odd = p<V> * a * x[1], even2 = q<V> * (x[0] + t * x[2]), odd2 = q<V> * b * x[1];
        y[0] = Scalar<V>(1) / (s * t) * x[0], y[5] = x[2];
        y[1] = even + odd, y[2] = even - odd, y[3] = even2 + odd2, y[4] = even2 - odd2;
    }
    template <typename V> static INLINE void G_back(const V* y, V* x) {
        const V even = p<V> * (y[1] + y[2]), even2 = q<V> * (y[3] + y[4]);
        x[0] = Scalar<V>(1) / (s * t) * y[0] + even + even2;
        x[1] = p<V> * a * (y[1] - y[2]) + q<V> * b * (y[3] - y[4]);
        x[2] = s * even + t * even2 + y[5];
    }
    template <typename V> static INLINE void A(const V* x, V* y) {
        const V even = x[0] + s * x[2], odd = a * (x[1] + s * x[3]), even2 = x[0] + t * x[2], odd2 = b * (x[1] + t * x[3]);
        y[0] = x[0], y[1] = even + odd, y[2] = even - odd, y[3] = even2 + odd2, y[4] = even2 - odd2, y[5] = x[3];
    }
    template <typename V> static INLINE void A_back(const V* y, V* x) {
        const V even = y[1] + y[2], odd = a * (y[1] - y[2]), even2 = y[3] + y[4], odd2 = b * (y[3] - y[4]);
        x[0] = y[0] + even + even2, x[1] = odd + odd2, x[2] = s * even + t * even2, x[3] = s * odd + t * odd2 + y[5];
    }
    static constexpr int tap(int d, int v) { return d == v ? d : -1; }
};

// A map of 2x2 pixels in a border of one: y0 = k1 (d0 + d1) + (k2 - k1) d1, y1 = k1 (d0 + d1) + (k0 - k1) d0.
struct Whole {
    static constexpr int SIDE = 2, POINTS = 3, MADE = 2, SKIP = 1;
    template <typename V> static INLINE void B(const V* x, V* y) { y[0] = x[0] + x[1], y[1] = x[1], y[2] = x[0]; }
    template <typename V> static INLINE void G(const V* x, V* y) { y[0] = x[1], y[1] = x[2] - x[1], y[2] = x[0] - x[1]; }
    template <typename V> static INLINE void A_back(const V* y, V* x) { x[0] = y[0] + y[1], x[1] = y[0] + y[2]; }
};

// The same map, each pair of pixels by itself, for the weight's gradient: that is a sum over few images, and torch's is exact.
struct Pixels {
    static constexpr int SIDE = 2, POINTS = 2, MADE = 2, TAPS = 3, SKIP = 1;
    template <typename V> static INLINE void B(const V* x, V* y) { y[0] = x[0], y[1] = x[1]; }
    template <typename V> static INLINE void A(const V* x, V* y) { y[0] = x[0], y[1] = x[1]; }
    template <typename V> static INLINE void G_back(const V* y, V* x) { x[0] = y[0], x[1] = y[1], x[2] = y[2]; }
    static constexpr int tap(int d, int v) { return (v / 2 - d / 2 + 1) * 3 + v % 2 - d % 2 + 1; }
};

constexpr int SMALL = 16;  // vectors of a tile that registers hold

// A map of one dimension applied to both, from S x S vectors to N x N.
template <int S, int N, typename V, typename Map> INLINE void twice(const V* x, V* y, Map map) {
    V half[S * N];
    UNROLL for (int i = 0; i < S; ++i) map(x + i * S, half + i * N);
    UNROLL for (int j = 0; j < N; ++j) {
        V column[S], made[N];
        UNROLL for (int i = 0; i < S; ++i) column[i] = half[i * N + j];
        map(column, made);
        UNROLL for (int i = 0; i < N; ++i) y[i * N + j] = made[i];
    }
}

template <int S, int N, typename V, typename Map> __attribute__((noinline)) void twice_in_memory(const V* x, V* y, Map map) {
    twice<S, N>(x, y, map);
}

// Small tiles stay in registers; code for large ones is there once.
template <int S, int N, typename V, typename Map> INLINE void transform(const V* x, V* y, Map map) {
    if constexpr (S * N <= SMALL) twice<S, N>(x, y, map);
    else twice_in_memory<S, N>(x, y, map);
}

template <typename Way, typename V> INLINE void to_points(const V* x, V* y) {
    transform<Way::SIDE, Way::POINTS>(x, y, [](const V* a, V* b) INLINED { Way::B(a, b); });
}
template <typename Way, typename V> INLINE void taps_to_points(const V* x, V* y) {
    transform<3, Way::POINTS>(x, y, [](const V* a, V* b) INLINED { Way::G(a, b); });
}
template <typename Way, typename V> INLINE void points_to_taps(const V* y, V* x) {
    transform<Way::TAPS, 3>(y, x, [](const V* a, V* b) INLINED { Way::G_back(a, b); });
}
template <typename Way, typename V> INLINE void made_to_points(const V* x, V* y) {
    transform<Way::MADE, Way::POINTS>(x, y, [](const V* a, V* b) INLINED { Way::A(a, b); });
}
template <typename Way, typename V> INLINE void points_to_made(const V* y, V* x) {
    transform<Way::POINTS, Way::MADE>(y, x, [](const V* a, V* b) INLINED { Way::A_back(a, b); });
}

// Images, or their gradients. which: of gradients of a pooled map, where the largest number of each window was.
template <typename T> struct Maps {
    const T *numbers, *which;
    int64_t high, wide, channels;
};

template <typename T> using Matrices = Panels<T, 2>;
template <typename T> constexpr int64_t P = Matrices<T>::WIDTH;

// Tiles of MADE x MADE pixels of maps.
struct Grid {
    Grid(int64_t images, int64_t high, int64_t wide, int64_t made)
        : down((high + made - 1) / made), across((wide + made - 1) / made), tiles(images * down * across) {}
    int64_t down, across, tiles;
};

// Consecutive tiles of all images, and channels of which a number of panels is computed at once.
struct Block {
    int64_t first, count;
};
struct Group {
    int64_t first, count;  // channels
};

// For each tile: work(its number in the block, image, row and column among the tiles of the image).
template <typename Work> INLINE void each_tile(const Grid& g, const Block& block, Work work) {
    int64_t j = block.first % g.across, i = block.first / g.across % g.down, image = block.first / (g.across * g.down);
    for (int64_t tile = 0; tile < block.count; ++tile) {
        work(tile, image, i, j);
        if (++j < g.across) continue;
        j = 0;
        if (++i < g.down) continue;
        i = 0;
        ++image;
    }
}

// For each vector of the panels of a group: work(channel, panel, column in the panel, whole, lanes of a cut one).
template <typename T, typename Work> INLINE void each_vector_of(const Group& group, Work work) {
    for (int64_t at = 0; at < Matrices<T>::needed(group.count) * P<T>; at += LANES<T>) {
        const int64_t count = std::min(std::max<int64_t>(group.count - at, 0), LANES<T>);
        if (count == LANES<T>) work(group.first + at, at / P<T>, at % P<T>, Number<1>{}, count);
        else work(group.first + at, at / P<T>, at % P<T>, Number<0>{}, count);
    }
}

// The tiles of a group of channels: N x N points of every tile's S x S pixels, the first of which is (above, left) before the tile's own.
// The next row of tiles is fetched from memory meanwhile: a processor does not foresee such short pieces.
template <typename T, int S, int N, int MADE, typename Points>
void to_tiles(Points points, const Maps<T>& maps, const Matrices<T>& tiles, const Grid& grid, const Block& block, const Group& group, int64_t above, int64_t left) {
    const std::vector<T> zeros(group.first + group.count);
    const bool pooled = maps.which;
    const int64_t high = pooled ? maps.high / 2 : maps.high, wide = pooled ? maps.wide / 2 : maps.wide;
    const int64_t next = (pooled ? MADE / 2 : MADE) * wide * maps.channels;
    each_tile(grid, block, [&](int64_t tile, int64_t image, int64_t row, int64_t column) INLINED {
        const T *pixels[S * S], *places[S * S];
        for (int64_t i = 0; i < S; ++i)
            for (int64_t j = 0; j < S; ++j) {
                const int64_t y = MADE * row - above + i, x = MADE * column - left + j, at = i * S + j;
                const int64_t v = pooled ? y >> 1 : y, u = pooled ? x >> 1 : x;
                const bool outside = y < 0 || x < 0 || v >= high || u >= wide;
                const int64_t from = ((image * high + v) * wide + u) * maps.channels;
                pixels[at] = outside ? zeros.data() : maps.numbers + from;
                places[at] = outside || !pooled ? zeros.data() : maps.which + from;
            }
        const int64_t first = ((MADE * row - above) & 1) * 2, second = (MADE * column - left) & 1;
        each_vector_of<T>(group, [&](int64_t c, int64_t panel, int64_t at, auto whole, int64_t count) INLINED {
            constexpr bool W = decltype(whole)::value;
            Vec<T> values[S * S], made[N * N];
            UNROLL for (int k = 0; k < S * S; ++k)
                if (k / S < MADE && k % S < MADE) __builtin_prefetch(pixels[k] + c + next);
            UNROLL for (int k = 0; k < S * S; ++k) values[k] = get<W>(pixels[k] + c, count);
            if (pooled)
                for (int k = 0; k < S * S; ++k) {
                    const T place = T((first ^ ((k / S & 1) * 2)) + (second ^ (k % S & 1)));
                    values[k] = get<W>(places[k] + c, count) == splat<T>(place) ? values[k] : Vec<T>{};
                }
            points(values, made);
            T* to = tiles.at(0, panel, tile) + at;
            UNROLL for (int k = 0; k < N * N; ++k) store(to + k * tiles.apart, made[k]);
        });
    });
}

// What becomes of tiles: maps of all channels, with a bias or none; with `which`, or where `pooled`, pooled and rectified.
template <typename T> struct Made {
    const T* bias;
    T *y, *which;
    int64_t high, wide, channels;
    bool pooled;
};

template <typename T, typename Way>
void from_tiles(const Matrices<T>& tiles, const Made<T>& made, const Grid& grid, const Block& block, const Group& group) {
    constexpr int N = Way::POINTS, S = Way::MADE;
    const int64_t high = made.pooled ? made.high / 2 : made.high, wide = made.pooled ? made.wide / 2 : made.wide;
    const int64_t side = made.pooled ? S / 2 : S;
    each_tile(grid, block, [&](int64_t tile, int64_t image, int64_t row, int64_t column) INLINED {
        int64_t to[S * S];
        for (int64_t i = 0; i < side; ++i)
            for (int64_t j = 0; j < side; ++j) {
                const int64_t y = side * row + i, x = side * column + j;
                to[i * side + j] = y < high && x < wide ? ((image * high + y) * wide + x) * made.channels : -1;
            }
        each_vector_of<T>(group, [&](int64_t c, int64_t panel, int64_t at, auto whole, int64_t count) INLINED {
            constexpr bool W = decltype(whole)::value;
            if (!W && count == 0) return;
            const T* from = tiles.at(0, panel, tile) + at;
            const Vec<T> shift = made.bias ? get<W>(made.bias + c, count) : Vec<T>{};
            Vec<T> points[N * N], values[S * S];
            UNROLL for (int k = 0; k < N * N; ++k) points[k] = load(from + k * tiles.apart);
            points_to_made<Way>(points, values);
            if (!made.pooled) {
                for (int k = 0; k < S * S; ++k)
                    if (to[k] >= 0) put<W>(made.y + to[k] + c, values[k] + shift, count);
                return;
            }
            for (int k = 0; k < S * S / 4; ++k) {
                if (to[k] < 0) continue;
                const Vec<T>* four = values + k / (S / 2) * 2 * S + k % (S / 2) * 2;
                Vec<T> most, place;
                rectified_most<T>({four[0], four[1], four[S], four[S + 1]}, shift, most, place);
                put<W>(made.y + to[k] + c, most, count);
                if (made.which) put<W>(made.which + to[k] + c, place, count);
            }
        });
    });
}

// Kernels of a layer: (rows, 3, 3, columns), of which a group of columns is transformed. FLIPPED: turned by half a circle.
template <typename T, typename Way, bool FLIPPED>
void to_taps(const T* kernels, int64_t all, const Group& group, const Matrices<T>& taps) {
    constexpr int N = Way::POINTS;
    for (int64_t row = 0; row < taps.rows; ++row)
        each_vector_of<T>(group, [&](int64_t c, int64_t panel, int64_t at, auto whole, int64_t count) INLINED {
            constexpr bool W = decltype(whole)::value;
            const T* from = kernels + 9 * row * all + c;
            T* to = taps.at(0, panel, row) + at;
            Vec<T> values[9], points[N * N];
            UNROLL for (int k = 0; k < 9; ++k) values[FLIPPED ? 8 - k : k] = get<W>(from + k * all, count);
            taps_to_points<Way>(values, points);
            UNROLL for (int k = 0; k < N * N; ++k) store(to + k * taps.apart, points[k]);
        });
}

constexpr int64_t BYTES = 1 << 19;                // of a block of tiles, before and after the products
constexpr int64_t LEAST = VECTOR_BYTES == 64 ? 36 : 48, MOST = 288;  // tiles of a block
constexpr int64_t ONE = 1 << 23, LARGE = 1 << 20;  // bytes of tiles in one block, where transformed kernels have more than this
constexpr int64_t GROUP = VECTOR_BYTES == 64 ? 32 : 64;  // channels whose kernels are then transformed at once
constexpr int64_t DEEP = 256;                     // channels over which sums are added up before the next tiles

// Tiles of a block, of channels in and out.
template <typename T, typename Way> int64_t block_size(const Grid& grid, int64_t in, int64_t out) {
    const int64_t numbers = Way::POINTS * Way::POINTS * (int64_t)sizeof(T);
    if (numbers * grid.tiles * in <= ONE && numbers * in * out > LARGE) return grid.tiles;
    const int64_t fitting = BYTES / (numbers * (in + out));
    return std::min(grid.tiles, std::min(MOST, std::max(LEAST, fitting - fitting % 12)));
}

// work(block, group): all of the channels at once, unless there is one block.
template <typename Work> INLINE void each_part(const Grid& grid, int64_t size, int64_t channels, Work work) {
    const int64_t width = size == grid.tiles ? std::min(GROUP, channels) : channels;
    for (int64_t first = 0; first < grid.tiles; first += size)
        for (int64_t c = 0; c < channels; c += width)
            work(Block{first, std::min(size, grid.tiles - first)}, Group{c, std::min(width, channels - c)});
}

// A convolution of maps with kernels (out, 3, 3, in); GRADIENT: of gradients, with these kernels turned around, to (in) channels.
template <typename T, typename Way, bool GRADIENT>
void convolve(const Maps<T>& maps, const T* weight, const Made<T>& made, int64_t images, int64_t above, int64_t left) {
    constexpr int N = Way::POINTS;
    const int64_t in = maps.channels, out = made.channels;
    const Grid grid(images, made.high, made.wide, Way::MADE);
    const int64_t size = block_size<T, Way>(grid, in, out), width = size == grid.tiles ? std::min(GROUP, out) : out;
    const Matrices<T> inputs(N * N, size, in), outputs(N * N, size, width), taps(N * N, in, width);
    std::unique_ptr<T[]> turned(GRADIENT ? nullptr : new T[9 * in * width]);
    each_part(grid, size, out, [&](const Block& block, const Group& group) {
        if (group.first == 0)
            to_tiles<T, Way::SIDE, N, Way::MADE>([](const Vec<T>* x, Vec<T>* y) INLINED { to_points<Way>(x, y); }, maps, inputs, grid, block, Group{0, in}, above - Way::SKIP, left - Way::SKIP);
        if (GRADIENT && (block.first == 0 || width < out)) {
            to_taps<T, Way, true>(weight, out, group, taps);
        } else if (block.first == 0 || width < out) {
            turn(weight + group.first * 9 * in, turned.get(), group.count, 9, in);
            to_taps<T, Way, false>(turned.get(), group.count, Group{0, group.count}, taps);
        }
        for (int64_t number = 0; number < N * N; ++number)
            for (int64_t panel = 0; panel < Matrices<T>::needed(group.count); ++panel)
                for (int64_t c = 0; c < in; c += DEEP) {
                    const Steps<T> steps{std::min(DEEP, in - c), P<T>, inputs.jump(), N > 4 ? 1 : DEEP, c > 0, P<T>, P<T>};
                    multiply_panel<T, 2, false>(inputs.at(number, c / P<T>), taps.at(number, panel, c), outputs.at(number, panel), block.count, group.count - panel * P<T>, steps);
                }
        from_tiles<T, Way>(outputs, made, grid, block, group);
    });
}

constexpr int64_t FEW = 1024;  // tiles
// Whether torch adds up such gradients in so short runs that what rounding takes from sums must be kept for errors no larger than its own.
template <typename Way> bool keeps_losses(const Grid& grid) {
    return VECTOR_BYTES == 64 && (Way::POINTS > 4 || (Way::POINTS == 4 && grid.tiles <= FEW));
}

// The weight's gradient. Tiles are added up in runs, as many runs as there are tiles in one, or so: errors then grow with the fourth
// root of their number.
template <typename T, typename Way>
void weight_gradient(const Maps<T>& maps, const Maps<T>& gradients, T* of_weight, const Shape& s) {
    constexpr int N = Way::POINTS, K = Way::TAPS;
    const Grid grid(s.images, s.made_high, s.made_wide, Way::MADE);
    const int64_t size = block_size<T, Way>(grid, s.in, s.out), width = size == grid.tiles ? std::min(GROUP, s.out) : s.out;
    const bool keep = keeps_losses<Way>(grid);
    const int64_t run = std::max<int64_t>(keep ? 8 : 12, std::sqrt((double)grid.tiles)), rows = Matrices<T>::needed(width) * P<T>;
    const Matrices<T> inputs(N * N, size, s.in), outputs(N * N, size, width), taps((keep ? 2 : 1) * K * K, rows, s.in);
    const int64_t lost = keep ? K * K * taps.apart : 0;
    each_part(grid, size, s.out, [&](const Block& block, const Group& group) {
        if (group.first == 0)
            to_tiles<T, Way::SIDE, N, Way::MADE>([](const Vec<T>* x, Vec<T>* y) INLINED { to_points<Way>(x, y); }, maps, inputs, grid, block, Group{0, s.in}, s.above - Way::SKIP, s.left - Way::SKIP);
        to_tiles<T, Way::MADE, N, Way::MADE>([](const Vec<T>* x, Vec<T>* y) INLINED { made_to_points<Way>(x, y); }, gradients, outputs, grid, block, group, 0, 0);
        bool begun[K * K] = {};
        for (int d = 0; d < N * N; ++d)
            for (int v = 0; v < N * N; ++v) {
                const int tap = Way::tap(d, v);
                if (tap < 0) continue;
                const Steps<T> steps{block.count, run, run * P<T>, 1, block.first > 0 || begun[tap], P<T>, P<T>, nullptr, lost};
                begun[tap] = true;
                for (int64_t row = 0; row < Matrices<T>::needed(group.count); ++row)
                    for (int64_t panel = 0; panel < taps.panels; ++panel)
                        multiply_panel<T, 2, true>(outputs.at(d, row), inputs.at(v, panel), taps.at(tap, panel, row * P<T>), P<T>, s.in - panel * P<T>, steps);
            }
        if (block.first + block.count < grid.tiles) return;
        for (int64_t o = 0; o < group.count; ++o)
            each_vector_of<T>(Group{0, s.in}, [&](int64_t c, int64_t panel, int64_t at, auto whole, int64_t count) INLINED {
                constexpr bool W = decltype(whole)::value;
                if (!W && count == 0) return;
                const T* from = taps.at(0, panel, o) + at;
                T* to = of_weight + 9 * (group.first + o) * s.in + c;
                Vec<T> points[K * K], values[9];
                UNROLL for (int k = 0; k < K * K; ++k) points[k] = load(from + k * taps.apart);
                points_to_taps<Way>(points, values);
                UNROLL for (int k = 0; k < 9; ++k) put<W>(to + k * s.in, values[k], count);
            });
    });
}

enum Ways { TWO, FOUR, WHOLE };

template <typename T>
void forward(const T* x, const T* weight, const T* bias, T* y, T* which, const Shape& s, bool pooled, int64_t way) {
    const auto call = way == FOUR ? convolve<T, Four, false> : way == WHOLE ? convolve<T, Whole, false> : convolve<T, Two, false>;
    call({x, nullptr, s.high, s.wide, s.in}, weight, {bias, y, which, s.made_high, s.made_wide, s.out, pooled}, s.images, s.above, s.left);
}

template <typename T> void input_gradient(const T* weight, const T* g, const T* which, T* of_x, const Shape& s, int64_t way) {
    const auto call = way == FOUR ? convolve<T, Four, true> : way == WHOLE ? convolve<T, Whole, true> : convolve<T, Two, true>;
    call({g, which, s.made_high, s.made_wide, s.out}, weight, {nullptr, of_x, nullptr, s.high, s.wide, s.in, false}, s.images, 2 - s.above, 2 - s.left);
}

template <typename T> void weight_gradient(const T* x, const T* g, const T* which, T* of_weight, const Shape& s, int64_t way) {
    const auto call = way == FOUR ? weight_gradient<T, Four> : way == WHOLE ? weight_gradient<T, Pixels> : weight_gradient<T, Two>;
    call({x, nullptr, s.high, s.wide, s.in}, {g, which, s.made_high, s.made_wide, s.out}, of_weight, s);
}

}  // namespace

#define FUNCTIONS(T, type)                                                                                             \
    EXPORT(winograd_forward, type)                                                                                     \
    (const T* x, const T* weight, const T* bias, T* y, T* which, const Shape* shape, int64_t pooled, int64_t way) {    \
        forward(x, weight, bias, y, which, *shape, pooled, way);                                                       \
    }                                                                                                                  \
    EXPORT(winograd_input, type)                                                                                       \
    (const T* weight, const T* g, const T* which, T* of_x, const Shape* shape, int64_t way) {                          \
        input_gradient(weight, g, which, of_x, *shape, way);                                                           \
    }                                                                                                                  \
    EXPORT(winograd_weight, type)                                                                                      \
    (const T* x, const T* g, const T* which, T* of_weight, const Shape* shape, int64_t way) {                          \
        weight_gradient(x, g, which, of_weight, *shape, way);                                                          \
    }                                                                                                                  \
    EXPORT(winograd_bias, type)(const T* g, const T* which, T* of_bias, const Shape* shape) {                          \
        const int64_t pixels = which ? shape->made_high / 2 * (shape->made_wide / 2) : shape->made_high * shape->made_wide; \
        sum_gradients(g, which, of_bias, shape->images, pixels, shape->out);                                           \
    }
FUNCTIONS(float, f32)
FUNCTIONS(double, f64)
