// Batch normalization of channels-last maps, (rows, channels), with or without ReLU.
//
// Statistics: the mean and the squared deviations of short runs of rows, which stay in the nearest cache, are added up in
// double precision. So there is one pass over memory and no difference of large numbers.
#include "common.h"

namespace {

constexpr int64_t RUN = 32;  // rows

// Sums over rows, in double precision, of what `add` accumulates over the rows of a run.
template <typename T, int64_t K> INLINE void flush(const Vec<T>* sums, double* totals) {
    for (int64_t k = 0; k < K; ++k)
        for (int64_t lane = 0; lane < LANES<T>; ++lane) totals[k * LANES<T> + lane] += (double)sums[k][lane];
}

template <typename T> void moments(const T* x, int64_t rows, int64_t channels, double* means, double* variances) {
    each_block<T>(channels, [&](int64_t first, auto vectors, auto whole, int64_t count) {
        constexpr int64_t K = decltype(vectors)::value, L = LANES<T>;
        constexpr bool W = decltype(whole)::value;
        double totals[K * L] = {}, squares[K * L] = {};
        for (int64_t begin = 0; begin < rows; begin += RUN) {
            const int64_t length = std::min(RUN, rows - begin);
            const T* run = x + begin * channels + first;
            Vec<T> sums[K] = {}, mean[K], deviations[K] = {};
            for (int64_t row = 0; row < length; ++row)
                for (int64_t k = 0; k < K; ++k) sums[k] += get<W>(run + row * channels + k * L, count);
            for (int64_t k = 0; k < K; ++k) mean[k] = sums[k] * ((T)1 / (T)length);
            for (int64_t row = 0; row < length; ++row)
                for (int64_t k = 0; k < K; ++k) {
                    const Vec<T> apart = get<W>(run + row * channels + k * L, count) - mean[k];
                    deviations[k] += apart * apart;
                }
            // sum of (x - m)^2 over a run = sum of x^2 - 2 m s + length m^2, whatever m is near the mean
            for (int64_t k = 0; k < K; ++k)
                for (int64_t lane = 0; lane < L; ++lane) {
                    const double m = mean[k][lane], s = sums[k][lane];
                    totals[k * L + lane] += s;
                    squares[k * L + lane] += (double)deviations[k][lane] + m * (2 * s - (double)length * m);
                }
        }
        for (int64_t at = 0; at < (W ? K * L : count); ++at) {
            const double mean = totals[at] / (double)rows;
            means[first + at] = mean;
            variances[first + at] = std::max(squares[at] / (double)rows - mean * mean, 0.0);
        }
    });
}

// stats: mean, then 1 / deviation, of each channel.
template <typename T, bool RELU>
void normalize(const T* x, T* y, const T* weight, const T* bias, const T* stats, int64_t rows, int64_t channels) {
    each_block<T>(channels, [&](int64_t first, auto vectors, auto whole, int64_t count) {
        constexpr int64_t K = decltype(vectors)::value, L = LANES<T>;
        constexpr bool W = decltype(whole)::value;
        Vec<T> mean[K], scale[K], shift[K];
        for (int64_t k = 0; k < K; ++k) {
            mean[k] = get<W>(stats + first + k * L, count);
            scale[k] = get<W>(stats + channels + first + k * L, count);
            if (weight) scale[k] *= get<W>(weight + first + k * L, count);
            shift[k] = bias ? get<W>(bias + first + k * L, count) : Vec<T>{};
        }
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t k = 0; k < K; ++k) {
                const int64_t at = row * channels + first + k * L;
                Vec<T> value = (get<W>(x + at, count) - mean[k]) * scale[k] + shift[k];
                if (RELU) value = value < 0 ? Vec<T>{} : value;  // keeps what is not a number
                put<W>(y + at, value, count);
            }
    });
}

// The gradient of y that passes the ReLU.
template <typename T, bool RELU> INLINE Vec<T> passed(Vec<T> g, Vec<T> apart, Vec<T> scale, Vec<T> shift) {
    if (!RELU) return g;
    return apart * scale + shift <= 0 ? Vec<T>{} : g;
}

