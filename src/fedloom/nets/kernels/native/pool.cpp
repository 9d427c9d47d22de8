// Maximum of windows of 2x2 pixels and ReLU, channels last, as one pass forward and one backward.
#include "common.h"

namespace {

constexpr int DEAD = 4;  // in place of 0 to 3, the largest number's place in its window, where the ReLU made a zero

template <typename T, typename Work>
INLINE void each_window(int64_t images, int64_t high, int64_t wide, int64_t channels, Work work) {
    int64_t window = 0;
    for (int64_t image = 0; image < images; ++image)
        for (int64_t i = 0; i < high / 2; ++i)
            for (int64_t j = 0; j < wide / 2; ++j, ++window) {
                const int64_t first = ((image * high + 2 * i) * wide + 2 * j) * channels;
                int64_t c = 0;
                for (; channels - c >= LANES<T>; c += LANES<T>)
                    work(first + c, window * channels + c, Number<1>{}, LANES<T>);
                if (c < channels) work(first + c, window * channels + c, Number<0>{}, channels - c);
            }
}

template <typename T>
void forward(const T* x, T* y, T* which, int64_t images, int64_t high, int64_t wide, int64_t channels) {
    each_window<T>(images, high, wide, channels, [&](int64_t from, int64_t to, auto whole, int64_t count) {
        constexpr bool W = decltype(whole)::value;
        Vec<T> most = get<W>(x + from, count), place = {};
        for (int k = 1; k < 4; ++k) {
            const Vec<T> value = get<W>(x + from + (k / 2 * wide + k % 2) * channels, count);
            const auto more = (value > most) | (value != value);  // keeps what is not a number
            most = more ? value : most;
            place = more ? splat<T>(k) : place;
        }
        put<W>(y + to, most <= 0 ? Vec<T>{} : most, count);
        if (which) put<W>(which + to, most <= 0 ? splat<T>(DEAD) : place, count);
    });
}

template <typename T>
void backward(const T* g, const T* which, T* of_x, int64_t images, int64_t high, int64_t wide, int64_t channels) {
    if (high % 2 || wide % 2) std::memset(of_x, 0, images * high * wide * channels * sizeof(T));
    each_window<T>(images, high, wide, channels, [&](int64_t to, int64_t from, auto whole, int64_t count) {
        constexpr bool W = decltype(whole)::value;
        const Vec<T> value = get<W>(g + from, count), place = get<W>(which + from, count);
        for (int k = 0; k < 4; ++k)
            put<W>(of_x + to + (k / 2 * wide + k % 2) * channels, place == splat<T>(k) ? value : Vec<T>{}, count);
    });
}

}  // namespace

#define FUNCTIONS(T, type)                                                                                             \
    EXPORT(pool_forward, type)                                                                                         \
    (const T* x, T* y, T* which, int64_t images, int64_t high, int64_t wide, int64_t channels) {                       \
        forward(x, y, which, images, high, wide, channels);                                                            \
    }                                                                                                                  \
    EXPORT(pool_backward, type)                                                                                        \
    (const T* g, const T* which, T* of_x, int64_t images, int64_t high, int64_t wide, int64_t channels) {              \
        backward(g, which, of_x, images, high, wide, channels);                                                        \
    }
FUNCTIONS(float, f32)
FUNCTIONS(double, f64)
