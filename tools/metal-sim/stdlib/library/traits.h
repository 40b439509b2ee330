// <metal_type_traits>
#pragma once

namespace metal {
template <class T, T V> struct integral_constant {
  static constexpr constant T value = V;
  using type = integral_constant;
  using value_type = T;
  constexpr operator T() const { return V; }
};
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;
template <bool B> using bool_constant = integral_constant<bool, B>;

template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> {
  using type = T;
};
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class F> struct conditional {
  using type = T;
};
template <class T, class F> struct conditional<false, T, F> {
  using type = F;
};
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;

template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> constexpr constant bool is_same_v = is_same<A, B>::value;

template <class T> struct remove_reference {
  using type = T;
};
template <class T> struct remove_reference<T &> {
  using type = T;
};
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_const {
  using type = T;
};
template <class T> struct remove_const<const T> {
  using type = T;
};
template <class T> struct remove_volatile {
  using type = T;
};
template <class T> struct remove_volatile<volatile T> {
  using type = T;
};
template <class T> using remove_cv_t = typename remove_volatile<typename remove_const<T>::type>::type;
template <class T> struct remove_cv {
  using type = remove_cv_t<T>;
};

template <class A, class B> constexpr constant bool is_convertible_v = __is_convertible(A, B);
template <class A, class B> struct is_convertible : bool_constant<__is_convertible(A, B)> {};
template <class T> constexpr constant bool is_integral_v = __is_integral(T);
template <class T> struct is_integral : bool_constant<__is_integral(T)> {};
template <class T> constexpr constant bool is_floating_point_v =
    is_same_v<T, float> || is_same_v<T, half> || is_same_v<T, bfloat>;
template <class T> struct is_floating_point : bool_constant<is_floating_point_v<T>> {};
template <class T> constexpr constant bool is_arithmetic_v = is_integral_v<T> || is_floating_point_v<T>;
template <class T> struct is_arithmetic : bool_constant<is_arithmetic_v<T>> {};
template <class T> constexpr constant bool is_unsigned_v = is_integral_v<T> && (T(-1) > T(0));
template <class T> struct is_unsigned : bool_constant<is_unsigned_v<T>> {};
template <class T> constexpr constant bool is_signed_v = is_arithmetic_v<T> && (T(-1) < T(0));
template <class T> struct is_signed : bool_constant<is_signed_v<T>> {};

template <class T> struct make_unsigned {
  using type = conditional_t<sizeof(T) == 1, uchar,
                             conditional_t<sizeof(T) == 2, ushort, conditional_t<sizeof(T) == 4, uint, ulong>>>;
};
template <class T> using make_unsigned_t = typename make_unsigned<T>::type;

// 0 for a scalar.
template <class T> struct vec_elements {
  static constexpr constant uint value = 0;
  using elem = T;
};
template <class T, int N> struct vec_elements<T __attribute__((ext_vector_type(N)))> {
  static constexpr constant uint value = N;
  using elem = T;
};

template <class... B> struct _disjunction : false_type {};
template <class A, class... B> struct _disjunction<A, B...> : bool_constant<A::value || _disjunction<B...>::value> {};
} // namespace metal
