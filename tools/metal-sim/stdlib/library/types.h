// Scalars and vectors.
#pragma once

#if !SIM_CHECKED
typedef _Float16 half;
constexpr half operator""h(long double x) { return (half)x; }
constexpr half operator""h(unsigned long long x) { return (half)x; }
#endif

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef ulong uintptr_t;
typedef __bf16 bfloat;
typedef half float16_t;

#define SIM_VECTORS_OF(T, NAME)                                                                                        \
  typedef T NAME##2 __attribute__((ext_vector_type(2)));                                                               \
  typedef T NAME##3 __attribute__((ext_vector_type(3)));                                                               \
  typedef T NAME##4 __attribute__((ext_vector_type(4)));                                                               \
  namespace metal {                                                                                                    \
  using ::NAME##2;                                                                                                     \
  using ::NAME##3;                                                                                                     \
  using ::NAME##4;                                                                                                     \
  }
SIM_VECTORS_OF(char, char)
SIM_VECTORS_OF(uchar, uchar)
SIM_VECTORS_OF(short, short)
SIM_VECTORS_OF(ushort, ushort)
SIM_VECTORS_OF(int, int)
SIM_VECTORS_OF(uint, uint)
SIM_VECTORS_OF(long, long)
SIM_VECTORS_OF(ulong, ulong)
SIM_VECTORS_OF(half, half)
SIM_VECTORS_OF(float, float)
SIM_VECTORS_OF(bfloat, bfloat)
#if SIM_CHECKED
SIM_VECTORS_OF(uchar, bool) // clang has no vectors of bool in OpenCL mode
#else
SIM_VECTORS_OF(bool, bool)
#endif
#undef SIM_VECTORS_OF

namespace metal {
using ::uchar;
using ::uint;
using ::ulong;
using ::ushort;
template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));
} // namespace metal
