// Tests that try every place or many seeds take a sanitizer ten times as long, and show it the same
// code again and again: there they are content with less. The release build has them whole.
#pragma once

namespace fl::test {

#ifdef FL_SANITIZED  // A build with FL_SANITIZE: GCC and clang say it by different names.
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = false;
#endif

/// `whole`, or what is enough under a sanitizer.
template <class Number>
constexpr Number or_sanitized(Number whole, Number enough) {
  return is_sanitized ? enough : whole;
}

}  // namespace fl::test
