// SPDX-License-Identifier: Apache-2.0
// What a codec learned from one vector and uses for the next one, such as the factor with which
// powersgd starts. Only the encoder has it; no payload needs it to be decoded. If it is missing, in
// whole or in part, the codec starts without it.
//
// The bytes, little-endian, without padding: "FLS1"; u32 number of entries; the entries in the
// order of their names, each u32 bytes of the name, u64 number of values, the name, the values as
// binary32; at the end 16 bytes, the digest of everything before.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl::codec {

/// Entries by name, each a run of values. One thread at a time.
class CodecState {
 public:
  /// The state that bytes() wrote. The bytes need not be trusted. Errors: corrupt.
  [[nodiscard]] static Result<CodecState> parse(Bytes bytes);
  [[nodiscard]] std::vector<std::byte> bytes() const;

  /// The values of an entry, all finite; empty if there is none. A codec with other settings or
  /// another layout may have written the entry, so check its size. Valid until the next set().
  [[nodiscard]] std::span<const float> find(std::string_view name) const;
  /// Adds or replaces an entry. Requires: the values are finite.
  void set(std::string name, std::vector<float> values);
  /// Whether set() was called since the state was constructed or parsed.
  [[nodiscard]] bool is_changed() const { return is_changed_; }

 private:
  std::map<std::string, std::vector<float>, std::less<>> entries_;
  bool is_changed_ = false;
};

}  // namespace fl::codec
