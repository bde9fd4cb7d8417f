// SPDX-License-Identifier: Apache-2.0
// The lines of `doctor`: for each thing that was looked at a verdict, what is the case, and what to
// do. fl-server, fl-client and fl-client site print them the same way. Here are also the checks
// that both ends make of their machine.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/json.hpp"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

struct DoctorLine {
  enum class Verdict { ok, warn, fail };
  Verdict verdict = Verdict::ok;
  std::string subject;      // The subject of the check: "links".
  std::string text;         // The finding.
  std::string advice = {};  // What to do; "" if nothing is to do.
};

using DoctorLines = std::vector<DoctorLine>;

/// "ok    links  …" and so on, a line each, advice below it.
[[nodiscard]] std::string doctor_text(const DoctorLines& lines);
/// An array of objects with verdict, subject, text and advice.
[[nodiscard]] nlohmann::json doctor_json(const DoctorLines& lines);
/// 1 if a line fails, else 0.
[[nodiscard]] int doctor_exit_code(const DoctorLines& lines);
/// All that a doctor prints: the lines and the tables below them or, as JSON, the members of
/// `figures` with the lines as "lines".
[[nodiscard]] std::string doctor_output(const DoctorLines& lines, bool as_json,
                                        nlohmann::json figures = nlohmann::json::object(),
                                        std::string_view tables = {});
/// Prints doctor_output() to standard output. Returns the exit code.
int print_doctor(const DoctorLines& lines, bool as_json);

/// Adds a line if a state folder is not this user's alone: then the programs refuse it.
void check_owner(const std::filesystem::path& state, DoctorLines& lines);
/// The folder, or if it is not there, the nearest one above it: where it will be made.
[[nodiscard]] std::filesystem::path nearest_folder(const std::filesystem::path& folder);
/// Adds lines about a folder's disk: its space, how long a sync takes, and whether locks work. The
/// folder must exist. `bytes_needed`: less space than this is a failure.
void check_disk(const std::filesystem::path& folder, double bytes_needed, DoctorLines& lines);
/// Adds a line with the cores and the memory that this process may use, and what limits them.
void check_machine(DoctorLines& lines);
/// Adds a line about this machine's clock: whether it is synchronized, and how far it is from
/// `other_s`, the other end's in Unix seconds, if that is known (not 0).
void check_clock(double other_s, DoctorLines& lines);
/// Adds a line about a certificate that ends at this time (Unix seconds). `renewal`: how it gets a
/// new one.
void check_certificate_end(const std::string& subject, double not_after, const std::string& renewal,
                           DoctorLines& lines);

}  // namespace fl
