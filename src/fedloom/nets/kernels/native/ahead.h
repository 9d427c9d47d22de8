// Memory that is needed soon: fetched into the second cache while a core computes, some lines at a time.
#pragma once

#include "common.h"

class Ahead {
    static constexpr int64_t LINE = 64;
    struct Part {
        const char *at, *end;
    } parts[4];
    int64_t count = 0, lines = 0, calls;

  public:
    // All is fetched by so many calls, what was added last at first.
    explicit Ahead(int64_t calls) : calls(calls) {}
    void add(const void* first, int64_t bytes) {
        if (bytes <= 0) return;
        parts[count++] = {(const char*)first, (const char*)first + bytes};
        lines += (bytes / LINE + calls - 1) / calls;
    }
    INLINE void fetch() {
        if (count == 0) return;
        Part& part = parts[count - 1];
        const char* end = std::min(part.end, part.at + lines * LINE);
        for (; part.at < end; part.at += LINE) __builtin_prefetch(part.at, 0, 2);
        if (part.at == part.end) --count;
    }
};
