// Depthwise 3x3 convolutions of channels-last maps, with a border of one pixel and strides of one or two.
//
// Vectors go over channels. An image at a time, which fits into a core's cache; in it a vector of channels at a time, whose
// nine weights stay in registers. Weight gradients are added up over a few rows in T, beyond that in double precision.
#pragma once

#include "common.h"

namespace {

constexpr int64_t TERMS = 256;  // pixels of a weight gradient that are added up in T
constexpr int64_t PIXELS = 32;   // at least, of the images that are computed together

struct Shape {
    int64_t batch, channels, high, wide, made_high, made_wide, stride;
    int64_t row() const { return wide * channels; }
    int64_t image() const { return high * row(); }
    int64_t made() const { return made_high * made_wide * channels; }
    int64_t group() const { return std::max<int64_t>(PIXELS / (made_high * made_wide), 1); }  // images
};

// A column of x in the rows LO .. HI around a row of the result: what it adds to one pixel, under column TAP of the weights.
template <typename T, bool W, int LO, int HI> struct Column {
    Vec<T> numbers[3];
    INLINE Column(const T* x, int64_t row, int64_t count) {
        UNROLL for (int i = LO; i < HI; ++i) numbers[i] = get<W>(x + (i - 1) * row, count);
    }
    template <int TAP> INLINE Vec<T> under(Vec<T> sum, const Vec<T>* weight) const {
        UNROLL for (int i = LO; i < HI; ++i) sum += numbers[i] * weight[3 * i + TAP];
        return sum;
    }
    template <int TAP> INLINE void pair(Vec<T> g, Vec<T>* sums) const {
        UNROLL for (int i = LO; i < HI; ++i) sums[3 * i + TAP] += numbers[i] * g;
    }
};

// Every column of x is read once; it is under the weights of up to three pixels of a row.
template <typename T, bool W, int LO, int HI>
INLINE void forward_row(const T* x, T* y, const Vec<T>* weight, Vec<T> bias, Shape s, int64_t count) {
    const int64_t c = s.channels, row = s.row();
    const auto column = [&](int64_t at) INLINED { return Column<T, W, LO, HI>(x + at * c, row, count); };
    Vec<T> sum = bias;
    if (s.stride == 2) {
        for (int64_t at = 0; at < s.made_wide; ++at) {
            sum = column(2 * at).template under<1>(sum, weight);
            if (2 * at + 1 == s.wide) return put<W>(y + at * c, sum, count);
            const auto shared = column(2 * at + 1);
            put<W>(y + at * c, shared.template under<2>(sum, weight), count);
            sum = shared.template under<0>(bias, weight);
        }
        return;
    }
    const auto first = column(0);
    sum = first.template under<1>(sum, weight);
    Vec<T> next = first.template under<0>(bias, weight);
    for (int64_t at = 1; at < s.wide; ++at) {
        const auto shared = column(at);
        put<W>(y + (at - 1) * c, shared.template under<2>(sum, weight), count);
        sum = shared.template under<1>(next, weight);
        next = shared.template under<0>(bias, weight);
    }
    put<W>(y + (s.wide - 1) * c, sum, count);
}

// Calls work(Number<first row of taps>, Number<last + 1>) for the output row `at`.
template <typename Work> INLINE void with_rows(Shape s, int64_t at, Work work) {
    const bool above = at > 0, below = at * s.stride + 1 < s.high;
    if (above && below) work(Number<0>{}, Number<3>{});
    else if (above) work(Number<0>{}, Number<2>{});
    else if (below) work(Number<1>{}, Number<3>{});
    else work(Number<1>{}, Number<2>{});
}

template <typename T, bool W>
INLINE void forward_image(const T* x, T* y, const Vec<T>* weight, Vec<T> bias, Shape s, int64_t begin, int64_t end,
                          int64_t count) {
    for (int64_t at = begin; at < end; ++at)
        with_rows(s, at, [&](auto lo, auto hi) INLINED {
            forward_row<T, W, decltype(lo)::value, decltype(hi)::value>(
                x + at * s.stride * s.wide * s.channels, y + at * s.made_wide * s.channels, weight, bias, s, count);
        });
}

// Input gradient with a stride of two. An even row or column is under the middle tap of one output; an odd one under the
// last tap of one and the first tap of the next. `rows`: how many output rows reach this input row.
template <typename T, bool W, int ROWS>
INLINE void backward_row(const T* const* g, T* of_x, const Vec<T>* const* weight, Shape s, int64_t count) {
    const int64_t c = s.channels;
    for (int64_t at = 0; at < s.made_wide; ++at) {
        Vec<T> even = {}, odd = {};
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const Vec<T> here = get<W>(g[r] + at * c, count);
            even += here * weight[r][1];
            odd += here * weight[r][2];
        }
        put<W>(of_x + 2 * at * c, even, count);
        if (2 * at + 1 >= s.wide) break;
        if (at + 1 < s.made_wide)
            UNROLL for (int r = 0; r < ROWS; ++r) odd += get<W>(g[r] + (at + 1) * c, count) * weight[r][0];
        put<W>(of_x + (2 * at + 1) * c, odd, count);
    }
}

