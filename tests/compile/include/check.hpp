// What checks of device headers on the host share: printing as JSON, and a main that calls the check. Included before
// any device header, because the stand-in for vendor.hpp leaves system headers unusable.
#pragma once
#include <cstddef>
#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

inline void print(long long x) { std::printf("%lld", x); }
inline void print(double x) {
    if (__builtin_isfinite(x)) {
        std::printf("%.17g", x);
    } else {
        std::printf("%s", __builtin_isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity");
    }
}

// A name and its values, one of a JSON object.
inline int entries = 0;
template <class T>
void entry(const char* name, const std::vector<T>& values) {
    using printed = std::conditional_t<std::is_floating_point_v<T>, double, long long>;
    std::printf("%s\"%s\": [", entries++ == 0 ? "" : ",\n", name);
    for (std::size_t i = 0; i < values.size(); i++) {
        if (i > 0) std::printf(",");
        print(printed(values[i]));
    }
    std::printf("]");
}

void check();

int main() {
    std::printf("{");
    check();
    std::printf("}\n");
}
