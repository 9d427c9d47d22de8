// The end of a residual block: relu(normalize(x) + other), where the other map is as it is, or normalized too.
#include "norm.h"

namespace {

// A map, and what normalizes it.
template <typename T> struct Side {
    const T* map;
    Norm<T> norm;
};

template <typename T, bool BOTH> void add_sides(const Side<T>& one, const Side<T>& other, T* y, int64_t rows, int64_t channels) {
    each_block_of<T, 4, 2, 1>(channels, [&](int64_t first, auto vectors, auto whole, int64_t count) INLINED {
        constexpr int64_t K = decltype(vectors)::value, L = LANES<T>;
        constexpr bool W = decltype(whole)::value;
        const NormBlock<T, K, W> n(one.norm, first, count), o(BOTH ? other.norm : one.norm, first, count);
        for (int64_t row = 0; row < rows; ++row)
            UNROLL for (int64_t k = 0; k < K; ++k) {
                const int64_t at = row * channels + first + k * L;
                Vec<T> more = get<W>(other.map + at, count);
                if (BOTH) more = (more - o.mean[k]) * o.scale[k] + o.shift[k];
                const Vec<T> sum = (get<W>(one.map + at, count) - n.mean[k]) * n.scale[k] + n.shift[k] + more;
                put<W>(y + at, sum < 0 ? Vec<T>{} : sum, count);  // keeps what is not a number
            }
    });
}

// What of the gradient g of y passes the ReLU, with its sums, and those of its products with (map - mean).
template <typename T, bool BOTH>
void pass_gradient(const Side<T>& one, const Side<T>& other, const T* y, const T* g, T* passed, int64_t rows, int64_t channels, double* sums) {
    each_block_of<T, 4, 2, 1>(channels, [&](int64_t first, auto vectors, auto whole, int64_t count) INLINED {
        constexpr int64_t K = decltype(vectors)::value, L = LANES<T>;
        constexpr bool W = decltype(whole)::value;
        Vec<T> mean[K], mean_other[K];
        UNROLL for (int64_t k = 0; k < K; ++k) {
            mean[k] = get<W>(one.norm.mean + first + k * L, count);
            mean_other[k] = BOTH ? get<W>(other.norm.mean + first + k * L, count) : Vec<T>{};
        }
        for (int64_t begin = 0; begin < rows; begin += RUN) {
            const int64_t end = std::min(begin + RUN, rows);
            Vec<T> totals[K] = {}, dots[K] = {}, dots_other[K] = {};
            for (int64_t row = begin; row < end; ++row)
                UNROLL for (int64_t k = 0; k < K; ++k) {
                    const int64_t at = row * channels + first + k * L;
                    const Vec<T> part = get<W>(y + at, count) <= 0 ? Vec<T>{} : get<W>(g + at, count);
                    put<W>(passed + at, part, count);
                    totals[k] += part;
                    dots[k] += part * (get<W>(one.map + at, count) - mean[k]);
                    if (BOTH) dots_other[k] += part * (get<W>(other.map + at, count) - mean_other[k]);
                }
            UNROLL for (int64_t k = 0; k < K; ++k) {
                add_lanes<T>(sums + first + k * L, totals[k], count);
                add_lanes<T>(sums + channels + first + k * L, dots[k], count);
                if (BOTH) add_lanes<T>(sums + 2 * channels + first + k * L, dots_other[k], count);
            }
        }
    });
}

// `passed`: room for what passes the ReLU, which is the gradient of the other map where nothing normalizes it. of_norm: gradients of weight
// and bias, then two rows of workspace; those of the other normalization behind them.
template <typename T, bool BOTH>
void backward(const Side<T>& one, const Side<T>& other, const T* y, const T* g, T* of_x, T* of_other, T* passed, T* of_norm, double* sums,
              int64_t rows, int64_t channels, bool training, bool training_other) {
    std::memset(sums, 0, 3 * channels * sizeof(double));
    backwards(rows, channels, [&](int64_t begin, int64_t count) {
        const int64_t at = begin * channels;
        pass_gradient<T, BOTH>({one.map + at, one.norm}, {other.map + at, other.norm}, y + at, g + at, passed + at, count, channels, sums);
    });
    const auto finish = [&](const Side<T>& side, const double* dots, T* of_map, T* of_both, bool by_batch) {
        T* shares = of_both + 2 * channels;
        finish_gradients(sums, dots, side.norm, rows, channels, by_batch, of_both, of_both + channels, shares);
        if (of_map) apply_gradients<T, false>(side.map, passed, of_map, side.norm, shares, rows, channels);
    };
    if (BOTH) finish(other, sums + 2 * channels, of_other, of_norm + 4 * channels, training_other);
    finish(one, sums + channels, of_x, of_norm, training);
}

}  // namespace

#define FUNCTIONS(T, type)                                                                                                                  \
    EXPORT(residual_forward, type)                                                                                                          \
    (const T* x, const T* weight, const T* bias, T* mean, T* var, const T* other, const T* weight2, const T* bias2, T* mean2, T* var2,      \
     T* stats, T* stats2, double* sums, T* y, int64_t rows, int64_t channels, double momentum, double eps, int64_t training,                \
     double momentum2, double eps2, int64_t training2) {                                                                                    \
        take_statistics(x, mean, var, stats, sums, rows, channels, momentum, eps, training);                                                \
        if (stats2) take_statistics(other, mean2, var2, stats2, sums, rows, channels, momentum2, eps2, training2);                          \
        (stats2 ? add_sides<T, true> : add_sides<T, false>)({x, {stats, stats + channels, weight, bias}},                                   \
                                                            {other, {stats2, stats2 + channels, weight2, bias2}}, y, rows, channels);       \
    }                                                                                                                                       \
    EXPORT(residual_backward, type)                                                                                                         \
    (const T* x, const T* weight, const T* bias, const T* other, const T* weight2, const T* bias2, const T* stats, const T* stats2,         \
     const T* y, const T* g, T* of_x, T* of_other, T* passed, T* of_norm, double* sums, int64_t rows, int64_t channels, int64_t training,   \
     int64_t training2) {                                                                                                                   \
        (stats2 ? backward<T, true> : backward<T, false>)({x, {stats, stats + channels, weight, bias}},                                     \
                                                          {other, {stats2, stats2 + channels, weight2, bias2}}, y, g, of_x, of_other,       \
                                                          passed, of_norm, sums, rows, channels, training, training2);                      \
    }
FUNCTIONS(float, f32)
FUNCTIONS(double, f64)
