// <metal_limits>
#pragma once

namespace metal {
// Candle's sources specialise these two by name.
template <class T> struct _numeric_limits_impl {
  static constexpr constant bool is_int = is_integral_v<T>;
  static constexpr T max() { return is_unsigned_v<T> ? T(~T(0)) : T(((1ul << (sizeof(T) * 8 - 2)) - 1) * 2 + 1); }
  static constexpr T min() { return is_unsigned_v<T> ? T(0) : T(-max() - 1); }
  static constexpr T lowest() { return min(); }
  static constexpr constant int digits = sizeof(T) * 8 - (is_unsigned_v<T> ? 0 : 1);
};
template <> struct _numeric_limits_impl<bool> {
  static constexpr bool max() { return true; }
  static constexpr bool min() { return false; }
  static constexpr bool lowest() { return false; }
};
#define SIM_LIMITS(T, MAX, MIN, EPSILON, DIGITS)                                                                       \
  template <> struct _numeric_limits_impl<T> {                                                                         \
    static constexpr T max() { return T(MAX); }                                                                        \
    static constexpr T min() { return T(MIN); }                                                                        \
    static constexpr T lowest() { return T(-(MAX)); }                                                                  \
    static constexpr T infinity() { return T(__builtin_inff()); }                                                      \
    static constexpr T quiet_NaN() { return T(__builtin_nanf("")); }                                                   \
    static constexpr T epsilon() { return T(EPSILON); }                                                                \
    static constexpr constant int digits = DIGITS;                                                                     \
  };
SIM_LIMITS(float, 3.40282346638528859811704183484516925e+38f, 1.17549435e-38f, 1.1920928955078125e-07f, 24)
SIM_LIMITS(half, 65504.0f, 6.103515625e-05f, 9.765625e-04f, 11)
SIM_LIMITS(bfloat, 3.38953138925153547590470800371487867e+38f, 1.17549435e-38f, 7.8125e-03f, 8)
#undef SIM_LIMITS

template <class T> struct numeric_limits : _numeric_limits_impl<T> {};
template <class T> struct _fp_encoding_traits;
template <> struct _fp_encoding_traits<float> {
  static constexpr constant uint sign_mask = 0x80000000u, inf_mask = 0x7f800000u;
};
} // namespace metal
