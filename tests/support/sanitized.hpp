// SPDX-License-Identifier: Apache-2.0
// Tests that try every place or many seeds take ten times as long under a sanitizer, and run the
// same code again and again. So they try fewer there. The release build runs them whole.
#pragma once

namespace fl::test {

#ifdef FL_SANITIZED  // Set in builds with FL_SANITIZE; the macros of GCC and clang differ.
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = false;
#endif

/// Returns `whole`, or `enough` under a sanitizer.
template <class Number>
constexpr Number or_sanitized(Number whole, Number enough) {
  return is_sanitized ? enough : whole;
}

}  // namespace fl::test
