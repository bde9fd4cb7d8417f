// SPDX-License-Identifier: Apache-2.0
#include "shared/params/header_scanner.hpp"

#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <unordered_set>
#include <utility>

namespace fl {

namespace {

/// A name from a foreign file, made printable and short for an error message.
std::string shown_name(std::string_view name) {
  constexpr std::size_t shown_bytes_max = 80;
  return printable(name, shown_bytes_max);
}

/// The element type, or none for a BatchNorm's count of batches (an int64), which is skipped.
Result<std::optional<ElementType>> parse_type(const std::string& name, const std::string& text) {
  if (text == "I64" && name.ends_with("num_batches_tracked")) return std::optional<ElementType>();
  if (const auto type = parse_element_type(text)) return type;
  return Error(Errc::invalid_input,
               fmt::format("tensor {} has elements of type {}; F32, F16, BF16 and F64 can be read",
                           shown_name(name), shown_name(text)));
}

/// Takes the parts of the text as the parser finds them. Each function returns whether to go on;
/// after false, error() says why.
class HeaderScanner final : public JsonScanner {
 public:
  bool key(std::string& name) override {
    if (place_ == Place::tensor) {
      const auto field = std::ranges::find(fields, name);
      if (field == fields.end() || is_there_[field - fields.begin()])
        return fail_tensor(wrong_fields);
      field_ = static_cast<Field>(field - fields.begin());
      return is_there_[field_] = true;
    }
    if (place_ == Place::header && name.size() > limits::tensor_name_bytes_max)
      return fail_limit("the name of tensor {} has more than {} bytes", shown_name(name),
                        limits::tensor_name_bytes_max);
    name_ = name;
    if (place_ == Place::header && !names_.insert(name).second)
      return fail(fmt::format("two tensors are named {}", shown_name(name)));
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) return enter(Place::header);
    if (place_ != Place::header) return fail_value();
    if (name_ == safetensors_metadata_key) return enter(Place::metadata);
    if (header_.entries.size() == limits::tensors_max)
      return fail_limit("more than {} tensors", limits::tensors_max);
    header_.entries.emplace_back().spec.name = name_;
    is_there_.fill(false);
    return enter(Place::tensor);
  }

  bool end_object() override {
    if (place_ == Place::tensor && !std::ranges::all_of(is_there_, std::identity())) {
      return fail_tensor(wrong_fields);
    }
    return enter(place_ == Place::header ? Place::outside : Place::header);
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || field_ == dtype) return fail_value();
    offsets_ = 0;
    return enter(field_ == shape ? Place::shape : Place::offsets);
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_ != 2) return fail_value();
    return enter(Place::tensor);
  }

  bool string(std::string& text) override {
    if (place_ == Place::metadata) {
      if (metadata_.size() == limits::metadata_entries_max)
        return fail_limit("__metadata__ has more than {} entries", limits::metadata_entries_max);
      metadata_.insert_or_assign(name_, text);
      return true;
    }
    if (place_ != Place::tensor || field_ != dtype) return fail_value();
    auto type = parse_type(name_, text);
    if (!type) {
      error_ = std::move(type).error();
      return false;
    }
    header_.entries.back().type = *type;
    return true;
  }

  bool number_unsigned(std::uint64_t number) override {
    HeaderEntry* const entry = header_.entries.empty() ? nullptr : &header_.entries.back();
    if (place_ == Place::shape && number <= limits::parameters_max) {
      if (entry->spec.shape.size() == limits::dimensions_max)
        return fail_limit("tensor {} has more than {} dimensions", shown_name(name_),
                          limits::dimensions_max);
      entry->spec.shape.push_back(static_cast<std::int64_t>(number));
      return true;
    }
    if (place_ != Place::offsets || offsets_ == 2) return fail_value();
    (offsets_++ == 0 ? entry->begin : entry->end) = number;
    return true;
  }

  bool null() override { return fail_value(); }
  bool boolean(bool) override { return fail_value(); }
  bool number_integer(std::int64_t) override { return fail_value(); }
  bool number_float(double, const std::string&) override { return fail_value(); }
  bool binary(nlohmann::json::binary_t&) override { return fail_value(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return fail("the header is not a JSON object");
  }

  /// The reason why a function has returned false.
  Error error() const { return error_.value(); }

  /// The entries of a text that was read to the end.
  ScannedHeader take() {
    while (!metadata_.empty()) {
      auto entry = metadata_.extract(metadata_.begin());
      header_.metadata.emplace_back(std::move(entry.key()), std::move(entry.mapped()));
    }
    return std::move(header_);
  }

 private:
  enum class Place { outside, header, metadata, tensor, shape, offsets };
  enum Field : std::size_t { dtype, shape, data_offsets };
  static constexpr std::array<std::string_view, 3> fields{"dtype", "shape", "data_offsets"};
  static constexpr std::string_view wrong_fields =
      "must have exactly dtype, shape and data_offsets";

  bool enter(Place place) {
    place_ = place;
    return true;
  }

  bool fail(std::string_view message) {
    error_ = Error(Errc::corrupt, std::string(message));
    return false;
  }

  template <class... Args>
  bool fail_limit(fmt::format_string<Args...> message, Args&&... args) {
    error_ = Error(Errc::too_large, fmt::format(message, std::forward<Args>(args)...));
    return false;
  }

  bool fail_tensor(std::string_view what) {
    return fail(fmt::format("tensor {}: {}", shown_name(name_), what));
  }

  /// Reports a value, or a name, that must not stand here.
  bool fail_value() {
    switch (place_) {
      case Place::outside: return fail("the header is not a JSON object");
      case Place::header:
        if (name_ == safetensors_metadata_key) return fail("__metadata__ is not an object");
        return fail_tensor(wrong_fields);
      case Place::metadata:
        return fail(fmt::format("__metadata__ entry {} is not a string", shown_name(name_)));
      case Place::shape: return fail_tensor("shape has an invalid size");
      case Place::offsets: return fail_tensor("data_offsets is not a pair of numbers");
      case Place::tensor: break;
    }
    if (field_ == shape) return fail_tensor("shape is not an array");
    if (field_ == data_offsets) return fail_tensor("data_offsets is not a pair of numbers");
    error_ = Error(Errc::invalid_input,
                   fmt::format("tensor {}: dtype is not a text", shown_name(name_)));
    return false;
  }

  Place place_ = Place::outside;
  std::string name_;     // The name of the tensor, or of the entry of the metadata.
  Field field_ = dtype;  // The field of the tensor.
  std::array<bool, 3> is_there_{};
  std::size_t offsets_ = 0;  // How many of the two offsets were read.
  std::unordered_set<std::string> names_;
  std::map<std::string, std::string> metadata_;
  ScannedHeader header_;
  std::optional<Error> error_;
};

}  // namespace

Result<ScannedHeader> scan_safetensors_header(std::string_view text) {
  HeaderScanner scanner;
  if (!scan_json(text, scanner)) return scanner.error();
  return scanner.take();
}

}  // namespace fl
