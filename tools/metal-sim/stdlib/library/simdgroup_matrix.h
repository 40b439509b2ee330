// <metal_simdgroup_matrix>: 8x8 matrices distributed over a SIMD-group. Each lane holds two
// adjacent elements of a row, in the layout that MLX's kernels rely on.
#pragma once

namespace metal {
struct __element {
  uint row, column; // and column + 1
};
inline __element __element_of(uint lane) {
  uint quad = lane / 4;
  return {(quad & 4) + (lane / 2) % 4, (quad & 2) * 2 + (lane % 2) * 2};
}

template <class T, int C = 8, int R = 8> struct simdgroup_matrix {
  vec<T, 2> e;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    __element at = __element_of(__sim_lane());
    e[0] = at.row == at.column ? diagonal : T(0);
    e[1] = at.row == at.column + 1 ? diagonal : T(0);
  }
  vec<T, 2> &thread_elements() { return e; }
  const vec<T, 2> &thread_elements() const { return e; }
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <class T, int C, int R = C> inline simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v) {
  simdgroup_matrix<T, C, R> m;
  m.e[0] = v;
  m.e[1] = v;
  return m;
}

#define SIM_LOAD_STORE(SPACE)                                                                                          \
  template <class T> SIM_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8> &m, const SPACE T *p, ulong stride = 8,  \
                                                    ulong2 origin = 0, bool transpose = false) {                       \
    __element at = __element_of(__sim_lane());                                                                         \
    p += origin[1] * stride + origin[0];                                                                               \
    for (uint k = 0; k < 2; k++)                                                                                       \
      m.e[k] = transpose ? p[(at.column + k) * stride + at.row] : p[at.row * stride + at.column + k];                  \
    __sim_simd_barrier(0);                                                                                             \
  }                                                                                                                    \
  template <class T> SIM_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> m, SPACE T *p, ulong stride = 8,        \
                                                     ulong2 origin = 0, bool transpose = false) {                      \
    __element at = __element_of(__sim_lane());                                                                         \
    p += origin[1] * stride + origin[0];                                                                               \
    for (uint k = 0; k < 2; k++) {                                                                                     \
      if (transpose)                                                                                                   \
        p[(at.column + k) * stride + at.row] = m.e[k];                                                                 \
      else                                                                                                             \
        p[at.row * stride + at.column + k] = m.e[k];                                                                   \
    }                                                                                                                  \
    __sim_simd_barrier(0);                                                                                             \
  }
SIM_LOAD_STORE(device)
#if SIM_CHECKED
SIM_LOAD_STORE(threadgroup)
#endif
#undef SIM_LOAD_STORE

// A lane's part of a product: its elements of the three matrices, as floats.
struct __operands {
  float a[2], b[2], c[2];
};
typedef float __row __attribute__((ext_vector_type(8)));
// a * b + c. The first lane that arrives computes it for all.
static SIM_OUTLINE void __multiply_all(__sim_exchange *shared) {
  const __operands *all = (const __operands *)shared->values;
  float a[8][8];
  __row b[8], *d = (__row *)shared->result;
  for (uint lane = 0; lane < 32; lane++) {
    __element at = __element_of(lane);
    for (uint k = 0; k < 2; k++) {
      a[at.row][at.column + k] = all[lane].a[k];
      b[at.row][at.column + k] = all[lane].b[k];
      d[at.row][at.column + k] = all[lane].c[k];
    }
  }
  for (uint row = 0; row < 8; row++) {
    __row sum = d[row];
    for (uint k = 0; k < 8; k++)
      sum += a[row][k] * b[k];
    d[row] = sum;
  }
}
template <class D, class A, class B>
SIM_INLINE void __multiply(simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<A, 8, 8> &a,
                           const simdgroup_matrix<B, 8, 8> &b, float c0, float c1) {
  __operands mine = {{float(a.e[0]), float(a.e[1])}, {float(b.e[0]), float(b.e[1])}, {c0, c1}};
  __element at = __element_of(__sim_lane());
  __sim_exchange *shared = __sim_simd_exchange(&mine, sizeof(mine));
  if (!shared->has_result) {
    __multiply_all(shared);
    shared->has_result = 1;
  }
  const float *row = (const float *)shared->result + at.row * 8;
  d.e[0] = D(row[at.column]);
  d.e[1] = D(row[at.column + 1]);
}
template <class D, class A, class B, class E>
SIM_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<A, 8, 8> &a,
                                              const simdgroup_matrix<B, 8, 8> &b, const simdgroup_matrix<E, 8, 8> &c) {
  __multiply(d, a, b, float(c.e[0]), float(c.e[1]));
}
template <class D, class A, class B> SIM_INLINE void simdgroup_multiply(simdgroup_matrix<D, 8, 8> &d,
                                                                        const simdgroup_matrix<A, 8, 8> &a,
                                                                        const simdgroup_matrix<B, 8, 8> &b) {
  __multiply(d, a, b, 0.0f, 0.0f);
}
} // namespace metal
