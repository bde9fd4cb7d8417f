// SPDX-License-Identifier: Apache-2.0
#include "shared/base/doctor.hpp"

#include "shared/base/async/clock.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/io/scratch_folder.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/machine.hpp"
#include "shared/base/median.hpp"
#include "shared/base/state_lock.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace fl {

using Verdict = DoctorLine::Verdict;

namespace {

constexpr double clock_warn_s = 5;
constexpr double clock_fail_s = 300;  // Certificates allow for this much (identity/authority.hpp).
constexpr double day_seconds = 24 * 3600;

const char* text_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok: return "ok";
    case Verdict::warn: return "warn";
    case Verdict::fail: return "fail";
  }
  return "";
}

/// How long one sync of a small file in the folder takes, in the middle.
Result<double> sync_seconds(const std::filesystem::path& path) {
  Files& files = posix_files();
  FL_TRY(const auto file, files.open(path, OpenMode::fresh));
  std::vector<double> took;
  const std::string block(4096, 'x');
  for (int i = 0; i < limits::doctor_syncs; ++i) {
    const TimePoint begin = Clock::now();
    FL_CHECK(file->write_at(static_cast<std::uint64_t>(i) * block.size(),
                            bytes_of(std::string_view(block))));
    FL_CHECK(file->sync());
    took.push_back(seconds(Clock::now() - begin));
  }
  return upper_median(std::move(took));
}

/// Whether a second lock on a file is refused, as it must be.
Result<bool> locks_work(const std::filesystem::path& path) {
  const int first = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  const int second = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  const auto result = [&]() -> Result<bool> {
    if (first < 0 || second < 0) return errno_error(path.string());
    if (::flock(first, LOCK_EX | LOCK_NB) != 0) return errno_error("flock");
    return ::flock(second, LOCK_EX | LOCK_NB) != 0;
  }();
  if (first >= 0) ::close(first);
  if (second >= 0) ::close(second);
  return result;
}

void check_space(const std::filesystem::path& folder, double bytes_needed, DoctorLines& lines) {
  std::error_code ec;
  const auto space = std::filesystem::space(folder, ec);
  if (ec) {
    lines.push_back({Verdict::fail, "disk space",
                     fmt::format("{}: {}", folder.string(), ec.message()),
                     "name another folder with --state"});
    return;
  }
  const auto free = static_cast<double>(space.available);
  const std::string text = fmt::format("{:.3g} GB are free at {}", free / 1e9, folder.string());
  const std::string advice = fmt::format("make room: {:.3g} GB are needed", bytes_needed / 1e9);
  if (free < bytes_needed) {
    lines.push_back({Verdict::fail, "disk space", text, advice});
  } else if (free < 2 * bytes_needed) {
    lines.push_back({Verdict::warn, "disk space", text, advice + ", and twice that is better"});
  } else {
    lines.push_back({Verdict::ok, "disk space", text});
  }
}

}  // namespace

std::string doctor_text(const DoctorLines& lines) {
  std::size_t width = 0;
  for (const DoctorLine& line : lines) width = std::max(width, line.subject.size());
  std::string text;
  for (const DoctorLine& line : lines) {
    text +=
        fmt::format("{:<5} {:<{}}  {}\n", text_of(line.verdict), line.subject, width, line.text);
    if (!line.advice.empty()) text += fmt::format("{:{}}-> {}\n", "", width + 8, line.advice);
  }
  return text;
}

nlohmann::json doctor_json(const DoctorLines& lines) {
  nlohmann::json all = nlohmann::json::array();
  for (const DoctorLine& line : lines) {
    all.push_back({{"verdict", text_of(line.verdict)},
                   {"subject", line.subject},
                   {"text", line.text},
                   {"advice", line.advice}});
  }
  return all;
}

int doctor_exit_code(const DoctorLines& lines) {
  return std::ranges::any_of(lines,
                             [](const DoctorLine& line) { return line.verdict == Verdict::fail; });
}

