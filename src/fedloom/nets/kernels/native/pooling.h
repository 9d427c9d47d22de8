// Max-pooling of 2x2 windows and ReLU, for kernels that make or take a whole map, channels last.
#pragma once

#include "common.h"

#include <vector>

constexpr int DEAD = 4;  // in place of 0 to 3, the largest number's place in its window, where the ReLU made a zero

// Of a window's four numbers the largest, with the bias and rectified, and its place.
template <typename T> INLINE void rectified_most(const Vec<T> (&values)[4], Vec<T> shift, Vec<T>& most, Vec<T>& place) {
    most = values[0], place = Vec<T>{};
    for (int k = 1; k < 4; ++k) {
        const auto more = (values[k] > most) | (values[k] != values[k]);  // keeps what is not a number
        most = more ? values[k] : most;
        place = more ? splat<T>(k) : place;
    }
    most += shift;
    place = most <= 0 ? splat<T>(DEAD) : place;
    most = most <= 0 ? Vec<T>{} : most;
}

// For each vector of channels: work(channel, whole, lanes of a cut one).
template <typename T, typename Work> INLINE void each_vector(int64_t channels, Work work) {
    int64_t c = 0;
    for (; channels - c >= LANES<T>; c += LANES<T>) work(c, Number<1>{}, LANES<T>);
    if (c < channels) work(c, Number<0>{}, channels - c);
}

// A map of which 2x2 windows are pooled; an odd last row or column is in none.
struct Pooling {
    int64_t high, wide, channels;
    int64_t windows() const { return high / 2 * (wide / 2); }
    // of a window's numbers, from the map's first
    int64_t at(int64_t window, int k) const {
        return ((window / (wide / 2) * 2 + k / 2) * wide + window % (wide / 2) * 2 + k % 2) * channels;
    }
};

template <typename T> void pool(const T* map, const T* bias, T* y, T* which, const Pooling& p) {
    for (int64_t window = 0; window < p.windows(); ++window)
        each_vector<T>(p.channels, [&](int64_t c, auto whole, int64_t count) {
            constexpr bool W = decltype(whole)::value;
            Vec<T> values[4], most, place;
            for (int k = 0; k < 4; ++k) values[k] = get<W>(map + p.at(window, k) + c, count);
            rectified_most<T>(values, bias ? get<W>(bias + c, count) : Vec<T>{}, most, place);
            put<W>(y + window * p.channels + c, most, count);
            if (which) put<W>(which + window * p.channels + c, place, count);
        });
}

template <typename T> void unpool(const T* g, const T* which, T* map, const Pooling& p) {
    if (p.high % 2 || p.wide % 2) std::memset(map, 0, p.high * p.wide * p.channels * sizeof(T));
    for (int64_t window = 0; window < p.windows(); ++window)
        each_vector<T>(p.channels, [&](int64_t c, auto whole, int64_t count) {
            constexpr bool W = decltype(whole)::value;
            const Vec<T> value = get<W>(g + window * p.channels + c, count);
            const Vec<T> place = get<W>(which + window * p.channels + c, count);
            for (int k = 0; k < 4; ++k)
                put<W>(map + p.at(window, k) + c, place == splat<T>(k) ? value : Vec<T>{}, count);
        });
}

// Adds the bias to every pixel.
template <typename T> void shift(T* map, const T* bias, int64_t pixels, int64_t channels) {
    for (int64_t pixel = 0; pixel < pixels; ++pixel)
        for (int64_t c = 0; c < channels; ++c) map[pixel * channels + c] += bias[c];
}

template <typename T> void sum_pixels(const T* map, T* sums, int64_t pixels, int64_t channels) {
    std::fill(sums, sums + channels, T(0));
    for (int64_t pixel = 0; pixel < pixels; ++pixel)
        for (int64_t c = 0; c < channels; ++c) sums[c] += map[pixel * channels + c];
}

// The bias's gradient, of a pooled map where there is `which`: sums over the images, of sums over each, so that errors grow with
// the root of the number of pixels.
template <typename T>
void sum_gradients(const T* g, const T* which, T* of_bias, int64_t images, int64_t pixels, int64_t channels) {
    std::vector<T> sums(channels);
    std::fill(of_bias, of_bias + channels, T(0));
    for (int64_t image = 0; image < images; ++image) {
        std::fill(sums.begin(), sums.end(), T(0));
        for (int64_t at = image * pixels * channels; at < (image + 1) * pixels * channels; at += channels)
            for (int64_t c = 0; c < channels; ++c) sums[c] += !which || which[at + c] < DEAD ? g[at + c] : T(0);
        for (int64_t c = 0; c < channels; ++c) of_bias[c] += sums[c];
    }
}
