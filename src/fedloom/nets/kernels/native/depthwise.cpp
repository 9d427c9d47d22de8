// Depthwise 3x3 convolutions: see depthwise.h. And such a convolution between two batch normalizations with ReLU, as in
// MobileNet, as one operation: what lies between stays in a core's cache, a few images at a time.
#include "depthwise.h"
#include "norm.h"

namespace {

template <typename T> void forward(const T* x, const T* weight, const T* bias, T* y, void* memory, const Shape& s) {
    Workspace workspace = {(char*)memory};
    const Vec<T>* taps = all_taps(weight, s.channels, false, workspace);
    convolve_images(x, taps, bias, y, s, s.batch);
}

template <typename T>
void backward(const T* x, const T* g, const T* weight, T* of_x, T* of_weight, void* memory, const Shape& s) {
    Workspace workspace = {(char*)memory};
    const Vec<T>* taps = all_taps(weight, s.channels, s.stride == 1, workspace);
    double* totals = workspace.take<double>(9 * s.channels);
    std::memset(totals, 0, 9 * s.channels * sizeof(double));
    for (int64_t begin = 0; begin < s.batch; begin += s.group()) {
        const int64_t images = std::min(s.group(), s.batch - begin);
        if (of_x) input_gradient(g + begin * s.made(), taps, of_x + begin * s.image(), s, images);
        if (of_weight) add_weight_gradient(x + begin * s.image(), g + begin * s.made(), totals, s, images);
    }
    if (of_weight) finish_weight_gradient(totals, of_weight, s.channels);
}

// One batch normalization as Python passes it: a row of pointers.
template <typename T> struct Given {
    const T *weight, *bias;
    T *running_mean, *running_var;
};

// x -> normalize, ReLU -> convolve: y -> normalize, ReLU: z. stats: mean and 1 / deviation, of x and then of y.
template <typename T>
void block_forward(const T* x, const Given<T>& before, const T* weight, const Given<T>& after, T* y, T* z, T* stats,
                   void* memory, const Shape& s, const double* momentum, const double* eps, bool training) {
    Workspace workspace = {(char*)memory};
    const int64_t c = s.channels, rows = s.batch * s.high * s.wide, made = s.batch * s.made_high * s.made_wide;
    const Vec<T>* taps = all_taps(weight, c, false, workspace);
    double* sums = workspace.take<double>(4 * c);
    T* part = workspace.take<T>(s.group() * s.image());
    T *first = stats, *second = stats + 2 * c;
    std::memset(sums, 0, 4 * c * sizeof(double));
    if (training) {
        backwards(rows, c, [&](int64_t begin, int64_t count) { add_moments(x + begin * c, count, c, sums, sums + c); });
        finish_moments(sums, sums + c, rows, c, momentum[0], eps[0], before.running_mean, before.running_var, first);
    } else {
        running_moments(before.running_mean, before.running_var, c, eps[0], first);
        running_moments(after.running_mean, after.running_var, c, eps[1], second);
    }
    const Norm<T> norm = {first, first + c, before.weight, before.bias};
    const Norm<T> next = {second, second + c, after.weight, after.bias};
    for (int64_t begin = 0; begin < s.batch; begin += s.group()) {
        const int64_t images = std::min(s.group(), s.batch - begin), pixels = images * s.made_high * s.made_wide;
        T* to = y + begin * s.made();
        normalize<T, true>(x + begin * s.image(), part, norm, images * s.high * s.wide, c);
        convolve_images<T>(part, taps, nullptr, to, s, images);
        if (training) add_moments(to, pixels, c, sums + 2 * c, sums + 3 * c);
        else normalize<T, true>(to, z + begin * s.made(), next, pixels, c);
    }
    if (!training) return;
    finish_moments(sums + 2 * c, sums + 3 * c, made, c, momentum[1], eps[1], after.running_mean, after.running_var, second);
    backwards(made, c, [&](int64_t begin, int64_t count) {
        normalize<T, true>(y + begin * c, z + begin * c, next, count, c);
    });
}

// of_norms: gradients of weight and bias, of the first and then of the second normalization.
template <typename T>
void block_backward(const T* x, const T* y, const T* g, const Given<T>& before, const T* weight, const Given<T>& after,
                    const T* stats, T* of_x, T* of_weight, T* of_norms, void* memory, const Shape& s, bool training) {
    Workspace workspace = {(char*)memory};
    const int64_t c = s.channels, rows = s.batch * s.high * s.wide, made = s.batch * s.made_high * s.made_wide;
    const Vec<T>* taps = all_taps(weight, c, s.stride == 1, workspace);
    double *sums = workspace.take<double>(4 * c), *totals = workspace.take<double>(9 * c);
    T* shares = workspace.take<T>(4 * c);
    T *part = workspace.take<T>(s.group() * s.image()), *inside = workspace.take<T>(s.group() * s.made());
    const Norm<T> norm = {stats, stats + c, before.weight, before.bias};
    const Norm<T> next = {stats + 2 * c, stats + 3 * c, after.weight, after.bias};
    std::memset(sums, 0, 4 * c * sizeof(double));
    std::memset(totals, 0, 9 * c * sizeof(double));
    backwards(made, c, [&](int64_t begin, int64_t count) {
        add_gradients<T, true>(y + begin * c, g + begin * c, next, count, c, sums + 2 * c, sums + 3 * c);
    });
    finish_gradients(sums + 2 * c, sums + 3 * c, next, made, c, training, of_norms + 2 * c, of_norms + 3 * c, shares + 2 * c);
    for (int64_t begin = 0; begin < s.batch; begin += s.group()) {
        const int64_t images = std::min(s.group(), s.batch - begin), pixels = images * s.high * s.wide;
        const T* from = x + begin * s.image();
        T* to = of_x + begin * s.image();
        apply_gradients<T, true>(y + begin * s.made(), g + begin * s.made(), inside, next, shares + 2 * c,
                                 images * s.made_high * s.made_wide, c);
        normalize<T, true>(from, part, norm, pixels, c);
        add_weight_gradient(part, inside, totals, s, images);
        input_gradient(inside, taps, to, s, images);
        add_gradients<T, true>(from, to, norm, pixels, c, sums, sums + c);
    }
    finish_weight_gradient(totals, of_weight, c);
    finish_gradients(sums, sums + c, norm, rows, c, training, of_norms, of_norms + c, shares);
    backwards(rows, c, [&](int64_t begin, int64_t count) {
        apply_gradients<T, true>(x + begin * c, of_x + begin * c, of_x + begin * c, norm, shares, count, c);
    });
}

}  // namespace

