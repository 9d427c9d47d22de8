// A depthwise 3x3 convolution between two batch normalizations with ReLU, as in MobileNet, and perhaps the 1x1 convolution that
// follows, as one operation: what lies between stays in a core's cache, a few images or rows at a time.
//
//     x -> normalize, ReLU -> convolve: y -> normalize, ReLU: z -> convolve by 1x1
#include "depthwise.h"
#include "norm.h"
#include "point.h"

namespace {

// One batch normalization as Python passes it: a row of pointers.
template <typename T> struct Given {
    const T *weight, *bias;
    T *running_mean, *running_var;
};

// stats: mean and 1 / deviation, of x and then of y. `known`: sums of x and of its squares, if they are known. `moments`: where those of
// what is made are wanted, zeros.
template <typename T>
void forward(const T* x, const Given<T>& before, const T* weight, const Given<T>& after, const Point<T>& point, T* y, T* made, T* stats,
             const double* known, double* moments, void* memory, const Shape& s, const double* momentum, const double* eps, bool training) {
    Workspace workspace = {(char*)memory};
    const int64_t c = s.channels, rows = s.batch * s.high * s.wide, rows_made = s.batch * s.made_high * s.made_wide;
    const Vec<T>* taps = all_taps(weight, c, false, workspace);
    double* sums = workspace.take<double>(4 * c);
    T* part = workspace.take<T>(s.group() * s.image());
    T *first = stats, *second = stats + 2 * c;
    std::memset(sums, 0, 4 * c * sizeof(double));
    if (training) {
        if (!known) {
            backwards(rows, c, [&](int64_t begin, int64_t count) { add_moments(x + begin * c, count, c, sums, sums + c); });
            known = sums;
        }
        finish_moments(known, known + c, rows, c, momentum[0], eps[0], before.running_mean, before.running_var, first);
    } else {
        running_moments(before.running_mean, before.running_var, c, eps[0], first);
        running_moments(after.running_mean, after.running_var, c, eps[1], second);
    }
    const Norm<T> norm = {first, first + c, before.weight, before.bias};
    const Norm<T> next = {second, second + c, after.weight, after.bias};
    Result<T> result(next, point, moments);
    for (int64_t begin = 0; begin < s.batch; begin += s.group()) {
        const int64_t images = std::min(s.group(), s.batch - begin), pixels = images * s.made_high * s.made_wide;
        T* to = y + begin * s.made();
        normalize<T, true>(x + begin * s.image(), part, norm, images * s.high * s.wide, c);
        convolve_images<T>(part, taps, nullptr, to, s, images);
        if (training) add_moments(to, pixels, c, sums + 2 * c, sums + 3 * c);
        else result.write(y, made, begin * s.made() / c, pixels);
    }
    if (!training) return;
    finish_moments(sums + 2 * c, sums + 3 * c, rows_made, c, momentum[1], eps[1], after.running_mean, after.running_var, second);
    const auto write = [&](int64_t begin, int64_t count) { result.write(y, made, begin, count); };
    if (point.weight) backwards_by(ROWS, rows_made, write);
    else backwards(rows_made, c, write);
}

// of_norms: gradients of weight and bias, of the first and then of the second normalization. of_z: room for the gradient of z, where
// a 1x1 convolution follows. `whole`: of_x is the gradient of x; else that of the first normalization's output, and with `shares` the
// block before makes the gradient of x of it.
template <typename T>
void backward(const T* x, const T* y, const Gradient<T>& gradient, const Given<T>& before, const T* weight, const Given<T>& after,
              const Point<T>& point, const T* stats, T* of_x, T* of_weight, T* of_norms, T* of_z, T* of_point, T* shares, void* memory,
              const Shape& s, bool training, bool whole) {
    Workspace workspace = {(char*)memory};
    const int64_t c = s.channels, rows = s.batch * s.high * s.wide, made = s.batch * s.made_high * s.made_wide;
    const Vec<T>* taps = all_taps(weight, c, s.stride == 1, workspace);
    double *sums = workspace.take<double>(4 * c), *totals = workspace.take<double>(9 * c);
    T* of_y = workspace.take<T>(2 * c);
    T *part = workspace.take<T>(s.group() * s.image()), *inside = workspace.take<T>(s.group() * s.made());
    const Norm<T> norm = {stats, stats + c, before.weight, before.bias};
    const Norm<T> next = {stats + 2 * c, stats + 3 * c, after.weight, after.bias};
    std::memset(sums, 0, 4 * c * sizeof(double));
    std::memset(totals, 0, 9 * c * sizeof(double));
    const T* g = point.weight ? of_z : gradient.g;
    if (point.weight) {
        point_backward(y, gradient, next, point, of_z, of_point, sums + 2 * c, made);
    } else {
        backwards(made, c, [&](int64_t begin, int64_t count) {
            add_gradients<T, true>(y + begin * c, g + begin * c, next, count, c, sums + 2 * c, sums + 3 * c);
        });
    }
    finish_gradients(sums + 2 * c, sums + 3 * c, next, made, c, training, of_norms + 2 * c, of_norms + 3 * c, of_y);
    for (int64_t begin = 0; begin < s.batch; begin += s.group()) {
        const int64_t images = std::min(s.group(), s.batch - begin), pixels = images * s.high * s.wide;
        const T* from = x + begin * s.image();
        T* to = of_x + begin * s.image();
        apply_gradients<T, true>(y + begin * s.made(), g + begin * s.made(), inside, next, of_y, images * s.made_high * s.made_wide, c);
        normalize<T, true>(from, part, norm, pixels, c);
        add_weight_gradient(part, inside, totals, s, images);
        input_gradient(inside, taps, to, s, images);
        add_gradients<T, true>(from, to, norm, pixels, c, sums, sums + c);
    }
    finish_weight_gradient(totals, of_weight, c);
    finish_gradients(sums, sums + c, norm, rows, c, training, of_norms, of_norms + c, shares);
    if (!whole) return;
    backwards(rows, c, [&](int64_t begin, int64_t count) {
        apply_gradients<T, true>(x + begin * c, of_x + begin * c, of_x + begin * c, norm, shares, count, c);
    });
}

}  // namespace

