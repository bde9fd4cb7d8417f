// SPDX-License-Identifier: Apache-2.0
// client_bench: what a client spends on an update beside training it: all of
// ClientState::save_update(), in processor time and in seconds, its parts as the history has them,
// and each kind of file's reads, writes and syncs.
#include "client/state/client_state.hpp"
#include "kernels/kernels.hpp"
#include "shared/codec/spec/parser.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace fl;

/// Seconds, by the clock and of this process's processors.
struct Spent {
  double wall = 0;
  double cpu = 0;
  Spent& operator+=(const Spent& more) {
    wall += more.wall;
    cpu += more.cpu;
    return *this;
  }
};

double seconds_of(clockid_t clock) {
  timespec now = {};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class Watch {
 public:
  /// `cpu`: CLOCK_PROCESS_CPUTIME_ID or CLOCK_THREAD_CPUTIME_ID.
  explicit Watch(clockid_t cpu) : cpu_(cpu) {}
  [[nodiscard]] Spent spent() const {
    return {seconds_of(CLOCK_MONOTONIC) - began_.wall, seconds_of(cpu_) - began_.cpu};
  }

 private:
  const clockid_t cpu_;
  const Spent began_{seconds_of(CLOCK_MONOTONIC), seconds_of(cpu_)};
};

/// Notes how long calls on files took, by the call and the kind of file: "write residual".
class Notes {
 public:
  template <class Call>
  auto timed(const std::string& what, std::uint64_t bytes, const Call& call) {
    const Watch watch(CLOCK_THREAD_CPUTIME_ID);
    auto result = call();
    Note& note = notes_[what];
    note.spent += watch.spent();
    note.bytes += bytes;
    ++note.calls;
    return result;
  }
  void clear() { notes_.clear(); }
  void print() const {
    for (const auto& [what, note] : notes_) {
      if (note.spent.wall < 5e-4) continue;
      fmt::print("    {:<22}{:>6} calls {:>8.1f} MB {:>8.1f} ms of processor {:>8.1f} ms\n", what,
                 note.calls, static_cast<double>(note.bytes) / 1e6, note.spent.cpu * 1e3,
                 note.spent.wall * 1e3);
    }
  }

 private:
  struct Note {
    Spent spent;
    std::uint64_t bytes = 0;
    int calls = 0;
  };
  std::map<std::string, Note> notes_;
};

class NotedFile final : public File {
 public:
  NotedFile(std::unique_ptr<File> file, std::string kind, Notes& notes)
      : file_(std::move(file)), kind_(std::move(kind)), notes_(notes) {}
  Result<std::size_t> read_at(std::uint64_t offset, MutableBytes out) override {
    return notes_.timed("read " + kind_, out.size(), [&] { return file_->read_at(offset, out); });
  }
  Result<void> write_at(std::uint64_t offset, Bytes bytes) override {
    return notes_.timed("write " + kind_, bytes.size(),
                        [&] { return file_->write_at(offset, bytes); });
  }
  Result<void> write_parts_at(std::uint64_t offset, std::span<const Bytes> parts) override {
    std::uint64_t bytes = 0;
    for (const Bytes part : parts) bytes += part.size();
    return notes_.timed("write " + kind_, bytes,
                        [&] { return file_->write_parts_at(offset, parts); });
  }
  Result<void> truncate(std::uint64_t bytes) override { return file_->truncate(bytes); }
  Result<void> reserve(std::uint64_t bytes) override {
    return notes_.timed("reserve " + kind_, bytes, [&] { return file_->reserve(bytes); });
  }
  Result<std::uint64_t> size() override { return file_->size(); }
  Result<void> sync() override {
    return notes_.timed("sync " + kind_, 0, [&] { return file_->sync(); });
  }
  void start_writeback(std::uint64_t offset, std::uint64_t bytes) override {
    file_->start_writeback(offset, bytes);
  }
  Result<std::unique_ptr<FileMapping>> map(std::uint64_t bytes) override {
    return file_->map(bytes);
  }

 private:
  std::unique_ptr<File> file_;
  std::string kind_;
  Notes& notes_;
};

class NotedFiles final : public Files {
 public:
  explicit NotedFiles(Notes& notes) : notes_(notes) {}
  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, OpenMode mode) override {
    FL_TRY(auto file, posix_files().open(path, mode));
    const std::string name = path.filename().string();
    return std::make_unique<NotedFile>(std::move(file), name.substr(0, name.find_first_of("-.")),
                                       notes_);
  }
  Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return posix_files().rename(from, to);
  }
  Result<void> remove(const std::filesystem::path& path) override {
    return notes_.timed("remove", 0, [&] { return posix_files().remove(path); });
  }
  bool can_map() const override { return posix_files().can_map(); }
  bool exists(const std::filesystem::path& path) override { return posix_files().exists(path); }
  Result<std::vector<std::string>> list(const std::filesystem::path& folder) override {
    return posix_files().list(folder);
  }
  Result<void> make_folder(const std::filesystem::path& folder) override {
    return posix_files().make_folder(folder);
  }
  Result<void> sync_folder(const std::filesystem::path& folder) override {
    return notes_.timed("sync folder", 0, [&] { return posix_files().sync_folder(folder); });
  }

 private:
  Notes& notes_;
};

