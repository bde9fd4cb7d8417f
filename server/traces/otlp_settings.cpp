// SPDX-License-Identifier: Apache-2.0
#include "server/traces/otlp_settings.hpp"

#include "shared/base/version.hpp"

#include <boost/beast/core/string.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace fl::server {
namespace {

constexpr std::string_view traces_path = "/v1/traces";

/// One of the variables that has a value.
struct Setting {
  std::string name;
  std::string value;
};

/// An empty variable counts as missing.
std::optional<Setting> find(const Environment& environment, const char* name) {
  auto value = environment(name);
  if (!value || value->empty()) return std::nullopt;
  return Setting{name, std::move(*value)};
}

/// OTEL_EXPORTER_OTLP_TRACES_<name>, or else OTEL_EXPORTER_OTLP_<name>.
std::optional<Setting> find_exporter(const Environment& environment, const std::string& name) {
  if (auto own = find(environment, ("OTEL_EXPORTER_OTLP_TRACES_" + name).c_str())) return own;
  return find(environment, ("OTEL_EXPORTER_OTLP_" + name).c_str());
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == text.npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// The text with %XX as the character that it stands for; none if a '%' has no two digits.
std::optional<std::string> without_percent(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    unsigned code = 0;
    const char* const begin = text.data() + i + 1;
    if (text.size() - i < 3) return std::nullopt;
    const auto [end, failed] = std::from_chars(begin, begin + 2, code, 16);
    if (failed != std::errc() || end != begin + 2) return std::nullopt;
    plain += static_cast<char>(code);
    i += 2;
  }
  return plain;
}

/// NAME=VALUE,NAME=VALUE, with %XX in both (W3C Baggage).
Result<HttpHeaders> parse_list(const Setting& setting) {
  if (setting.value.size() > limits::otlp_headers_bytes_max)
    return Error(Errc::too_large,
                 fmt::format("{} has {} bytes; the limit is {}", setting.name, setting.value.size(),
                             limits::otlp_headers_bytes_max));
  HttpHeaders list;
  std::string_view rest = setting.value;
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    if (trimmed(entry).empty()) continue;
    const auto equals = entry.find('=');
    const auto name = without_percent(trimmed(entry.substr(0, equals)));
    const auto value =
        equals == entry.npos ? std::nullopt : without_percent(trimmed(entry.substr(equals + 1)));
    if (!name || name->empty() || !value)
      return Error(Errc::invalid_input,
                   setting.name + " is not NAME=VALUE,NAME=VALUE with %XX for other characters");
    list.emplace_back(*name, *value);
  }
  return list;
}

/// The address that the environment names; none if it names none, or says that nothing is sent.
Result<std::optional<OtlpSettings>> find_endpoint(const Environment& environment) {
  const auto disabled = find(environment, "OTEL_SDK_DISABLED");
  const auto exporter = find(environment, "OTEL_TRACES_EXPORTER");
  const bool is_off = (disabled && boost::beast::iequals(disabled->value, "true")) ||
                      (exporter && exporter->value == "none");
  const auto found = find_exporter(environment, "ENDPOINT");
  if (is_off || !found) return std::optional<OtlpSettings>();
  const auto url = parse_http_url(found->value);
  if (!url) return url.error().at(found->name);
  OtlpSettings settings;
  settings.url = *url;
  settings.source = found->name;
  // One address for traces is taken as it is; one for all signals gets the path of traces.
  if (found->name == "OTEL_EXPORTER_OTLP_ENDPOINT") {
    std::string& target = settings.url.target;
    while (target.ends_with('/')) target.pop_back();
    target += traces_path;
  }
  return std::optional(std::move(settings));
}

Result<void> read_headers(const Environment& environment, OtlpSettings& settings) {
  const auto found = find_exporter(environment, "HEADERS");
  if (!found) return {};
  FL_TRY(settings.headers, parse_list(*found));
  for (const auto& [name, value] : settings.headers) {
    if (const auto valid = check_http_header(name, value); !valid)
      return valid.error().at(found->name);
  }
  return {};
}

Result<void> read_timeout(const Environment& environment, OtlpSettings& settings) {
  const auto found = find_exporter(environment, "TIMEOUT");
  if (!found) return {};
  constexpr std::int64_t most = std::chrono::milliseconds(limits::otlp_timeout_max).count();
  std::int64_t milliseconds = 0;
  const char* const end = found->value.data() + found->value.size();
  const auto [at, failed] = std::from_chars(found->value.data(), end, milliseconds);
  if (failed != std::errc() || at != end || milliseconds < 1 || milliseconds > most)
    return Error(Errc::invalid_input,
                 fmt::format("{} is not a number of milliseconds from 1 to {}", found->name, most));
  settings.timeout = std::chrono::milliseconds(milliseconds);
  return {};
}

/// OTEL_SERVICE_NAME goes before a service.name in OTEL_RESOURCE_ATTRIBUTES.
Result<void> read_resource(const Environment& environment, OtlpSettings& settings) {
  settings.resource = {{"service.name", std::string("fl-server")},
                       {"service.version", std::string(software_version)}};
  const auto set = [&settings](const std::string& key, const std::string& value) {
    const auto same = std::ranges::find(settings.resource, key, &Attribute::key);
    if (same != settings.resource.end()) {
      same->value = value;
    } else {
      settings.resource.push_back({key, value});
    }
  };
  if (const auto more = find(environment, "OTEL_RESOURCE_ATTRIBUTES")) {
    FL_TRY(const HttpHeaders list, parse_list(*more));
    for (const auto& [key, value] : list) set(key, value);
  }
  if (const auto name = find(environment, "OTEL_SERVICE_NAME")) set("service.name", name->value);
  return {};
}

}  // namespace

Result<std::optional<OtlpSettings>> read_otlp_settings(const std::string& flag,
                                                       const Environment& environment) {
  std::optional<OtlpSettings> settings;
  if (flag == "off") return settings;
  if (flag.empty()) {
    FL_TRY(settings, find_endpoint(environment));
    if (!settings) return settings;
  } else {
    const auto url = parse_http_url(flag);
    if (!url) return url.error().at("--otlp-endpoint");
    settings.emplace();
    settings->url = *url;
    settings->source = "--otlp-endpoint";
    if (settings->url.target == "/") settings->url.target = traces_path;
  }
  FL_CHECK(read_headers(environment, *settings));
  FL_CHECK(read_timeout(environment, *settings));
  FL_CHECK(read_resource(environment, *settings));
  if (const auto file = find_exporter(environment, "CERTIFICATE"))
    settings->authority_file = file->value;
  const auto protocol = find_exporter(environment, "PROTOCOL");
  if (protocol && protocol->value != "http/json") {
    settings->advice = fmt::format(
        "{} is {}, but this program sends http/json only: the address "
        "must be one that takes it",
        protocol->name, protocol->value);
  }
  return settings;
}

}  // namespace fl::server
