// SPDX-License-Identifier: Apache-2.0
#include "server/versions/make_version.hpp"

#include "kernels/kernels.hpp"
#include "shared/base/async/parallel.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/codec/payload/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl::server {

namespace {

/// Step, values and sums of a block together are 1 MiB, so that they stay in a core's cache.
constexpr std::uint64_t step_elements = 1 << 16;
/// Bounds the memory on machines with many cores: a thread has up to 6 MB of blocks under way.
constexpr int codec_threads_max = 8;

std::string carry_name(Version version) { return fmt::format("round-{:06}.carry", version); }
std::string state_name(Version version) { return fmt::format("round-{:06}.state", version); }
std::string mean_name(Version version) { return fmt::format("round-{:06}.mean", version); }

/// The server's step, read block by block from the front. It runs the strategy, which reads its old
/// state and writes its new one.
class Steps {
 public:
  static Result<Steps> open(const StepJob& job) {
    Steps steps(job);
    const Version base = job.base.record.version;
    if (job.keeps_mean) {
      FL_TRY(steps.mean_, job.files.open(job.to / mean_name(base + 1), OpenMode::truncate));
    }
    if (job.strategy.state_vectors() == 0) return steps;
    if (base > 0) {
      FL_TRY(steps.before_, job.files.open(job.folder / state_name(base), OpenMode::read));
    }
    FL_TRY(steps.after_, job.files.open(job.to / state_name(base + 1), OpenMode::truncate));
    return steps;
  }

  /// How many elements the block that begins at `first` has; 0 behind the last block. No block
  /// mixes parameters, statistics and shared vector.
  [[nodiscard]] std::size_t block_at(std::uint64_t first) const {
    const RunLayout& layout = job_->layout;
    const std::uint64_t end = first < layout.parameter_elements ? layout.parameter_elements
                              : first < layout.model_elements   ? layout.model_elements
                                                                : layout.all.elements();
    return static_cast<std::size_t>(std::min(step_elements, end - first));
  }

  Result<void> read(std::uint64_t first, std::span<float> step) {
    FL_CHECK(job_->mean(first, step));
    if (mean_) {
      FL_CHECK(mean_->write_at(first * sizeof(float), std::as_bytes(std::span<const float>(step))));
    }
    if (first >= job_->layout.model_elements) {
      const auto part = static_cast<float>(job_->strategy.shared_step(job_->round));
      const auto grown = static_cast<float>(job_->strategy.shared_keep(job_->round) - 1);
      for (float& value : step) value *= part;
      if (grown == 0) return {};
      values_.resize(step.size());
      FL_CHECK(read_values(job_->base, first, values_));
      for (std::size_t i = 0; i < step.size(); ++i) step[i] += grown * values_[i];
      return {};
    }
    if (first >= job_->layout.parameter_elements) return {};
    std::vector<std::span<float>> state;
    values_.resize(job_->strategy.state_vectors() * step.size());
    for (unsigned vector = 0; vector < job_->strategy.state_vectors(); ++vector) {
      state.push_back(std::span(values_).subspan(vector * step.size(), step.size()));
      FL_CHECK(read_state(vector, first, state.back()));
    }
    job_->strategy.step(job_->round, state, step);
    for (unsigned vector = 0; vector < state.size(); ++vector) {
      FL_CHECK(after_->write_at(place(vector, first),
                                std::as_bytes(std::span<const float>(state[vector]))));
    }
    return {};
  }

  /// Makes the files durable; finish() makes their names durable.
  Result<void> sync() {
    if (mean_) FL_CHECK(mean_->sync());
    return after_ ? after_->sync() : success();
  }

 private:
  explicit Steps(const StepJob& job) : job_(&job) {}

  [[nodiscard]] std::uint64_t place(unsigned vector, std::uint64_t first) const {
    return (vector * job_->layout.parameter_elements + first) * sizeof(float);
  }
  Result<void> read_state(unsigned vector, std::uint64_t first, std::span<float> out) const {
    if (before_) return before_->read_exactly(place(vector, first), std::as_writable_bytes(out));
    std::ranges::fill(out, job_->strategy.initial_state(vector));
    return {};
  }