struct Options {
  std::uint64_t parameters = 40'000'000;
  int threads = 2;
  int rounds = 6;
  std::vector<std::string> specs = {"none", "ecuq:2+ef", "topk:0.01+ef", "kbit:4", "eden:1"};
  std::filesystem::path folder = "client-bench-state";
  bool refused = false;
};

RunLayout layout_of(std::uint64_t parameters) {
  RunLayout layout;
  layout.all = Layout::make(std::vector<TensorSpec>{
                                {"weight", {static_cast<std::int64_t>(parameters / 1000), 1000}}})
                   .value();
  layout.parameter_elements = layout.model_elements = layout.all.elements();
  return layout;
}

/// The parts of saving an update, as a client tells them to the server.
void print_parts(const wire::UploadBegin& saved) {
  const double files = saved.save_seconds() - saved.encode_seconds() - saved.residual_seconds() -
                       saved.digest_seconds() - saved.sync_seconds();
  fmt::print("    coding {:.1f} ms, residual {:.1f}, digest {:.1f}, sync {:.1f}, files {:.1f}\n",
             saved.encode_seconds() * 1e3, saved.residual_seconds() * 1e3,
             saved.digest_seconds() * 1e3, saved.sync_seconds() * 1e3, files * 1e3);
}

/// One client's updates with a codec; the first ones warm up.
Result<void> measure(const Options& options, const std::string& spec, const RunLayout& layout,
                     const std::vector<float>& made) {
  std::filesystem::remove_all(options.folder);
  Notes notes;
  NotedFiles files(notes);
  FL_TRY(auto state, client::ClientState::open(files, options.folder, options.threads));
  FL_CHECK(state.enter_run("bench"));
  FL_TRY(const auto codec, codec::parse_codec(spec));
  Spent least{1e9, 1e9};
  Spent settling{1e9, 1e9};
  for (int round = 1; round <= options.rounds; ++round) {
    FL_TRY(auto update, state.scratch().borrow(made.size()));
    FL_CHECK(client::copy_values(made, update));
    wire::UploadBegin begin;
    begin.set_task(round);
    begin.set_round(static_cast<std::uint32_t>(round));
    begin.set_codec(spec);
    notes.clear();
    const Watch watch(CLOCK_PROCESS_CPUTIME_ID);
    FL_CHECK(state.save_update(layout, update, *codec,
                               codec::CodeInputs(static_cast<std::uint64_t>(round)), begin));
    const Spent spent = watch.spent();
    const wire::UploadBegin saved = state.pending()->begin;
    const bool is_last = round == options.rounds;
    if (is_last)
      fmt::print("{}: {:.0f} ms of processor, {:.0f} ms", spec,
                 std::min(least.cpu, spent.cpu) * 1e3, std::min(least.wall, spent.wall) * 1e3);
    if (round > 2) least = {std::min(least.wall, spent.wall), std::min(least.cpu, spent.cpu)};
    const Watch settle(CLOCK_PROCESS_CPUTIME_ID);
    if (options.refused && round % 2 == 0) {
      FL_CHECK(state.settle_unused(layout));
    } else {
      FL_CHECK(state.settle_accepted());
    }
    const Spent settled = settle.spent();
    settling = {std::min(settling.wall, settled.wall), std::min(settling.cpu, settled.cpu)};
    if (is_last) {
      fmt::print("; settling {:.0f} ms of processor. The last update:\n", settling.cpu * 1e3);
      print_parts(saved);
      notes.print();
    }
    state.scratch().give_back(std::move(update));
  }
  std::filesystem::remove_all(options.folder);
  return {};
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  CLI::App app{"What a client spends on an update beside training it"};
  app.add_option("--parameters", options.parameters)->capture_default_str();
  app.add_option("--threads", options.threads)->capture_default_str();
  app.add_option("--rounds", options.rounds, "The least of those after the second one counts")
      ->capture_default_str();
  app.add_option("--spec", options.specs, "Codecs")->capture_default_str();
  app.add_option("--folder", options.folder, "Where the state lies")->capture_default_str();
  app.add_flag("--refused", options.refused, "Every second update does not count");
  CLI11_PARSE(app, count, arguments);
  const RunLayout layout = layout_of(options.parameters);
  std::vector<float> made(layout.all.elements());
  kernels().gaussian(1, 1, 0, made.data(), made.size());
  for (float& value : made) value *= 1e-3F;
  fmt::print("{} parameters, {} threads\n", made.size(), options.threads);
  for (const std::string& spec : options.specs) {
    if (const auto done = measure(options, spec, layout, made); !done) {
      fmt::print(stderr, "{}: {}\n", spec, done.error().message());
      return 1;
    }
  }
  return 0;
}
