// SPDX-License-Identifier: Apache-2.0
// Two vectors as one machine V of generic/element_math.hpp. While one vector waits in a long chain
// of operations, the CPU works on the other. The functions have internal linkage on purpose; see
// generic/philox.hpp.
#pragma once

namespace fl {

template <class V>
struct VectorPair {
  template <class T>
  struct Pair {
    T a;
    T b;
    friend Pair operator+(Pair x, Pair y) { return {x.a + y.a, x.b + y.b}; }
    friend Pair operator-(Pair x, Pair y) { return {x.a - y.a, x.b - y.b}; }
    friend Pair operator*(Pair x, Pair y) { return {x.a * y.a, x.b * y.b}; }
    friend Pair operator&(Pair x, Pair y) { return {x.a & y.a, x.b & y.b}; }
    friend Pair operator|(Pair x, Pair y) { return {x.a | y.a, x.b | y.b}; }
    friend Pair operator^(Pair x, Pair y) { return {x.a ^ y.a, x.b ^ y.b}; }
    friend Pair operator+(Pair x, int y) { return {x.a + y, x.b + y}; }
    friend Pair operator-(Pair x, int y) { return {x.a - y, x.b - y}; }
    friend Pair operator&(Pair x, int y) { return {x.a & y, x.b & y}; }
    Pair operator-() const { return {-a, -b}; }
    Pair operator~() const { return {~a, ~b}; }
  };
  using Float = Pair<typename V::Float>;
  using Int = Pair<typename V::Int>;

  static Float constant(float value) { return {V::constant(value), V::constant(value)}; }
  static Int bits(Float x) { return {V::bits(x.a), V::bits(x.b)}; }
  static Float from_bits(Int x) { return {V::from_bits(x.a), V::from_bits(x.b)}; }
  static Float to_float(Int x) { return {V::to_float(x.a), V::to_float(x.b)}; }
  static Float root(Float x) { return {V::root(x.a), V::root(x.b)}; }
  static Int shift_right(Int x, int by) {
    return {V::shift_right(x.a, by), V::shift_right(x.b, by)};
  }
  static Int shift_right_signed(Int x, int by) {
    return {V::shift_right_signed(x.a, by), V::shift_right_signed(x.b, by)};
  }
  static Int shift_left(Int x, int by) { return {V::shift_left(x.a, by), V::shift_left(x.b, by)}; }
  static Int add(Int x, Int y) { return {V::add(x.a, y.a), V::add(x.b, y.b)}; }
};

}  // namespace fl
