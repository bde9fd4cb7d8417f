// SPDX-License-Identifier: Apache-2.0
// A trace shows people what a program did and when. --trace writes the format that Chrome
// (chrome://tracing) and Perfetto (ui.perfetto.dev) open, the "Trace Event Format", with a process
// for the client and one for each rank of a site, whose threads are the tracks.
#pragma once

#include "shared/base/async/mutex.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// Something that took some time: a bar in the picture.
struct TraceSpan {
  std::string name;              // "forward", "upload".
  std::string track;             // "steps", "gradients": what comes after each other.
  std::int64_t begin_us = 0;     // Unix time in microseconds.
  std::int64_t duration_us = 0;  // Microseconds.
  std::uint64_t bytes = 0;       // Sent in that time; 0: none, or unknown.
  bool operator==(const TraceSpan&) const = default;
};

/// A span that began so many seconds ago and took so many.
[[nodiscard]] TraceSpan trace_span(std::string name, std::string track, double ago_s,
                                   double duration_s, std::uint64_t bytes = 0);

/// The file of --trace. It is valid JSON after each write, so a program that is killed leaves a
/// trace of what it had written. Any thread.
class TraceFile {
 public:
  /// Makes the file, or empties it. `files` must outlive it. Errors name the path.
  [[nodiscard]] static Result<std::shared_ptr<TraceFile>> make(Files& files,
                                                               const std::filesystem::path& path);
  /// Names the process with this number; call it once for each.
  void name_process(int process, std::string_view name);
  /// Appends spans. After a failure of the disk, or once the file has limits::trace_bytes_max, it
  /// says so in the log, once, and writes nothing more: a trace never ends a run.
  void write(int process, std::span<const TraceSpan> spans);

 private:
  explicit TraceFile(std::unique_ptr<File> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}
  void append(std::string events) FL_REQUIRES(mutex_);
  int track_of(int process, const std::string& track, std::string& events) FL_REQUIRES(mutex_);

  Mutex mutex_;
  std::unique_ptr<File> file_ FL_GUARDED_BY(mutex_);  // Null after a failure.
  const std::string path_;
  /// Where the closing bracket is; 0: nothing is written yet.
  std::uint64_t end_ FL_GUARDED_BY(mutex_) = 0;
  /// Their numbers are their places.
  std::vector<std::pair<int, std::string>> tracks_ FL_GUARDED_BY(mutex_);
};

/// Writes something that the client has just done in so many seconds: work, or with `bytes` a
/// transfer. `trace` may be null. Any thread.
void trace_work(TraceFile* trace, std::string_view what, std::uint32_t round, double took_s,
                std::uint64_t bytes = 0);

}  // namespace fl
