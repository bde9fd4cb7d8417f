// SPDX-License-Identifier: Apache-2.0
#include "shared/wire/train_messages.hpp"

#include "shared/algorithm/train_fields.hpp"
#include "shared/base/limits.hpp"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>

namespace fl {

namespace {

using Field = google::protobuf::FieldDescriptor;

const Field* field_named(const char* name) {
  const Field* const field = wire::Offer::descriptor()->FindFieldByName(name);
  FL_ASSERT(field != nullptr);
  return field;
}

/// Whether the field has whole milliseconds, where the settings have seconds.
bool is_in_ms(const Field* field) { return field->cpp_type() == Field::CPPTYPE_UINT64; }

/// One field of an offer that is written.
struct Writer {
  wire::Offer& offer;
  const Field* field;
  const google::protobuf::Reflection& as = *offer.GetReflection();

  void put(std::uint32_t value) const { as.SetUInt32(&offer, field, value); }
  void put(std::uint64_t value) const { as.SetUInt64(&offer, field, value); }
  void put(double value) const {
    if (is_in_ms(field)) return put(static_cast<std::uint64_t>(std::llround(value * 1000)));
    as.SetDouble(&offer, field, value);
  }
  void put(const LocalOptimizer& value) const {
    as.SetString(&offer, field, optimizer_spec(value));
  }
};

/// One field of an offer that is read.
struct Reader {
  const wire::Offer& offer;
  const Field* field;
  const google::protobuf::Reflection& as = *offer.GetReflection();

  Result<void> take(std::uint32_t& value) const {
    value = as.GetUInt32(offer, field);
    return {};
  }
  Result<void> take(std::uint64_t& value) const {
    value = as.GetUInt64(offer, field);
    return {};
  }
  Result<void> take(double& value) const {
    value = is_in_ms(field) ? static_cast<double>(as.GetUInt64(offer, field)) / 1000
                            : as.GetDouble(offer, field);
    return {};
  }
  Result<void> take(LocalOptimizer& value) const {
    FL_TRY(value, parse_optimizer(as.GetString(offer, field)));
    return {};
  }
};

}  // namespace

void write_train_settings(const TrainSettings& settings, wire::Offer& offer) {
  for_each_train_field([&](const auto& row) {
    Writer{offer, field_named(row.in_offer)}.put(settings.*row.member);
  });
}

Result<TrainSettings> read_train_settings(const wire::Offer& offer) {
  TrainSettings settings;
  Result<void> read;
  for_each_train_field([&](const auto& row) {
    if (read) read = Reader{offer, field_named(row.in_offer)}.take(settings.*row.member);
  });
  if (!read) return read.error();
  const auto at_most = [](const char* name, std::uint32_t value, std::uint32_t most) {
    if (value <= most) return success();
    return Result<void>(Error(Errc::invalid_input,
                              fmt::format("{} {}: this client's limit is {}", name, value, most)));
  };
  FL_CHECK(at_most("batch_size", settings.batch_size, limits::batch_size_max));
  FL_CHECK(at_most("accumulate", settings.accumulate, limits::accumulate_max));
  return settings;
}

}  // namespace fl
