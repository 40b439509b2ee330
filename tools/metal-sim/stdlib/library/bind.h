// Used by the code that the translator generates.
#pragma once

// Memory of one threadgroup variable. The tag type gives each declaration its own key.
template <class T, class Tag> inline threadgroup T &__sim_threadgroup_variable(const constant char *name) {
  static __global char key = 0;
  return *(threadgroup T *)__sim_threadgroup_alloc((const void *)&key, sizeof(T), (ulong)name);
}

// Type of the I-th parameter of the function type F.
template <class F, int I> struct __sim_nth;
template <class R, class P0, class... P> struct __sim_nth<R(P0, P...), 0> {
  using type = P0;
};
template <class R, class P0, class... P, int I> struct __sim_nth<R(P0, P...), I> : __sim_nth<R(P...), I - 1> {};
template <class F, int I> using __sim_parameter = typename __sim_nth<F, I>::type;

// Converts a bound address to the parameter's type, a pointer or a reference.
template <class P> struct __sim_bind {
  static P at(ulong address) { return (P)address; }
};
#if SIM_CHECKED
#define SIM_BIND_REFERENCE(SPACE)                                                                                      \
  template <class T> struct __sim_bind<SPACE T &> {                                                                    \
    static SPACE T &at(ulong address) { return *(SPACE T *)address; }                                                  \
  };
SIM_BIND_REFERENCE(device)
SIM_BIND_REFERENCE(const device)
SIM_BIND_REFERENCE(threadgroup)
SIM_BIND_REFERENCE(constant)
SIM_BIND_REFERENCE(const constant)
#undef SIM_BIND_REFERENCE
#else
template <class T> struct __sim_bind<T &> {
  static T &at(ulong address) { return *(T *)address; }
};
#endif

// Converts a position to the parameter's type, a scalar or a vector of up to three elements.
template <class P> inline P __sim_vector(uint3 v) {
  if constexpr (metal::vec_elements<P>::value == 0) {
    return P(v[0]);
  } else {
    P r;
    for (uint i = 0; i < metal::vec_elements<P>::value; i++)
      r[i] = typename metal::vec_elements<P>::elem(v[i]);
    return r;
  }
}