#define SIZES int64_t batch, int64_t channels, int64_t high, int64_t wide, int64_t made_high, int64_t made_wide, int64_t stride, int64_t out
#define SHAPE {batch, channels, high, wide, made_high, made_wide, stride}
#define FUNCTIONS(T, type)                                                                                             \
    EXPORT(block_forward, type)                                                                                        \
    (const T* x, const T* weight1, const T* bias1, T* mean1, T* var1, const T* weight, const T* weight2, const T* bias2, \
     T* mean2, T* var2, const T* point, T* y, T* made, T* stats, const double* known, double* moments, void* memory,   \
     SIZES, double momentum1, double eps1, double momentum2, double eps2, int64_t training) {                          \
        const double momentum[] = {momentum1, momentum2}, eps[] = {eps1, eps2};                                        \
        forward<T>(x, {weight1, bias1, mean1, var1}, weight, {weight2, bias2, mean2, var2}, {point, channels, out}, y, \
                   made, stats, known, moments, memory, SHAPE, momentum, eps, training);                               \
    }                                                                                                                  \
    EXPORT(block_backward, type)                                                                                       \
    (const T* x, const T* y, const T* g, const T* next_x, const T* next_weight, const T* next_bias,                    \
     const T* next_stats, const T* next_shares, const T* weight1, const T* bias1, const T* weight, const T* weight2,   \
     const T* bias2, const T* point, const T* stats, T* of_x, T* of_weight, T* of_norms, T* of_z, T* of_point,         \
     T* shares, void* memory, SIZES, int64_t training, int64_t whole) {                                                \
        const Norm<T> next = {next_stats, next_stats + out, next_weight, next_bias};                                   \
        backward<T>(x, y, {g, next_x, next, next_shares, out}, {weight1, bias1, nullptr, nullptr}, weight,             \
                    {weight2, bias2, nullptr, nullptr}, {point, channels, out}, stats, of_x, of_weight, of_norms,      \
                    of_z, of_point, shares, memory, SHAPE, training, whole);                                           \
    }
FUNCTIONS(float, f32)
FUNCTIONS(double, f64)
