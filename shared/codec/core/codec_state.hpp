// What a codec learned from a vector that helps it with the next one, such as the direction in
// which powersgd begins: runs of values by name. Only the encoder has it; payloads never need it to
// be decoded. Without it, or with a part of it, the codec begins afresh.
//
// As bytes, little-endian, no padding: "FLS1", u32 number of entries; of each, in the order of
// their names, u32 bytes of the name, u64 number of values, the name, the values as binary32; last
// the 16 bytes of the digest of all that. One thread at a time.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

class CodecState {
 public:
  /// Of bytes that need not be trusted. Errors are corrupt.
  [[nodiscard]] static Result<CodecState> parse(Bytes bytes);
  [[nodiscard]] std::vector<std::byte> bytes() const;

  /// None: empty. What is found may be of a codec with other settings, or another layout: check its
  /// size. All values are finite. Valid until the next set().
  [[nodiscard]] std::span<const float> find(std::string_view name) const;
  /// The values are finite.
  void set(std::string name, std::vector<float> values);
  /// Whether anything was set since it was made or parsed.
  [[nodiscard]] bool is_changed() const { return is_changed_; }

 private:
  std::map<std::string, std::vector<float>, std::less<>> entries_;
  bool is_changed_ = false;
};

}  // namespace fl