template <typename T, bool W>
INLINE void backward_image(const T* g, T* of_x, const Vec<T>* weight, Shape s, int64_t begin, int64_t end,
                           int64_t count) {
    const int64_t row = s.made_wide * s.channels;
    for (int64_t at = begin; at < end; ++at) {
        T* to = of_x + at * s.wide * s.channels;
        if (at % 2 == 0) {
            const T* from[1] = {g + at / 2 * row};
            const Vec<T>* with[1] = {weight + 3};
            backward_row<T, W, 1>(from, to, with, s, count);
        } else {
            const T* from[2] = {g + at / 2 * row, g + (at / 2 + 1) * row};
            const Vec<T>* with[2] = {weight + 6, weight};
            if (at / 2 + 1 < s.made_high) backward_row<T, W, 2>(from, to, with, s, count);
            else backward_row<T, W, 1>(from, to, with, s, count);
        }
    }
}

template <typename T, bool W, int LO, int HI>
INLINE void weight_row(const T* x, const T* g, Vec<T>* sums, Shape s, int64_t count) {
    const int64_t c = s.channels, row = s.row();
    const auto column = [&](int64_t at) INLINED { return Column<T, W, LO, HI>(x + at * c, row, count); };
    Vec<T> here = get<W>(g, count);
    if (s.stride == 2) {
        for (int64_t at = 0; at < s.made_wide; ++at) {
            column(2 * at).template pair<1>(here, sums);
            if (2 * at + 1 == s.wide) return;
            const auto shared = column(2 * at + 1);
            shared.template pair<2>(here, sums);
            if (at + 1 == s.made_wide) return;
            here = get<W>(g + (at + 1) * c, count);
            shared.template pair<0>(here, sums);
        }
        return;
    }
    Vec<T> before = {};
    for (int64_t at = 0; at < s.wide; ++at) {
        const auto shared = column(at);
        shared.template pair<1>(here, sums);
        if (at > 0) shared.template pair<2>(before, sums);
        before = here;
        if (at + 1 == s.wide) return;
        here = get<W>(g + (at + 1) * c, count);
        shared.template pair<0>(here, sums);
    }
}

// Weights are stored channel by channel, (channels, 9).
template <typename T>
INLINE void gather(const T* weight, int64_t first, int64_t count, bool turned, Vec<T>* taps) {
    UNROLL for (int tap = 0; tap < 9; ++tap) {
        T lanes[LANES<T>] = {};
        for (int64_t lane = 0; lane < count; ++lane) lanes[lane] = weight[(first + lane) * 9 + (turned ? 8 - tap : tap)];
        taps[tap] = load(lanes);
    }
}

// Calls work(first channel, whole, lanes) for each vector of channels.
template <typename T, typename Work> INLINE void each_vector(int64_t channels, Work work) {
    int64_t c = 0;
    for (; c + LANES<T> <= channels; c += LANES<T>) work(c, Number<1>{}, LANES<T>);
    if (c < channels) work(c, Number<0>{}, channels - c);
}

// Rows of a map that are computed for one vector of channels before the next: few of them where a map is wide, so that
// memory is read in order; all of them where it is narrow, so that weights stay in registers.
constexpr int64_t NARROW = 8;
INLINE int64_t band(int64_t high, int64_t wide) { return wide < NARROW ? high : 1; }

