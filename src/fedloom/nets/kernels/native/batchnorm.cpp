// Batch normalization of maps, with or without ReLU: see norm.h.
#include "norm.h"

namespace {

template <typename T, bool RELU>
void forward(const T* x, const T* weight, const T* bias, T* running_mean, T* running_var, T* stats, double* sums, T* y,
             int64_t rows, int64_t channels, double momentum, double eps, bool training) {
    take_statistics(x, running_mean, running_var, stats, sums, rows, channels, momentum, eps, training);
    normalize<T, RELU>(x, y, {stats, stats + channels, weight, bias}, rows, channels);
}

// of_x: none where it is not needed. of_norm: gradients of weight and bias, then two rows of workspace.
template <typename T, bool RELU>
void backward(const T* x, const T* g, const T* weight, const T* bias, const T* stats, T* of_x, T* of_norm, double* sums,
              int64_t rows, int64_t channels, bool training) {
    const Norm<T> norm = {stats, stats + channels, weight, bias};
    T* shares = of_norm + 2 * channels;
    std::memset(sums, 0, 2 * channels * sizeof(double));
    backwards(rows, channels, [&](int64_t begin, int64_t count) {
        const int64_t at = begin * channels;
        add_gradients<T, RELU>(x + at, g + at, norm, count, channels, sums, sums + channels);
    });
    finish_gradients(sums, sums + channels, norm, rows, channels, training, of_norm, of_norm + channels, shares);
    if (of_x) apply_gradients<T, RELU>(x, g, of_x, norm, shares, rows, channels);
}

}  // namespace

#define FUNCTIONS(T, type)                                                                                             \
    EXPORT(batchnorm_forward, type)                                                                                    \
    (const T* x, const T* weight, const T* bias, T* running_mean, T* running_var, T* stats, double* sums, T* y,        \
     int64_t rows, int64_t channels, double momentum, double eps, int64_t training, int64_t relu) {                    \
        (relu ? forward<T, true> : forward<T, false>)(x, weight, bias, running_mean, running_var, stats, sums, y,      \
                                                      rows, channels, momentum, eps, training);                       \
    }                                                                                                                  \
    EXPORT(batchnorm_backward, type)                                                                                   \
    (const T* x, const T* g, const T* weight, const T* bias, const T* stats, T* of_x, T* of_norm, double* sums,        \
     int64_t rows, int64_t channels, int64_t training, int64_t relu) {                                                 \
        (relu ? backward<T, true> : backward<T, false>)(x, g, weight, bias, stats, of_x, of_norm, sums, rows,          \
                                                        channels, training);                                          \
    }
FUNCTIONS(float, f32)
FUNCTIONS(double, f64)
