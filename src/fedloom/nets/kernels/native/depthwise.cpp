// Depthwise 3x3 convolutions by themselves: see depthwise.h.
#include "depthwise.h"

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
    }
FUNCTIONS(float, f32)
FUNCTIONS(double, f64)
