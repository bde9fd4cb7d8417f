#include "server/apply.hpp"

#include "kernels/kernels.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/codec/payload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl {

namespace {

constexpr std::uint64_t block_elements = 1 << 18;

std::string carry_name(Round version) { return fmt::format("round-{:06}.carry", version); }

/// w' = w + step for one block; refuses what is not finite.
Result<void> add_block(const StepJob& job, std::uint64_t first, std::span<const float> step,
                       std::span<float> values, CheckpointWriter& out) {
  FL_CHECK(read_values(job.base, first, values));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += step[i];
  const Scan scan = kernels().scan(values.data(), values.size());
  if (scan.first_bad < values.size()) {
    return Error(Errc::invalid_input, fmt::format("the new model would not be finite at {}",
                                                  job.layout.describe(first + scan.first_bad)));
  }
  return out.append(values);
}

Result<CheckpointRecord> apply_exactly(const StepJob& job, CheckpointWriter& out) {
  const auto weight = static_cast<double>(job.sums.total_weight());
  std::vector<float> step(std::min(block_elements, job.layout.elements()));
  std::vector<float> values(step.size());
  for (std::uint64_t first = 0; first < job.layout.elements(); first += block_elements) {
    const auto count =
        static_cast<std::size_t>(std::min(block_elements, job.layout.elements() - first));
    const std::span part(step.data(), count);
    job.sums.mean(first, weight, part);
    FL_CHECK(add_block(job, first, part, std::span(values.data(), count), out));
  }
  return out.finish();
}

/// The step of the round plus what earlier codes lost.
Result<std::vector<float>> whole_step(const StepJob& job) {
  std::vector<float> step(job.layout.elements());
  job.sums.mean(0, static_cast<double>(job.sums.total_weight()), step);
  const auto path = job.folder / carry_name(job.base.record.version);
  if (!job.files.exists(path)) return step;
  FL_TRY(const auto carry, job.files.open(path, OpenMode::read));
  std::vector<float> block(std::min(block_elements, job.layout.elements()));
  for (std::uint64_t first = 0; first < step.size(); first += block_elements) {
    const std::span part(block.data(), static_cast<std::size_t>(std::min<std::uint64_t>(
                                           block.size(), step.size() - first)));
    FL_CHECK(carry->read_exactly(first * sizeof(float), std::as_writable_bytes(part)));
    for (std::size_t i = 0; i < part.size(); ++i) step[first + i] += part[i];
  }
  return step;
}

Result<CheckpointRecord> apply_coded(const StepJob& job, CheckpointWriter& out) {
  const Round version = job.base.record.version + 1;
  FL_TRY(std::vector<float> step, whole_step(job));
  FL_TRY(const auto delta, job.files.open(job.folder / delta_name(version), OpenMode::truncate));
  FileSink sink(*delta);
  FL_TRY(const std::uint64_t delta_bytes,
         job.downlink.encode(job.layout, step, job.seed + version, sink));
  FileSource source(*delta);
  FL_TRY(auto reader, PayloadReader::open(source, delta_bytes, job.layout));
  std::vector<float> decoded;
  std::vector<float> values;
  for (std::uint64_t index = 0; index < reader.blocks(); ++index) {
    const Block block = reader.block(index);
    decoded.resize(block.elements);
    values.resize(block.elements);
    FL_TRY([[maybe_unused]] const Scan scan, reader.decode(index, decoded));
    FL_CHECK(add_block(job, block.flat, decoded, values, out));
    for (std::size_t i = 0; i < decoded.size(); ++i) step[block.flat + i] -= decoded[i];
  }
  FL_CHECK(delta->sync());
  FL_CHECK(job.files.write_atomically(job.folder / carry_name(version),
                                      std::as_bytes(std::span<const float>(step))));
  failpoint("delta.synced");
  // finish() syncs the folder, and with it the names of all three files.
  FL_TRY(CheckpointRecord record, out.finish());
  record.delta_file = delta_name(version);
  record.delta_bytes = delta_bytes;
  // The carry of the version before last is of no use to any restart.
  if (version >= 2) FL_CHECK(job.files.remove(job.folder / carry_name(version - 2)));
  return record;
}

}  // namespace

Result<CheckpointRecord> make_next_version(const StepJob& job) {
  FL_ASSERT(job.sums.total_weight() > 0);
  FL_TRY(auto out, CheckpointWriter::create(job.files, job.folder, job.base.record.version + 1,
                                            job.layout, job.facts));
  // An exact code of the step saves nothing over the model itself, so it is not written.
  return job.downlink.canonical() == "none" ? apply_exactly(job, out) : apply_coded(job, out);
}

}  // namespace fl
