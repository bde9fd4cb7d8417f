// SPDX-License-Identifier: Apache-2.0
// Fuzzes a run's settings as JSON: what an operator queues and what a history holds. Settings that
// are read are the same after they were written and read once more.
#include "server/run/settings.hpp"

using namespace fl;
using namespace fl::server;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto settings = settings_from_json(text);
  if (!settings) {
    FL_ASSERT(settings.error().code() == Errc::corrupt);
    return 0;
  }
  const std::string written = to_json(*settings);
  FL_ASSERT(to_json(settings_from_json(written).value()) == written);
  [[maybe_unused]] const auto checked = check_settings(*settings);
  return 0;
}
