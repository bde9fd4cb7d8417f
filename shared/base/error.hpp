// Errors that a peer, a disk or a user can cause, as values. Programmer's errors are FL_ASSERT.
// A Result holds either a value or an Error; an Error has a category to act on and a sentence that
// names the cause and the place. Exceptions are for start-up and for shutdown only.
#pragma once

#include <boost/system/result.hpp>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace fl {

enum class Errc {
  invalid_input,    // The user or the peer gave something that can't be right.
  protocol,         // The peer broke the protocol; its session ends.
  unauthenticated,  // A certificate, a token or a fingerprint does not fit.
  not_found,        // A file, a row, a name that isn't there.
  conflict,         // Right in itself, but not now: a stale round, a duplicate, a name taken.
  too_large,        // Over a named limit.
  corrupt,          // Bytes on disk or on the wire that don't match their digest or format.
  io,               // The operating system refused, for a reason that will not pass.
  no_space,         // The disk is full; trying again later makes sense.
  unavailable,      // The peer is gone or can't be reached; trying again later makes sense.
  cancelled,        // We were asked to stop.
  deadline,         // It took longer than its named limit.
  internal,         // A library failed in a way that we can't name better.
};

[[nodiscard]] std::string_view to_string(Errc code);

class Error {
 public:
  Error() =
      default;  // boost::system::result wants one; it is what error() gives when there is none.
  Error(Errc code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] Errc code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }

  /// The same error with the place it happened at put in front: "PLACE: message".
  [[nodiscard]] Error at(std::string_view place) const {
    return {code_, std::string(place) + ": " + message_};
  }

 private:
  Errc code_ = Errc::internal;
  std::string message_;
};

/// How an Error travels where only exceptions can: start-up and shutdown.
class ErrorException : public std::runtime_error {
 public:
  explicit ErrorException(Error error)
      : std::runtime_error(error.message()), error_(std::move(error)) {}
  [[nodiscard]] const Error& error() const { return error_; }

 private:
  Error error_;
};

/// Found by boost::system::result through argument-dependent look-up: `.value()` on an error.
[[noreturn]] inline void throw_exception_from_error(const Error& error,
                                                    const boost::source_location&) {
  throw ErrorException(error);
}

template <class T>
using Result = boost::system::result<T, Error>;

/// The value of a Result<void>, for `co_return success();`.
[[nodiscard]] inline Result<void> success() { return {}; }

/// Turns the current errno into an Error: ENOSPC and EDQUOT become no_space, ENOENT not_found.
[[nodiscard]] Error errno_error(std::string_view what);

}  // namespace fl

#define FL_CONCAT_(a, b) a##b
#define FL_CONCAT(a, b) FL_CONCAT_(a, b)

/// FL_TRY(auto x, f());  — x = the value of f(), or return its error. FL_CO_TRY in coroutines.
#define FL_TRY(declaration, expression)                                           \
  auto FL_CONCAT(fl_try_, __LINE__) = (expression);                               \
  if (!FL_CONCAT(fl_try_, __LINE__)) return FL_CONCAT(fl_try_, __LINE__).error(); \
  declaration = std::move(*FL_CONCAT(fl_try_, __LINE__))
#define FL_CO_TRY(declaration, expression)                                           \
  auto FL_CONCAT(fl_try_, __LINE__) = (expression);                                  \
  if (!FL_CONCAT(fl_try_, __LINE__)) co_return FL_CONCAT(fl_try_, __LINE__).error(); \
  declaration = std::move(*FL_CONCAT(fl_try_, __LINE__))
/// The same for Result<void>.
#define FL_CHECK(expression)                                                   \
  do {                                                                         \
    if (auto&& fl_check_ = (expression); !fl_check_) return fl_check_.error(); \
  } while (false)
#define FL_CO_CHECK(expression)                                                   \
  do {                                                                            \
    if (auto&& fl_check_ = (expression); !fl_check_) co_return fl_check_.error(); \
  } while (false)

/// A claim about our own code, always checked. Never about what a peer, a user or a disk controls.
#define FL_ASSERT(claim)                                                                 \
  do {                                                                                   \
    if (!(claim)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: assertion failed: %s\n", __FILE__, __LINE__, #claim); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