#define SIZES int64_t batch, int64_t channels, int64_t high, int64_t wide, int64_t made_high, int64_t made_wide, int64_t stride
#define SHAPE {batch, channels, high, wide, made_high, made_wide, stride}
#define FUNCTIONS(T, type)                                                                                             \
    EXPORT(depthwise_forward, type)(const T* x, const T* weight, const T* bias, T* y, void* memory, SIZES) {           \
        forward<T>(x, weight, bias, y, memory, SHAPE);                                                                 \
    }                                                                                                                  \
    EXPORT(depthwise_backward, type)                                                                                   \
    (const T* x, const T* g, const T* weight, T* of_x, T* of_weight, void* memory, SIZES) {                            \
        backward<T>(x, g, weight, of_x, of_weight, memory, SHAPE);                                                     \
    }                                                                                                                  \
    EXPORT(block_forward, type)                                                                                        \
    (const T* x, const T* weight1, const T* bias1, T* mean1, T* var1, const T* weight, const T* weight2, const T* bias2, \
     T* mean2, T* var2, T* y, T* z, T* stats, void* memory, SIZES, double momentum1, double eps1, double momentum2,    \
     double eps2, int64_t training) {                                                                                  \
        const double momentum[] = {momentum1, momentum2}, eps[] = {eps1, eps2};                                        \
        block_forward<T>(x, {weight1, bias1, mean1, var1}, weight, {weight2, bias2, mean2, var2}, y, z, stats, memory, \
                         SHAPE, momentum, eps, training);                                                              \
    }                                                                                                                  \
    EXPORT(block_backward, type)                                                                                       \
    (const T* x, const T* y, const T* g, const T* weight1, const T* bias1, const T* weight, const T* weight2,          \
     const T* bias2, const T* stats, T* of_x, T* of_weight, T* of_norms, void* memory, SIZES, int64_t training) {      \
        block_backward<T>(x, y, g, {weight1, bias1, nullptr, nullptr}, weight, {weight2, bias2, nullptr, nullptr},     \
                          stats, of_x, of_weight, of_norms, memory, SHAPE, training);                                  \
    }
FUNCTIONS(float, f32)
FUNCTIONS(double, f64)
