// SPDX-License-Identifier: Apache-2.0
// Storage: the inputs of a data set as one run of bytes that does not change any more. Copies share
// the bytes. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace fl {

class Storage {
 public:
  Storage() = default;
  /// Takes the values of a vector.
  template <class Value>
  explicit Storage(std::vector<Value> values) {
    const auto kept = std::make_shared<const std::vector<Value>>(std::move(values));
    bytes_ = std::as_bytes(std::span(*kept));
    owner_ = kept;
  }
  /// Bytes that `owner` keeps alive, such as a mapped file.
  Storage(std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  /// The bytes as values of a type, in which they must have been stored.
  template <class Value>
  [[nodiscard]] std::span<const Value> as() const {
    return {reinterpret_cast<const Value*>(bytes_.data()), bytes_.size() / sizeof(Value)};
  }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
};

}  // namespace fl
