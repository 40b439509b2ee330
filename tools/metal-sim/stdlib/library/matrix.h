// Packed vectors and matrices.
#pragma once

namespace metal {
template <class T> struct packed_vec3 {
  T x, y, z;
  packed_vec3() = default;
  packed_vec3(T a, T b, T c) : x(a), y(b), z(c) {}
  operator vec<T, 3>() const { return vec<T, 3>{x, y, z}; }
  T operator[](int i) const { return i == 0 ? x : i == 1 ? y : z; }
#if SIM_CHECKED
  T operator[](int i) const constant { return i == 0 ? x : i == 1 ? y : z; }
#endif
};

// Column-major, as in Metal.
template <class T, int C, int R> struct matrix {
  vec<T, R> c[C];
  matrix() = default;
  matrix(T s) {
    for (int i = 0; i < C; i++)
      for (int j = 0; j < R; j++)
        c[i][j] = i == j ? s : T(0);
  }
  template <class U> matrix(const matrix<U, C, R> &o) {
    for (int i = 0; i < C; i++)
      for (int j = 0; j < R; j++)
        c[i][j] = T(o.c[i][j]);
  }
  vec<T, R> &operator[](int i) { return c[i]; }
  const vec<T, R> &operator[](int i) const { return c[i]; }
#if SIM_CHECKED
  matrix() threadgroup = default;
  matrix() device = default;
  threadgroup vec<T, R> &operator[](int i) threadgroup { return c[i]; }
  const threadgroup vec<T, R> &operator[](int i) const threadgroup { return c[i]; }
  device vec<T, R> &operator[](int i) device { return c[i]; }
  const device vec<T, R> &operator[](int i) const device { return c[i]; }
#endif
};

template <class T, int C, int R> inline vec<T, C> operator*(vec<T, R> v, matrix<T, C, R> m) {
  vec<T, C> r;
  for (int i = 0; i < C; i++) {
    T a = T(0);
    for (int j = 0; j < R; j++)
      a += v[j] * m.c[i][j];
    r[i] = a;
  }
  return r;
}
template <class T, int C, int R> inline vec<T, R> operator*(matrix<T, C, R> m, vec<T, C> v) {
  vec<T, R> r = vec<T, R>(0);
  for (int i = 0; i < C; i++)
    for (int j = 0; j < R; j++)
      r[j] += m.c[i][j] * v[i];
  return r;
}
} // namespace metal

using metal::packed_vec3;
typedef metal::packed_vec3<int> packed_int3;
typedef metal::packed_vec3<uint> packed_uint3;
typedef metal::packed_vec3<float> packed_float3;
typedef metal::packed_vec3<half> packed_half3;

#define SIM_MATRICES_OF(T)                                                                                             \
  typedef metal::matrix<T, 2, 2> T##2x2;                                                                               \
  typedef metal::matrix<T, 2, 4> T##2x4;                                                                               \
  typedef metal::matrix<T, 3, 3> T##3x3;                                                                               \
  typedef metal::matrix<T, 4, 4> T##4x4;
SIM_MATRICES_OF(float)
SIM_MATRICES_OF(half)
#undef SIM_MATRICES_OF