std::string doctor_output(const DoctorLines& lines, bool as_json, nlohmann::json figures,
                          std::string_view tables) {
  if (!as_json) return doctor_text(lines).append(tables);
  figures["lines"] = doctor_json(lines);
  return json_text(figures, 2) + "\n";
}

int print_doctor(const DoctorLines& lines, bool as_json) {
  std::fputs(doctor_output(lines, as_json).c_str(), stdout);
  return doctor_exit_code(lines);
}

void check_owner(const std::filesystem::path& state, DoctorLines& lines) {
  if (const auto fine = check_state_folder(state); !fine)
    lines.push_back({Verdict::fail, "state", fine.error().message(),
                     "run doctor as the user who runs the program"});
}

std::filesystem::path nearest_folder(const std::filesystem::path& folder) {
  std::error_code ec;
  auto found = std::filesystem::absolute(folder, ec).lexically_normal();
  while (!std::filesystem::is_directory(found, ec) && found.has_relative_path())
    found = found.parent_path();
  return found;
}

void check_disk(const std::filesystem::path& folder, double bytes_needed, DoctorLines& lines) {
  check_space(folder, bytes_needed, lines);
  // Others may write to this folder, so our file is in one of our own.
  const auto own = ScratchFolder::make("doctor", folder);
  const auto path = own ? own->path() / "file" : std::filesystem::path();
  const auto took = own ? sync_seconds(path) : Result<double>(own.error());
  if (!took) {
    lines.push_back({Verdict::fail, "disk sync", took.error().message(),
                     "name a folder with --state that this user may write to"});
  } else {
    const bool is_slow = *took > seconds(limits::slow_sync);
    lines.push_back({is_slow ? Verdict::warn : Verdict::ok, "disk sync",
                     fmt::format("a sync takes {:.3g} ms", *took * 1e3),
                     is_slow ? "use a local disk, best an SSD: each update waits for a sync" : ""});
  }
  const auto locked = took ? locks_work(path) : Result<bool>(took.error());
  const bool works = locked && *locked;
  lines.push_back(
      {works ? Verdict::ok : Verdict::fail, "disk locks",
       works    ? "work"
       : locked ? "two programs can lock the same file"
                : locked.error().message(),
       works ? "" : "use a local disk: on this one two programs may destroy the state"});
}

void check_machine(DoctorLines& lines) {
  lines.push_back({Verdict::ok, "machine", to_string(this_machine())});
}

void check_clock(double other_s, DoctorLines& lines) {
  const double now = Clock::unix_seconds();
  timex times{};
  const int state = ::adjtimex(&times);
  const bool is_synchronized =
      state >= 0 && state != TIME_ERROR && (times.status & STA_UNSYNC) == 0;
  const std::string ntp = is_synchronized ? "synchronized" : "not synchronized by the system";
  const std::string advice = "run an NTP service (chrony, systemd-timesyncd)";
  if (other_s <= 0) {
    lines.push_back({is_synchronized ? Verdict::ok : Verdict::warn, "clock", ntp,
                     is_synchronized ? "" : advice});
    return;
  }
  const double off = std::abs(now - other_s);
  const Verdict verdict = off > clock_fail_s   ? Verdict::fail
                          : off > clock_warn_s ? Verdict::warn
                                               : Verdict::ok;
  lines.push_back({verdict, "clock", fmt::format("{:.0f} s off the server's, {}", off, ntp),
                   verdict == Verdict::ok ? "" : "set the clock that is wrong, and " + advice});
}

void check_certificate_end(const std::string& subject, double not_after, const std::string& renewal,
                           DoctorLines& lines) {
  const double days = (not_after - Clock::unix_seconds()) / day_seconds;
  const std::string date =
      fmt::format("{:%Y-%m-%d}", fmt::gmtime(static_cast<std::time_t>(not_after)));
  if (days < 0) {
    lines.push_back({Verdict::fail, subject, "ended on " + date, renewal});
  } else {
    const bool is_soon = days < limits::certificate_days_min;
    lines.push_back({is_soon ? Verdict::warn : Verdict::ok, subject,
                     fmt::format("valid until {}, {:.0f} more days", date, days),
                     is_soon ? renewal : ""});
  }
}

}  // namespace fl
