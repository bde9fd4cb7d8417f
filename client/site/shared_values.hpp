// SPDX-License-Identifier: Apache-2.0
// SharedValues: a vector of fp32 in a file that two processes of one machine map, so that both see
// what either writes. Who writes when is for them to agree. Any thread.
#pragma once

#include "shared/base/error.hpp"

#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

namespace fl::site {

class SharedValues {
 public:
  SharedValues() = default;
  /// Makes a file of `count` values, all 0; replaces a file of that name. Errors: no_space, io.
  [[nodiscard]] static Result<SharedValues> make(const std::filesystem::path& path,
                                                 std::size_t count);
  /// Maps a file that make() made. Errors: not_found, io; corrupt if it has another size.
  [[nodiscard]] static Result<SharedValues> open(const std::filesystem::path& path,
                                                 std::size_t count);
  /// Values of this process alone, all 0. Memory is taken page by page, as they are written.
  /// Errors: io.
  [[nodiscard]] static Result<SharedValues> make_unshared(std::size_t count);
  ~SharedValues();
  SharedValues(SharedValues&& other) noexcept : values_(std::exchange(other.values_, {})) {}
  SharedValues& operator=(SharedValues&& other) noexcept {
    std::swap(values_, other.values_);
    return *this;
  }
  SharedValues(const SharedValues&) = delete;
  SharedValues& operator=(const SharedValues&) = delete;

  [[nodiscard]] std::span<float> values() const { return values_; }

 private:
  explicit SharedValues(std::span<float> values) : values_(values) {}
  [[nodiscard]] static Result<SharedValues> map(int file, const std::filesystem::path& path,
                                                std::size_t count);

  std::span<float> values_;
};

}  // namespace fl::site