// The weights of all channels, nine vectors for each vector of channels; `turned`: in the opposite order.
template <typename T>
const Vec<T>* all_taps(const T* weight, int64_t channels, bool turned, Workspace& workspace) {
    Vec<T>* all = workspace.take<Vec<T>>(9 * ((channels + LANES<T> - 1) / LANES<T>));
    each_vector<T>(channels, [&](int64_t c, auto, int64_t count) INLINED { gather(weight, c, count, turned, all + 9 * (c / LANES<T>)); });
    return all;
}

template <typename T>
void convolve_images(const T* x, const Vec<T>* all, const T* bias, T* y, Shape s, int64_t images) {
    const int64_t rows = band(s.made_high, s.made_wide);
    for (int64_t image = 0; image < images; ++image)
        for (int64_t begin = 0; begin < s.made_high; begin += rows)
            each_vector<T>(s.channels, [&](int64_t c, auto whole, int64_t count) INLINED {
                constexpr bool W = decltype(whole)::value;
                Vec<T> taps[9];
                UNROLL for (int tap = 0; tap < 9; ++tap) taps[tap] = all[9 * (c / LANES<T>) + tap];
                const Vec<T> shift = bias ? get<W>(bias + c, count) : Vec<T>{};
                forward_image<T, W>(x + image * s.image() + c, y + image * s.made() + c, taps, shift, s, begin,
                                    begin + rows, count);
            });
}

// The gradient of x; `all`: the weights, turned where the stride is one.
template <typename T> void input_gradient(const T* g, const Vec<T>* all, T* of_x, Shape s, int64_t images) {
    if (s.stride == 1) {
        const Shape back = {s.batch, s.channels, s.made_high, s.made_wide, s.high, s.wide, 1};
        convolve_images<T>(g, all, nullptr, of_x, back, images);
        return;
    }
    const int64_t rows = band(s.high, s.wide);
    for (int64_t image = 0; image < images; ++image)
        for (int64_t begin = 0; begin < s.high; begin += rows)
            each_vector<T>(s.channels, [&](int64_t c, auto whole, int64_t count) INLINED {
                constexpr bool W = decltype(whole)::value;
                Vec<T> taps[9];
                UNROLL for (int tap = 0; tap < 9; ++tap) taps[tap] = all[9 * (c / LANES<T>) + tap];
                backward_image<T, W>(g + image * s.made() + c, of_x + image * s.image() + c, taps, s, begin, begin + rows,
                                     count);
            });
}

// Adds the gradient of the weights, tap by tap, (9, channels).
template <typename T>
void add_weight_gradient(const T* x, const T* g, double* totals, Shape s, int64_t images) {
    each_vector<T>(s.channels, [&](int64_t c, auto whole, int64_t count) INLINED {
        constexpr bool W = decltype(whole)::value;
        Vec<T> sums[9] = {};
        int64_t terms = 0;
        const auto flush = [&]() INLINED {
            UNROLL for (int tap = 0; tap < 9; ++tap) {
                add_lanes<T>(totals + tap * s.channels + c, sums[tap], count);
                sums[tap] = Vec<T>{};
            }
            terms = 0;
        };
        for (int64_t image = 0; image < images; ++image)
            for (int64_t at = 0; at < s.made_high; ++at) {
                with_rows(s, at, [&](auto lo, auto hi) INLINED {
                    weight_row<T, W, decltype(lo)::value, decltype(hi)::value>(
                        x + image * s.image() + at * s.stride * s.wide * s.channels + c,
                        g + image * s.made() + at * s.made_wide * s.channels + c, sums, s, count);
                });
                if ((terms += s.made_wide) >= TERMS) flush();
            }
        if (terms) flush();
    });
}

// As weights are stored, channel by channel.
template <typename T> void finish_weight_gradient(const double* totals, T* of_weight, int64_t channels) {
    for (int64_t c = 0; c < channels; ++c)
        for (int tap = 0; tap < 9; ++tap) of_weight[9 * c + tap] = (T)totals[tap * channels + c];
}

}  // namespace