  const StepJob* job_;
  std::unique_ptr<File> before_;  // None before the first step.
  std::unique_ptr<File> after_;
  std::unique_ptr<File> mean_;
  std::vector<float> values_;
};

/// w' = w + step for one block. A value that is not finite is an error.
Result<void> add_block(const StepJob& job, std::uint64_t first, std::span<const float> step,
                       std::span<float> values, CheckpointWriter& out) {
  FL_CHECK(read_values(job.base, first, values));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += step[i];
  const Scan scan = kernels().scan(values.data(), values.size());
  if (scan.first_bad < values.size()) {
    return Error(Errc::invalid_input, fmt::format("the new model would not be finite at {}",
                                                  job.layout.all.describe(first + scan.first_bad)));
  }
  return out.append(values);
}

Result<CheckpointRecord> apply_exactly(const StepJob& job, Steps& steps, CheckpointWriter& out) {
  std::vector<float> step(std::min(step_elements, job.layout.all.elements()));
  std::vector<float> values(step.size());
  for (std::uint64_t first = 0; first < job.layout.all.elements();) {
    const std::span part(step.data(), steps.block_at(first));
    FL_CHECK(steps.read(first, part));
    FL_CHECK(add_block(job, first, part, std::span(values.data(), part.size()), out));
    first += part.size();
  }
  FL_CHECK(steps.sync());
  return out.finish();
}

/// The step of the round plus the carry: what coding has lost so far.
Result<std::vector<float>> whole_step(const StepJob& job, Steps& steps) {
  std::vector<float> step(job.layout.all.elements());
  const auto path = job.folder / carry_name(job.base.record.version);
  std::unique_ptr<File> carry;
  if (job.files.exists(path)) {
    FL_TRY(carry, job.files.open(path, OpenMode::read));
  }
  std::vector<float> carried;
  for (std::uint64_t first = 0; first < step.size();) {
    const std::span part(step.data() + first, steps.block_at(first));
    FL_CHECK(steps.read(first, part));
    if (carry) {
      carried.resize(part.size());
      FL_CHECK(
          carry->read_exactly(first * sizeof(float), std::as_writable_bytes(std::span(carried))));
      for (std::size_t i = 0; i < part.size(); ++i) part[i] += carried[i];
    }
    first += part.size();
  }
  return step;
}

Result<CheckpointRecord> apply_coded(const StepJob& job, Steps& steps, CheckpointWriter& out) {
  const Version version = job.base.record.version + 1;
  FL_TRY(std::vector<float> step, whole_step(job, steps));
  FL_TRY(const auto delta, job.files.open(job.to / delta_name(version), OpenMode::truncate));
  codec::FileSink sink(*delta);
  FL_TRY(const std::uint64_t delta_bytes,
         job.downlink.encode(job.layout.all, step, job.seed + version, sink,
                             codec::block_elements_of_codec, nullptr,
                             std::min(threads_for(0), codec_threads_max)));
  codec::FileSource source(*delta);
  FL_TRY(auto reader, codec::PayloadReader::open(source, delta_bytes, job.layout.all));
  std::vector<float> decoded;
  std::vector<float> values;
  for (std::uint64_t index = 0; index < reader.blocks(); ++index) {
    const codec::Block block = reader.block(index);
    decoded.resize(block.elements);
    values.resize(block.elements);
    FL_TRY([[maybe_unused]] const Scan scan, reader.decode(index, decoded));
    FL_CHECK(add_block(job, block.flat, decoded, values, out));
    for (std::size_t i = 0; i < decoded.size(); ++i) step[block.flat + i] -= decoded[i];
  }
  FL_CHECK(delta->sync());
  FL_CHECK(steps.sync());
  FL_CHECK(job.files.write_atomically(job.to / carry_name(version),
                                      std::as_bytes(std::span<const float>(step))));
  failpoint("delta.synced");
  // finish() syncs the folder, and with it the names of all files.
  FL_TRY(CheckpointRecord record, out.finish());
  record.delta_file = delta_name(version);
  record.delta_bytes = delta_bytes;
  return record;
}

}  // namespace

Result<CheckpointRecord> make_next_version(const StepJob& job) {
  const Version base = job.base.record.version;
  FL_TRY([[maybe_unused]] const auto held, job.base.file.open());  // Once for all blocks.
  FL_TRY(auto out,
         CheckpointWriter::create(job.files, job.to, base + 1, job.layout.all, job.facts));
  FL_TRY(auto steps, Steps::open(job));
  // An exactly coded step is as large as the model itself, so none is written.
  FL_TRY(CheckpointRecord record, job.downlink.canonical() == "none"
                                      ? apply_exactly(job, steps, out)
                                      : apply_coded(job, steps, out));
  // No restart needs the files of versions before the base.
  if (base > 0 && job.drops_state) {
    for (const std::string& name : state_names(base - 1))
      FL_CHECK(job.files.remove(job.folder / name));
  }
  return record;
}

std::array<std::string, 3> state_names(Version version) {
  return {carry_name(version), state_name(version), mean_name(version)};
}

std::optional<Version> version_of_state(std::string_view name) {
  const Version version = version_in_name(name);
  const auto names = state_names(version);
  return std::ranges::find(names, name) != names.end() ? std::optional(version) : std::nullopt;
}

Result<std::unique_ptr<File>> open_kept_mean(Files& files, const std::filesystem::path& folder,
                                             Version version) {
  const auto path = folder / mean_name(version);
  if (!files.exists(path)) return std::unique_ptr<File>();
  return files.open(path, OpenMode::read);
}

}  // namespace fl::server
