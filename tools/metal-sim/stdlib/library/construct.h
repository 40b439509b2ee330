// Construction and casts. The translator writes float4(...) as __make<float4>(...),
// static_cast<T>(x) as __convert<T>(x), and (float4)x as __cast<float4>() ->* x.
#pragma once

namespace metal {
template <class V, class... A> inline V __make(A... a);

template <class T, class A> constexpr inline T __convert(A a) {
  // clang has no direct conversion between the two 16-bit floats
  constexpr bool between_halves =
      (is_same_v<T, half> && is_same_v<A, bfloat>) || (is_same_v<T, bfloat> && is_same_v<A, half>);
  if constexpr (between_halves)
    return static_cast<T>(static_cast<float>(a));
  else if constexpr (vec_elements<T>::value != 0)
    return __make<T, A>(a);
  else
    return static_cast<T>(a);
}

template <class V, class A> inline void __append(V &v, int &i, A a) {
  using E = typename vec_elements<V>::elem;
  if constexpr (vec_elements<A>::value == 0)
    v[i++] = __convert<E>(a);
  else
    for (uint k = 0; k < vec_elements<A>::value; k++)
      v[i++] = __convert<E>(a[k]);
}

template <class V, class... A> inline V __make(A... a) {
  if constexpr (vec_elements<V>::value == 0) {
    return static_cast<V>((a, ...));
  } else {
    static_assert(sizeof...(A) != 1 ||
                      ((vec_elements<A>::value == 0 || vec_elements<A>::value == vec_elements<V>::value) && ...),
                  "vector conversion changes the width");
    V v = V(0);
    int i = 0;
    (__append<V, A>(v, i, a), ...);
    if constexpr (sizeof...(A) == 1)
      if (i == 1)
        for (uint k = 1; k < vec_elements<V>::value; k++)
          v[k] = v[0];
    return v;
  }
}
template <class V> inline V __make() { return V(0); }

template <class V> struct __cast {};
template <class V, class A> inline V operator->*(__cast<V>, A a) { return __make<V, A>(a); }

template <class T, class F> inline T as_type(F x) { return __builtin_bit_cast(T, x); }
} // namespace metal
