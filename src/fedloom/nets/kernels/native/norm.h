// Batch normalization of channels-last maps, (rows, channels), with or without ReLU.
//
// Statistics: the mean and the squared deviations of short runs of rows, which stay in the nearest cache, are added up in
// double precision. So there is one pass over memory and no difference of large numbers.
#pragma once

#include "common.h"

namespace {

constexpr int64_t RUN = 32;         // rows
constexpr int64_t PIECE = 1 << 14;  // numbers

// What normalizes: statistics of each channel, and the learned scale and shift where there are some.
template <typename T> struct Norm {
    const T *mean, *inverse, *weight, *bias;
};

// The same for K vectors of channels, in registers.
template <typename T, int64_t K, bool W> struct NormBlock {
    Vec<T> mean[K], scale[K], shift[K];
    INLINE NormBlock(const Norm<T>& norm, int64_t first, int64_t count) {
        UNROLL for (int64_t k = 0; k < K; ++k) {
            const int64_t at = first + k * LANES<T>;
            mean[k] = get<W>(norm.mean + at, count);
            scale[k] = get<W>(norm.inverse + at, count);
            if (norm.weight) scale[k] *= get<W>(norm.weight + at, count);
            shift[k] = norm.bias ? get<W>(norm.bias + at, count) : Vec<T>{};
        }
    }
};

// Walks over rows from the last to the first, in pieces: work(first row, rows). What was computed last is still in a cache,
// so a pass over memory begins where the one before it ended.
template <typename Work> INLINE void backwards_by(int64_t piece, int64_t rows, Work work) {
    for (int64_t begin = (rows - 1) / piece * piece; begin >= 0; begin -= piece) work(begin, std::min(piece, rows - begin));
}

template <typename Work> INLINE void backwards(int64_t rows, int64_t channels, Work work) {
    backwards_by(std::max<int64_t>(PIECE / channels / RUN, 1) * RUN, rows, work);
}

// Adds the sums of x and of its squares over rows to `totals` and `squares`.
template <typename T>
void add_moments(const T* x, int64_t rows, int64_t channels, double* totals, double* squares) {
    each_block<T>(channels, [&](int64_t first, auto vectors, auto whole, int64_t count) INLINED {
        constexpr int64_t K = decltype(vectors)::value, L = LANES<T>;
        constexpr bool W = decltype(whole)::value;
        for (int64_t begin = 0; begin < rows; begin += RUN) {
            const int64_t length = std::min(RUN, rows - begin);
            const T* run = x + begin * channels + first;
            Vec<T> sums[K] = {}, mean[K], deviations[K] = {};
            for (int64_t row = 0; row < length; ++row)
                UNROLL for (int64_t k = 0; k < K; ++k) sums[k] += get<W>(run + row * channels + k * L, count);
            UNROLL for (int64_t k = 0; k < K; ++k) mean[k] = sums[k] * ((T)1 / (T)length);
            for (int64_t row = 0; row < length; ++row)
                UNROLL for (int64_t k = 0; k < K; ++k) {
                    const Vec<T> apart = get<W>(run + row * channels + k * L, count) - mean[k];
                    deviations[k] += apart * apart;
                }
            // sum of x^2 = sum of (x - m)^2 + m (2 s - length m), whatever m is
            alignas(VECTOR_BYTES) T s[K * L], m[K * L], d[K * L];
            UNROLL for (int64_t k = 0; k < K; ++k) {
                store(s + k * L, sums[k]), store(m + k * L, mean[k]), store(d + k * L, deviations[k]);
            }
            const int64_t lanes = W ? K * L : count;
            for (int64_t at = 0; at < lanes; ++at) {
                const double sum = s[at], center = m[at];
                totals[first + at] += sum;
                squares[first + at] += (double)d[at] + center * (2 * sum - (double)length * center);
            }
        }
    });
}

// From sums over all rows to statistics, (mean, 1 / deviation); running averages move by `momentum` where there are some.
template <typename T>
void finish_moments(const double* totals, const double* squares, int64_t rows, int64_t channels, double momentum, double eps,
                    T* running_mean, T* running_var, T* stats) {
    const double unbiased = (double)rows / (double)std::max<int64_t>(rows - 1, 1);
    for (int64_t c = 0; c < channels; ++c) {
        const double mean = totals[c] / (double)rows;
        const double variance = std::max(squares[c] / (double)rows - mean * mean, 0.0);
        stats[c] = (T)mean;
        stats[channels + c] = (T)(1 / std::sqrt(variance + eps));
        if (running_mean) {
            running_mean[c] = (T)((1 - momentum) * running_mean[c] + momentum * mean);
            running_var[c] = (T)((1 - momentum) * running_var[c] + momentum * variance * unbiased);
        }
    }
}

// Statistics in evaluation.
template <typename T>
void running_moments(const T* running_mean, const T* running_var, int64_t channels, double eps, T* stats) {
    for (int64_t c = 0; c < channels; ++c) {
        stats[c] = running_mean[c];
        stats[channels + c] = (T)(1 / std::sqrt((double)running_var[c] + eps));
    }
}

// Statistics of a map by which it is normalized: its own in training. `sums`: room for 2 * channels.
template <typename T>
void take_statistics(const T* x, T* running_mean, T* running_var, T* stats, double* sums, int64_t rows, int64_t channels, double momentum,
                     double eps, bool training) {
    if (!training) return running_moments(running_mean, running_var, channels, eps, stats);
    std::memset(sums, 0, 2 * channels * sizeof(double));
    backwards(rows, channels, [&](int64_t begin, int64_t count) {
        add_moments(x + begin * channels, count, channels, sums, sums + channels);
    });
    finish_moments(sums, sums + channels, rows, channels, momentum, eps, running_mean, running_var, stats);
}

// `to`: InRows, or another place for rows.
template <typename T, bool RELU, typename To>
void normalize(const T* x, To to, const Norm<T>& norm, int64_t rows, int64_t channels) {
    To::each(channels, [&](int64_t first, auto vectors, auto whole, int64_t count) INLINED {
        constexpr int64_t K = decltype(vectors)::value;
        constexpr bool W = decltype(whole)::value;
        const NormBlock<T, K, W> n(norm, first, count);
        for (int64_t row = 0; row < rows; ++row)
            UNROLL for (int64_t k = 0; k < K; ++k) {
                const int64_t at = row * channels + first + k * LANES<T>;
                Vec<T> value = (get<W>(x + at, count) - n.mean[k]) * n.scale[k] + n.shift[k];
                if (RELU) value = value < 0 ? Vec<T>{} : value;  // keeps what is not a number
                to.template set<W>(row, first, k, value, count);
            }
    });
}

template <typename T, bool RELU>
void normalize(const T* x, T* y, const Norm<T>& norm, int64_t rows, int64_t channels) {
    normalize<T, RELU>(x, InRows<T>{y, channels}, norm, rows, channels);
}

// The gradient of y that passes the ReLU.
template <typename T, bool RELU> INLINE Vec<T> passed(Vec<T> g, Vec<T> apart, Vec<T> scale, Vec<T> shift) {
    if (!RELU) return g;
    return apart * scale + shift <= 0 ? Vec<T>{} : g;
}

// Adds the sums of the gradient, and of the gradient times (x - mean), over rows to `totals` and `products`.
template <typename T, bool RELU>
void add_gradients(const T* x, const T* g, const Norm<T>& norm, int64_t rows, int64_t channels, double* totals,
                   double* products) {
    // five vectors of a block stay in registers
    each_block_of<T, 4, 2, 1>(channels, [&](int64_t first, auto vectors, auto whole, int64_t count) INLINED {
        constexpr int64_t K = decltype(vectors)::value, L = LANES<T>;
        constexpr bool W = decltype(whole)::value;
        const NormBlock<T, K, W> n(norm, first, count);
        for (int64_t begin = 0; begin < rows; begin += RUN) {
            const int64_t end = std::min(begin + RUN, rows);
            Vec<T> sums[K] = {}, dots[K] = {};
            for (int64_t row = begin; row < end; ++row)
                UNROLL for (int64_t k = 0; k < K; ++k) {
                    const int64_t at = row * channels + first + k * L;
                    const Vec<T> apart = get<W>(x + at, count) - n.mean[k];
                    const Vec<T> part = passed<T, RELU>(get<W>(g + at, count), apart, n.scale[k], n.shift[k]);
                    sums[k] += part;
                    dots[k] += part * apart;
                }
            UNROLL for (int64_t k = 0; k < K; ++k) {
                add_lanes<T>(totals + first + k * L, sums[k], count);
                add_lanes<T>(products + first + k * L, dots[k], count);
            }
        }
    });
}

// From these sums to the gradients of weight and bias, and to what the batch's own mean and variance contribute to the
// gradient of x: `shares`, a constant and a slope of each channel.
template <typename T>
void finish_gradients(const double* totals, const double* products, const Norm<T>& norm, int64_t rows, int64_t channels,
                      bool training, T* of_weight, T* of_bias, T* shares) {
    for (int64_t c = 0; c < channels; ++c) {
        const double inverse = norm.inverse[c];
        of_bias[c] = (T)totals[c];
        of_weight[c] = (T)(products[c] * inverse);
        shares[c] = training ? (T)(totals[c] / (double)rows) : 0;
        shares[channels + c] = training ? (T)(products[c] * inverse * inverse / (double)rows) : 0;
    }
}

// The gradient of x. `to`: InRows, or another place for rows; it may be that of g.
template <typename T, bool RELU, typename To>
void apply_gradients(const T* x, const T* g, To to, const Norm<T>& norm, const T* shares, int64_t rows, int64_t channels) {
    To::each(channels, [&](int64_t first, auto vectors, auto whole, int64_t count) INLINED {
        constexpr int64_t K = decltype(vectors)::value, L = LANES<T>;
        constexpr bool W = decltype(whole)::value;
        const NormBlock<T, K, W> n(norm, first, count);
        Vec<T> constant[K], slope[K];
        UNROLL for (int64_t k = 0; k < K; ++k) {
            constant[k] = get<W>(shares + first + k * L, count);
            slope[k] = get<W>(shares + channels + first + k * L, count);
        }
        for (int64_t row = 0; row < rows; ++row)
            UNROLL for (int64_t k = 0; k < K; ++k) {
                const int64_t at = row * channels + first + k * L;
                const Vec<T> apart = get<W>(x + at, count) - n.mean[k];
                const Vec<T> part = passed<T, RELU>(get<W>(g + at, count), apart, n.scale[k], n.shift[k]);
                to.template set<W>(row, first, k, n.scale[k] * (part - constant[k] - apart * slope[k]), count);
            }
    });
}

template <typename T, bool RELU>
void apply_gradients(const T* x, const T* g, T* of_x, const Norm<T>& norm, const T* shares, int64_t rows, int64_t channels) {
    apply_gradients<T, RELU>(x, g, InRows<T>{of_x, channels}, norm, shares, rows, channels);
}

}  // namespace