template <typename T, bool RELU>
void backward(const T* x, const T* g, const T* weight, const T* bias, const T* stats, T* of_x, T* of_weight, T* of_bias,
              int64_t rows, int64_t channels, bool training) {
    each_block<T>(channels, [&](int64_t first, auto vectors, auto whole, int64_t count) {
        constexpr int64_t K = decltype(vectors)::value, L = LANES<T>;
        constexpr bool W = decltype(whole)::value;
        Vec<T> mean[K], scale[K], shift[K];
        for (int64_t k = 0; k < K; ++k) {
            mean[k] = get<W>(stats + first + k * L, count);
            scale[k] = get<W>(stats + channels + first + k * L, count);
            if (weight) scale[k] *= get<W>(weight + first + k * L, count);
            shift[k] = bias ? get<W>(bias + first + k * L, count) : Vec<T>{};
        }
        double totals[K * L] = {}, products[K * L] = {};
        for (int64_t begin = 0; begin < rows; begin += RUN) {
            const int64_t end = std::min(begin + RUN, rows);
            Vec<T> sums[K] = {}, dots[K] = {};
            for (int64_t row = begin; row < end; ++row)
                for (int64_t k = 0; k < K; ++k) {
                    const int64_t at = row * channels + first + k * L;
                    const Vec<T> apart = get<W>(x + at, count) - mean[k];
                    const Vec<T> part = passed<T, RELU>(get<W>(g + at, count), apart, scale[k], shift[k]);
                    sums[k] += part;
                    dots[k] += part * apart;
                }
            flush<T, K>(sums, totals);
            flush<T, K>(dots, products);
        }
        T constant[K * L] = {}, slope[K * L] = {};  // what the batch's own mean and variance contribute
        for (int64_t at = 0; at < (W ? K * L : count); ++at) {
            const double inverse = stats[channels + first + at];
            of_bias[first + at] = (T)totals[at];
            of_weight[first + at] = (T)(products[at] * inverse);
            if (training) {
                constant[at] = (T)(totals[at] / (double)rows);
                slope[at] = (T)(products[at] * inverse * inverse / (double)rows);
            }
        }
        if (!of_x) return;
        Vec<T> steady[K], tilt[K];
        for (int64_t k = 0; k < K; ++k) steady[k] = load(constant + k * L), tilt[k] = load(slope + k * L);
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t k = 0; k < K; ++k) {
                const int64_t at = row * channels + first + k * L;
                const Vec<T> apart = get<W>(x + at, count) - mean[k];
                const Vec<T> part = passed<T, RELU>(get<W>(g + at, count), apart, scale[k], shift[k]);
                put<W>(of_x + at, scale[k] * (part - steady[k] - apart * tilt[k]), count);
            }
    });
}

template <typename T>
void statistics(const T* x, T* running_mean, T* running_var, T* stats, double* workspace, int64_t rows, int64_t channels,
                double momentum, double eps, bool training) {
    if (!training) {
        for (int64_t c = 0; c < channels; ++c) {
            stats[c] = running_mean[c];
            stats[channels + c] = (T)(1 / std::sqrt((double)running_var[c] + eps));
        }
        return;
    }
    double *means = workspace, *variances = workspace + channels;
    moments(x, rows, channels, means, variances);
    const double unbiased = (double)rows / (double)std::max<int64_t>(rows - 1, 1);
    for (int64_t c = 0; c < channels; ++c) {
        stats[c] = (T)means[c];
        stats[channels + c] = (T)(1 / std::sqrt(variances[c] + eps));
        if (running_mean) {
            running_mean[c] = (T)((1 - momentum) * running_mean[c] + momentum * means[c]);
            running_var[c] = (T)((1 - momentum) * running_var[c] + momentum * variances[c] * unbiased);
        }
    }
}

}  // namespace

#define FUNCTIONS(T, type)                                                                                             \
    EXPORT(batchnorm_forward, type)                                                                                    \
    (const T* x, const T* weight, const T* bias, T* running_mean, T* running_var, T* stats, double* workspace, T* y,   \
     int64_t rows, int64_t channels, double momentum, double eps, int64_t training, int64_t relu) {                    \
        statistics(x, running_mean, running_var, stats, workspace, rows, channels, momentum, eps, training);           \
        (relu ? normalize<T, true> : normalize<T, false>)(x, y, weight, bias, stats, rows, channels);                  \
    }                                                                                                                  \
    EXPORT(batchnorm_backward, type)                                                                                   \
    (const T* x, const T* g, const T* weight, const T* bias, const T* stats, T* of_x, T* of_weight, T* of_bias,        \
     int64_t rows, int64_t channels, int64_t training, int64_t relu) {                                                 \
        (relu ? backward<T, true> : backward<T, false>)(x, g, weight, bias, stats, of_x, of_weight, of_bias, rows,     \
                                                        channels, training);                                          \
    }
FUNCTIONS(float, f32)
FUNCTIONS(double, f64)
