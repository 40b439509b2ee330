// Barriers, SIMD-group and quad-group functions. In each, the lanes wait for each other once in the
// runtime. All are inlined into the kernel, because the runtime distinguishes barriers by the
// address of their call.
#pragma once
#define SIM_INLINE inline __attribute__((always_inline))
// For code that runs once for all lanes: inlining it at every call would only cost compile time.
#define SIM_OUTLINE __attribute__((noinline))

namespace metal {
enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8
};
inline constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
SIM_INLINE void threadgroup_barrier(mem_flags f) { __sim_barrier(uint(f)); }
SIM_INLINE void simdgroup_barrier(mem_flags f) { __sim_simd_barrier(uint(f)); }

// As in Metal, lanes cannot exchange bfloat, bool or 64-bit integers.
template <class T> struct __is_valid_simdgroup_type
    : bool_constant<is_arithmetic_v<typename vec_elements<T>::elem> && sizeof(typename vec_elements<T>::elem) <= 4 &&
                    !is_same_v<typename vec_elements<T>::elem, bfloat> && !is_same_v<T, bool>> {};
template <class T> using __enable_simd = enable_if_t<__is_valid_simdgroup_type<T>::value>;

// Every lane's value, and which of them are active.
template <class T> struct __lanes {
  __sim_exchange *shared;
  uint self;
  bool active(int lane) const { return (shared->mask >> lane) & 1; }
  T value(int lane) const { return ((const T *)shared->values)[lane]; }
};
template <class T> SIM_INLINE __lanes<T> __exchange(T x) {
  static_assert(sizeof(T) <= 32, "more than a lane can give");
  uint self = __sim_lane();
  return {__sim_simd_exchange(&x, sizeof(T)), self};
}

// Reduces in a tree, as hardware does: the sum of floats depends on the order. The first lane that
// arrives computes the result for all.
#define SIM_REDUCE(NAME, EXPRESSION)                                                                                   \
  template <class T> SIM_OUTLINE T __##NAME(__sim_exchange *shared) {                                                  \
    T *value = (T *)shared->values;                                                                                    \
    uint has = shared->mask;                                                                                           \
    for (int d = 16; d; d >>= 1) {                                                                                     \
      for (int i = 0; i < d; i++) {                                                                                    \
        T a = value[i], b = value[i + d];                                                                              \
        if ((has >> i & 1) && (has >> (i + d) & 1))                                                                    \
          value[i] = T(EXPRESSION);                                                                                    \
        else if (has >> (i + d) & 1)                                                                                   \
          value[i] = b;                                                                                                \
      }                                                                                                                \
      has |= has >> d;                                                                                                 \
    }                                                                                                                  \
    return value[0];                                                                                                   \
  }                                                                                                                    \
  template <class T, class = __enable_simd<T>> SIM_INLINE T NAME(T x) {                                                \
    __sim_exchange *shared = __exchange(x).shared;                                                                     \
    if (!shared->has_result) {                                                                                         \
      *(T *)shared->result = __##NAME<T>(shared);                                                                      \
      shared->has_result = 1;                                                                                          \
    }                                                                                                                  \
    return *(const T *)shared->result;                                                                                 \
  }
SIM_REDUCE(simd_sum, a + b)
SIM_REDUCE(simd_product, a *b)
SIM_REDUCE(simd_min, min(a, b))
SIM_REDUCE(simd_max, max(a, b))
SIM_REDUCE(simd_and, a &b)
SIM_REDUCE(simd_or, a | b)
SIM_REDUCE(simd_xor, a ^ b)
#undef SIM_REDUCE

// A lane that reads an inactive or out-of-range lane gets its own value back (undefined in Metal).
#define SIM_SHUFFLE(NAME, SOURCE)                                                                                      \
  template <class T, class = __enable_simd<T>> SIM_INLINE T NAME(T x, ushort argument) {                               \
    __lanes<T> lanes = __exchange(x);                                                                                  \
    int self = int(lanes.self), n = int(argument), source = SOURCE;                                                    \
    return source >= 0 && source < 32 && lanes.active(source) ? lanes.value(source) : x;                               \
  }
SIM_SHUFFLE(simd_shuffle, n)
SIM_SHUFFLE(simd_broadcast, n)
SIM_SHUFFLE(simd_shuffle_down, self + n)
SIM_SHUFFLE(simd_shuffle_up, self - n)
SIM_SHUFFLE(simd_shuffle_xor, self ^ n)
SIM_SHUFFLE(simd_shuffle_rotate_down, (self + n) & 31)
SIM_SHUFFLE(simd_shuffle_rotate_up, (self - n) & 31)
SIM_SHUFFLE(quad_shuffle, (self & ~3) | n)
SIM_SHUFFLE(quad_broadcast, (self & ~3) | n)
SIM_SHUFFLE(quad_shuffle_xor, self ^ n)
SIM_SHUFFLE(quad_shuffle_down, (self & 3) + n < 4 ? self + n : -1)
#undef SIM_SHUFFLE

#define SIM_QUAD_REDUCE(NAME, EXPRESSION)                                                                              \
  template <class T, class = __enable_simd<T>> SIM_INLINE T NAME(T x) {                                                \
    __lanes<T> lanes = __exchange(x);                                                                                  \
    uint first = lanes.self & ~3u;                                                                                     \
    T a = lanes.value(first);                                                                                          \
    for (uint i = 1; i < 4; i++) {                                                                                     \
      T b = lanes.value(first + i);                                                                                    \
      a = T(EXPRESSION);                                                                                               \
    }                                                                                                                  \
    return a;                                                                                                          \
  }
SIM_QUAD_REDUCE(quad_sum, a + b)
SIM_QUAD_REDUCE(quad_max, max(a, b))
SIM_QUAD_REDUCE(quad_min, min(a, b))
#undef SIM_QUAD_REDUCE

template <class T, class = __enable_simd<T>> SIM_INLINE T simd_broadcast_first(T x) {
  __lanes<T> lanes = __exchange(x);
  return lanes.value(__builtin_ctz(lanes.shared->mask));
}
template <class T> SIM_INLINE T __sum_below(__lanes<T> lanes, uint end) {
  T sum = T(0);
  for (uint i = 0; i < end; i++)
    if (lanes.active(i))
      sum += lanes.value(i);
  return sum;
}
template <class T, class = __enable_simd<T>> SIM_INLINE T simd_prefix_inclusive_sum(T x) {
  __lanes<T> lanes = __exchange(x);
  return __sum_below(lanes, lanes.self + 1);
}
template <class T, class = __enable_simd<T>> SIM_INLINE T simd_prefix_exclusive_sum(T x) {
  __lanes<T> lanes = __exchange(x);
  return __sum_below(lanes, lanes.self);
}
SIM_INLINE bool simd_any(bool b) {
  __lanes<uint> lanes = __exchange(uint(b));
  for (int i = 0; i < 32; i++)
    if (lanes.active(i) && lanes.value(i))
      return true;
  return false;
}
SIM_INLINE bool simd_all(bool b) {
  __lanes<uint> lanes = __exchange(uint(b));
  for (int i = 0; i < 32; i++)
    if (lanes.active(i) && !lanes.value(i))
      return false;
  return true;
}
SIM_INLINE bool simd_is_first() {
  __lanes<uint> lanes = __exchange(1u);
  return lanes.self == uint(__builtin_ctz(lanes.shared->mask));
}
} // namespace metal
