// <metal_math>: computed in float, rounded once to the operand's type. metal::fast and
// metal::precise are the same functions here: a CPU cannot reproduce the last bits of Apple's fast
// math.
#pragma once

namespace metal {
// As in Metal, functions of one argument return a float for a bfloat.
#define SIM_UNARY(NAME, EXPRESSION)                                                                                    \
  inline float NAME(float x) { return EXPRESSION; }                                                                    \
  inline half NAME(half x) { return half(NAME(float(x))); }                                                            \
  inline float NAME(bfloat x) { return NAME(float(x)); }                                                               \
  template <class T, int N> inline vec<T, N> NAME(vec<T, N> x) {                                                       \
    vec<T, N> r;                                                                                                       \
    for (int i = 0; i < N; i++)                                                                                        \
      r[i] = T(NAME(x[i]));                                                                                            \
    return r;                                                                                                          \
  }
#define SIM_BINARY(NAME, EXPRESSION)                                                                                   \
  inline float NAME(float x, float y) { return EXPRESSION; }                                                           \
  inline half NAME(half x, half y) { return half(NAME(float(x), float(y))); }                                          \
  inline bfloat NAME(bfloat x, bfloat y) { return bfloat(NAME(float(x), float(y))); }                                  \
  template <class T, int N> inline vec<T, N> NAME(vec<T, N> x, vec<T, N> y) {                                          \
    vec<T, N> r;                                                                                                       \
    for (int i = 0; i < N; i++)                                                                                        \
      r[i] = T(NAME(x[i], y[i]));                                                                                      \
    return r;                                                                                                          \
  }
#define SIM_MATH                                                                                                       \
  SIM_UNARY(exp, expf(x))                                                                                              \
  SIM_UNARY(exp2, exp2f(x))                                                                                            \
  SIM_UNARY(exp10, exp10f(x))                                                                                          \
  SIM_UNARY(log, logf(x))                                                                                              \
  SIM_UNARY(log2, log2f(x))                                                                                            \
  SIM_UNARY(log10, log10f(x))                                                                                          \
  SIM_UNARY(sin, sinf(x))                                                                                              \
  SIM_UNARY(cos, cosf(x))                                                                                              \
  SIM_UNARY(tan, tanf(x))                                                                                              \
  SIM_UNARY(asin, asinf(x))                                                                                            \
  SIM_UNARY(acos, acosf(x))                                                                                            \
  SIM_UNARY(atan, atanf(x))                                                                                            \
  SIM_UNARY(sinh, sinhf(x))                                                                                            \
  SIM_UNARY(cosh, coshf(x))                                                                                            \
  SIM_UNARY(tanh, tanhf(x))                                                                                            \
  SIM_UNARY(asinh, asinhf(x))                                                                                          \
  SIM_UNARY(acosh, acoshf(x))                                                                                          \
  SIM_UNARY(atanh, atanhf(x))                                                                                          \
  SIM_UNARY(sqrt, __builtin_sqrtf(x))                                                                                  \
  SIM_UNARY(rsqrt, 1.0f / __builtin_sqrtf(x))                                                                          \
  SIM_UNARY(fabs, __builtin_fabsf(x))                                                                                  \
  SIM_UNARY(ceil, __builtin_ceilf(x))                                                                                  \
  SIM_UNARY(floor, __builtin_floorf(x))                                                                                \
  SIM_UNARY(round, __builtin_roundf(x))                                                                                \
  SIM_UNARY(rint, __builtin_rintf(x))                                                                                  \
  SIM_UNARY(trunc, __builtin_truncf(x))                                                                                \
  SIM_UNARY(fract, x - __builtin_floorf(x))                                                                            \
  SIM_UNARY(saturate, __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f))                                                 \
  SIM_UNARY(sign, x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f)                                                                 \
  SIM_BINARY(pow, powf(x, y))                                                                                          \
  SIM_BINARY(powr, powf(x, y))                                                                                         \
  SIM_BINARY(fmod, fmodf(x, y))                                                                                        \
  SIM_BINARY(atan2, atan2f(x, y))                                                                                      \
  SIM_BINARY(divide, x / y)                                                                                            \
  SIM_BINARY(fmin, __builtin_fminf(x, y))                                                                              \
  SIM_BINARY(fmax, __builtin_fmaxf(x, y))                                                                              \
  SIM_BINARY(copysign, __builtin_copysignf(x, y))

SIM_MATH
namespace fast {
SIM_MATH
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
} // namespace fast
namespace precise {
SIM_MATH
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
} // namespace precise
#undef SIM_MATH
#undef SIM_BINARY
#undef SIM_UNARY

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline half fma(half a, half b, half c) { return half(__builtin_fma((double)a, (double)b, (double)c)); }
inline float fma(bfloat a, bfloat b, bfloat c) { return __builtin_fmaf(float(a), float(b), float(c)); }
template <class T, int N> inline vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
  vec<T, N> r;
  for (int i = 0; i < N; i++)
    r[i] = T(fma(a[i], b[i], c[i]));
  return r;
}
inline float sincos(float x, float &c) {
  c = cosf(x);
  return sinf(x);
}
inline float ldexp(float x, int e) { return ldexpf(x, e); }
inline bool isnan(float x) { return x != x; }
inline bool isnan(half x) { return x != x; }
inline bool isnan(bfloat x) { return float(x) != float(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isinf(half x) { return __builtin_isinf(float(x)); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }

template <class T, int N> inline T dot(vec<T, N> a, vec<T, N> b) {
  T r = a[0] * b[0];
  for (int i = 1; i < N; i++)
    r += a[i] * b[i];
  return r;
}
template <class T, int N> inline T length(vec<T, N> a) { return T(sqrt(dot(a, a))); }
} // namespace metal
