// SPDX-License-Identifier: Apache-2.0
// Errors as values. A Result holds a value or an Error. An Error has a code, which the program acts
// on, and a message, which says what happened and to what. Use it for everything that a peer, a
// disk or a user can cause. FL_ASSERT is for mistakes in our own code. Exceptions are used only
// during start-up and shutdown.
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
  invalid_input,    // The user or the peer gave an invalid value.
  protocol,         // The peer broke the protocol; its session ends.
  unauthenticated,  // A certificate, token or fingerprint was rejected.
  not_found,        // A file, row or name does not exist.
  conflict,   // A valid request that does not fit this state: a stale round, a duplicate, a name in
              // use.
  too_large,  // A value exceeds a named limit.
  corrupt,    // Bytes on disk or on the wire don't match their digest or format.
  io,         // The operating system reported a permanent error.
  no_space,   // The disk is full; retry later.
  unavailable,  // A peer, the database or an open file is taken or out of reach for now; retry
                // later.
  cancelled,    // The program was asked to stop.
  deadline,     // The operation took longer than its named limit.
  internal,     // A library failed, or another error that has no code of its own.
};

[[nodiscard]] std::string_view to_string(Errc code);

class Error {
 public:
  /// boost::system::result needs this: its error() returns it for a result that holds a value.
  Error() = default;
  Error(Errc code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] Errc code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }

  /// Returns the same error with the message "PLACE: message".
  [[nodiscard]] Error at(std::string_view place) const {
    return {code_, std::string(place) + ": " + message_};
  }

 private:
  Errc code_ = Errc::internal;
  std::string message_;
};

/// An Error as an exception, for start-up and shutdown.
class ErrorException : public std::runtime_error {
 public:
  explicit ErrorException(Error error)
      : std::runtime_error(error.message()), error_(std::move(error)) {}
  [[nodiscard]] const Error& error() const { return error_; }

 private:
  Error error_;
};

/// boost::system::result calls this, by argument-dependent lookup, for `.value()` of an error.
[[noreturn]] inline void throw_exception_from_error(const Error& error,
                                                    const boost::source_location&) {
  throw ErrorException(error);
}

template <class T>
using Result = boost::system::result<T, Error>;

/// A successful Result<void>, for `co_return success();`.
[[nodiscard]] inline Result<void> success() { return {}; }

/// Whether to wait and do the same again after this error: the disk is full, or something is taken
/// or out of reach for now.
[[nodiscard]] inline bool will_pass(const Error& error) {
  return error.code() == Errc::no_space || error.code() == Errc::unavailable;
}

/// Whether this failed with an error that will pass.
template <class T>
[[nodiscard]] bool will_pass(const Result<T>& result) {
  return !result && will_pass(result.error());
}

/// Turns the current errno into an Error with the message "WHAT: reason". A number for which
/// is_no_space() is true becomes no_space, ENOENT not_found, EMFILE and ENFILE unavailable, all
/// others io.
[[nodiscard]] Error errno_error(std::string_view what);
/// Whether a write met a limit that somebody can raise: of the disk, of a quota (EDQUOT), or of a
/// file's size (EFBIG).
[[nodiscard]] bool is_no_space(int number);
/// For EFBIG under a limit of this process: a text about the limit, to append to a message. Else
/// empty.
[[nodiscard]] std::string file_limit_text(int number);

}  // namespace fl

#define FL_CONCAT_(a, b) a##b
#define FL_CONCAT(a, b) FL_CONCAT_(a, b)

/// FL_TRY(auto x, f()); sets x to the value of f(), or returns its error from this function.
/// FL_CO_TRY does the same in coroutines.
#define FL_TRY(declaration, expression)                                           \
  auto FL_CONCAT(fl_try_, __LINE__) = (expression);                               \
  if (!FL_CONCAT(fl_try_, __LINE__)) return FL_CONCAT(fl_try_, __LINE__).error(); \
  declaration = std::move(*FL_CONCAT(fl_try_, __LINE__))
#define FL_CO_TRY(declaration, expression)                                           \
  auto FL_CONCAT(fl_try_, __LINE__) = (expression);                                  \
  if (!FL_CONCAT(fl_try_, __LINE__)) co_return FL_CONCAT(fl_try_, __LINE__).error(); \
  declaration = std::move(*FL_CONCAT(fl_try_, __LINE__))
/// FL_CHECK(f()); returns the error of f(), if it has one. FL_CO_CHECK is for coroutines.
#define FL_CHECK(expression)                                                   \
  do {                                                                         \
    if (auto&& fl_check_ = (expression); !fl_check_) return fl_check_.error(); \
  } while (false)
#define FL_CO_CHECK(expression)                                                   \
  do {                                                                            \
    if (auto&& fl_check_ = (expression); !fl_check_) co_return fl_check_.error(); \
  } while (false)

/// Checks a claim about our own code, in every build, and aborts when it is false. Never use it for
/// something that a peer, a user or a disk controls.
#define FL_ASSERT(claim)                                                                 \
  do {                                                                                   \
    if (!(claim)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: assertion failed: %s\n", __FILE__, __LINE__, #claim); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
