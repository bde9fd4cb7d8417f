// SPDX-License-Identifier: Apache-2.0
#include "shared/base/time_zone.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <regex>
#include <string_view>

namespace fl {

namespace fs = std::filesystem;

namespace {

/// A zone that is written out: "CET-1CEST,M3.5.0,M10.5.0/3", "<+0330>-3:30", "UTC0".
bool is_rule(const std::string& zone) {
  const std::string name = "(?:[A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)";
  const std::string offset = "[+-]?[0-9]{1,2}(?::[0-9]{2}){0,2}";
  static const std::regex rule(name + offset + "(?:" + name + "(?:" + offset +
                               ")?(?:,[^,]+,[^,]+)?)?");
  return std::regex_match(zone, rule);
}

bool is_zone_file(const fs::path& path) {
  constexpr std::string_view magic = "TZif";
  std::string begin(magic.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  return file.read(begin.data(), static_cast<std::streamsize>(begin.size())) && begin == magic;
}

}  // namespace

Result<void> check_time_zone(const Environment& environment, const fs::path& zones) {
  const std::string given = environment("TZ").value_or("");
  const std::string zone = given.starts_with(':') ? given.substr(1) : given;
  const bool is_utc = zone.empty() || zone == "UTC" || zone == "GMT" || zone == "Etc/UTC";
  if (is_utc || is_rule(zone)) return {};
  const auto own = environment("TZDIR");
  const fs::path folder = own && !own->empty() ? fs::path(*own) : zones;
  if (is_zone_file(folder / zone)) return {};  // An absolute path stays what it is.
  std::error_code none;
  const bool has_zones = fs::is_directory(folder, none);
  return Error(
      Errc::invalid_input,
      fmt::format(
          "the variable TZ is '{}', {}; or write the zone out, as CET-1CEST,M3.5.0,M10.5.0/3",
          given,
          has_zones ? fmt::format("which is no time zone in {}: correct it", folder.string())
                    : fmt::format("but {} is missing, which knows the zones by their names: "
                                  "install tzdata",
                                  folder.string())));
}

std::string local_time_text(double unix_seconds) {
  const auto whole = static_cast<std::time_t>(unix_seconds);
  std::tm local{};
  if (::localtime_r(&whole, &local) == nullptr) return "unknown";
  const long minutes = std::labs(local.tm_gmtoff) / 60;
  return fmt::format("{:02}:{:02}, UTC{}{:02}:{:02}", local.tm_hour, local.tm_min,
                     local.tm_gmtoff < 0 ? '-' : '+', minutes / 60, minutes % 60);
}

}  // namespace fl
