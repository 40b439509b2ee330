// <metal_atomic>. One OS thread runs a dispatch and switches fibers only at barriers and SIMD
// operations, so plain memory operations are atomic.
#pragma once

namespace metal {
enum memory_order { memory_order_relaxed };
template <class T> struct atomic {
  T v;
};

#define SIM_ATOMIC_FETCH(SPACE, NAME, EXPRESSION)                                                                      \
  template <class T, class U> inline T NAME(volatile SPACE atomic<T> *p, U y, memory_order) {                          \
    T a = p->v;                                                                                                        \
    T b = T(y);                                                                                                        \
    p->v = T(EXPRESSION);                                                                                              \
    return a;                                                                                                          \
  }
#define SIM_ATOMICS(SPACE)                                                                                             \
  template <class T> inline T atomic_load_explicit(const volatile SPACE atomic<T> *p, memory_order) { return p->v; }   \
  template <class T, class U> inline void atomic_store_explicit(volatile SPACE atomic<T> *p, U x, memory_order) {      \
    p->v = T(x);                                                                                                       \
  }                                                                                                                    \
  template <class T, class U> inline bool atomic_compare_exchange_weak_explicit(                                       \
      volatile SPACE atomic<T> *p, T *expected, U desired, memory_order, memory_order) {                               \
    if (p->v == *expected) {                                                                                           \
      p->v = T(desired);                                                                                               \
      return true;                                                                                                     \
    }                                                                                                                  \
    *expected = p->v;                                                                                                  \
    return false;                                                                                                      \
  }                                                                                                                    \
  SIM_ATOMIC_FETCH(SPACE, atomic_exchange_explicit, b)                                                                 \
  SIM_ATOMIC_FETCH(SPACE, atomic_fetch_add_explicit, a + b)                                                            \
  SIM_ATOMIC_FETCH(SPACE, atomic_fetch_sub_explicit, a - b)                                                            \
  SIM_ATOMIC_FETCH(SPACE, atomic_fetch_max_explicit, max(a, b))                                                        \
  SIM_ATOMIC_FETCH(SPACE, atomic_fetch_min_explicit, min(a, b))                                                        \
  SIM_ATOMIC_FETCH(SPACE, atomic_fetch_and_explicit, a &b)                                                             \
  SIM_ATOMIC_FETCH(SPACE, atomic_fetch_or_explicit, a | b)                                                             \
  SIM_ATOMIC_FETCH(SPACE, atomic_fetch_xor_explicit, a ^ b)
SIM_ATOMICS(device)
#if SIM_CHECKED
SIM_ATOMICS(threadgroup)
#endif
#undef SIM_ATOMICS
#undef SIM_ATOMIC_FETCH
} // namespace metal

typedef metal::atomic<uint> atomic_uint;
typedef metal::atomic<int> atomic_int;
typedef metal::atomic<float> atomic_float;
typedef metal::atomic<bool> atomic_bool;
