// Kernels with their inputs and outputs exchanged.
#pragma once

#include "common.h"

// weight: (out, taps, in); turned: (in, taps, out)
template <typename T> void turn(const T* weight, T* turned, int64_t out, int64_t taps, int64_t in) {
    constexpr int64_t SIDE = 16;
    for (int64_t tap = 0; tap < taps; ++tap)
        for (int64_t o = 0; o < out; o += SIDE)
            for (int64_t i = 0; i < in; ++i)
                for (int64_t k = o; k < std::min(o + SIDE, out); ++k)
                    turned[(taps * i + tap) * out + k] = weight[(taps * k + tap) * in + i];
}
