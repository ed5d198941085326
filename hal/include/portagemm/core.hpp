// Vocabulary of all device code: integer names, coordinates, constexpr helpers. No std, vendor or system header.
#pragma once
#include <portagemm/vendor.hpp>  // macros PG_*, and pg::vendor: what each backend's folder defines

namespace pg {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
using f32 = float;

// A place in a matrix operand: row along M (of A, C) or N (of B), col along K (of A, B) or N (of C).
struct coord {
    i32 row, col;
    PG_HD constexpr bool operator==(const coord& o) const { return row == o.row && col == o.col; }
};

template <class T>
PG_HD constexpr T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
PG_HD constexpr T max(T a, T b) {
    return a < b ? b : a;
}
template <class T>
PG_HD constexpr T ceil_div(T a, T b) {
    return (a + b - 1) / b;
}
PG_HD constexpr bool is_power_of_two(i32 x) { return x > 0 && (x & (x - 1)) == 0; }

template <class A, class B>
inline constexpr bool same_type = false;
template <class A>
inline constexpr bool same_type<A, A> = true;

template <class T>
struct remove_reference {
    using type = T;
};
template <class T>
struct remove_reference<T&> {
    using type = T;
};

// For a static_assert that fires only when its template is used: an arch without the instruction names it.
template <class...>
inline constexpr bool unsupported = false;

// Raw aligned bytes: the unit of vector accesses, which every compiler here turns into one instruction. They stand for
// elements of any type, so compilers must not conclude from the type that two accesses never meet.
template <int Bytes>
struct __attribute__((may_alias, aligned(Bytes))) bytes {
    static_assert(is_power_of_two(Bytes) && Bytes <= 16);
    u8 byte[Bytes];
};
template <>
struct __attribute__((may_alias, aligned(4))) bytes<4> {
    u32 word[1];
};
template <>
struct __attribute__((may_alias, aligned(8))) bytes<8> {
    u32 word[2];
};
template <>
struct __attribute__((may_alias, aligned(16))) bytes<16> {
    u32 word[4];
};

}  // namespace pg
