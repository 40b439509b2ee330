// <metal_common>, <metal_integer>, <metal_relational>
#pragma once

namespace metal {
#define SIM_COMMON(T, MIN, MAX)                                                                                        \
  inline T min(T a, T b) { return MIN; }                                                                               \
  inline T max(T a, T b) { return MAX; }                                                                               \
  inline T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); }                                                      \
  inline T select(T a, T b, bool c) { return c ? b : a; }
#define SIM_COMMON_ORDERED(T) SIM_COMMON(T, b < a ? b : a, a < b ? b : a)
SIM_COMMON_ORDERED(char)
SIM_COMMON_ORDERED(uchar)
SIM_COMMON_ORDERED(short)
SIM_COMMON_ORDERED(ushort)
SIM_COMMON_ORDERED(int)
SIM_COMMON_ORDERED(uint)
SIM_COMMON_ORDERED(long)
SIM_COMMON_ORDERED(ulong)
SIM_COMMON_ORDERED(bfloat)
SIM_COMMON(float, __builtin_fminf(a, b), __builtin_fmaxf(a, b))
SIM_COMMON(half, half(__builtin_fminf(a, b)), half(__builtin_fmaxf(a, b)))
#undef SIM_COMMON_ORDERED
#undef SIM_COMMON
inline float mix(float a, float b, float t) { return a + (b - a) * t; }
inline half mix(half a, half b, half t) { return a + (b - a) * t; }

template <class T, int N> inline vec<T, N> min(vec<T, N> a, vec<T, N> b) {
  vec<T, N> r;
  for (int i = 0; i < N; i++)
    r[i] = min(a[i], b[i]);
  return r;
}
template <class T, int N> inline vec<T, N> max(vec<T, N> a, vec<T, N> b) {
  vec<T, N> r;
  for (int i = 0; i < N; i++)
    r[i] = max(a[i], b[i]);
  return r;
}

inline float abs(float x) { return __builtin_fabsf(x); }
inline half abs(half x) { return half(__builtin_fabsf(float(x))); }
inline float abs(bfloat x) { return __builtin_fabsf(float(x)); }
inline int abs(int x) { return x < 0 ? -x : x; }
inline short abs(short x) { return short(x < 0 ? -x : x); }
inline long abs(long x) { return x < 0 ? -x : x; }
inline char abs(char x) { return char(x < 0 ? -x : x); }
template <class T, int N> inline vec<T, N> abs(vec<T, N> a) {
  vec<T, N> r;
  for (int i = 0; i < N; i++)
    r[i] = abs(a[i]);
  return r;
}

template <class T> inline T clz(T x) {
  constexpr int bits = int(sizeof(T)) * 8;
  return x == 0 ? T(bits) : T(__builtin_clzl(ulong(make_unsigned_t<T>(x))) - (64 - bits));
}
template <class T> inline T ctz(T x) {
  return x == 0 ? T(sizeof(T) * 8) : T(__builtin_ctzl(ulong(make_unsigned_t<T>(x))));
}
template <class T> inline T popcount(T x) { return T(__builtin_popcountl(ulong(make_unsigned_t<T>(x)))); }
inline uint mulhi(uint a, uint b) { return uint((ulong(a) * b) >> 32); }
inline int mulhi(int a, int b) { return int((long(a) * b) >> 32); }
inline uint rotate(uint x, uint n) {
  n &= 31;
  return n ? (x << n) | (x >> (32 - n)) : x;
}
inline uint extract_bits(uint x, uint offset, uint bits) {
  return bits == 0 ? 0u : (x >> offset) & (bits >= 32 ? ~0u : ((1u << bits) - 1));
}

template <class T, int N> inline bool all(vec<T, N> a) {
  for (int i = 0; i < N; i++)
    if (!a[i])
      return false;
  return true;
}
template <class T, int N> inline bool any(vec<T, N> a) {
  for (int i = 0; i < N; i++)
    if (a[i])
      return true;
  return false;
}
} // namespace metal
