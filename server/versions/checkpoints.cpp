// SPDX-License-Identifier: Apache-2.0
#include "server/versions/checkpoints.hpp"

#include "kernels/kernels.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/params/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <set>

namespace fl::server {

std::string checkpoint_name(Version version) {
  return fmt::format("round-{:06}.safetensors", version);
}
std::string delta_name(Version version) { return fmt::format("round-{:06}.delta", version); }

Version version_in_name(std::string_view name) {
  constexpr std::string_view begin = "round-";
  Version version = 0;
  if (!name.starts_with(begin)) return version;
  const std::string_view digits = name.substr(begin.size());
  std::from_chars(digits.data(), digits.data() + digits.size(), version);
  return version;
}

std::optional<Version> version_of_checkpoint(std::string_view name) {
  const Version version = version_in_name(name);
  return name == checkpoint_name(version) ? std::optional(version) : std::nullopt;
}

Result<CheckpointWriter> CheckpointWriter::create(
    Files& files, const std::filesystem::path& folder, Version version, const Layout& layout,
    std::vector<std::pair<std::string, std::string>> facts) {
  CheckpointWriter writer(files, folder, layout);
  writer.record_.version = version;
  writer.record_.file = checkpoint_name(version);
  FL_CHECK(files.make_folder(folder));
  FL_TRY(writer.file_, files.open(folder / (writer.record_.file + ".tmp"), OpenMode::fresh));
  // Made once, because that takes long with many tensors. The digest, of a fixed length, comes at
  // the end.
  auto metadata = std::move(facts);
  metadata.emplace_back("round", std::to_string(version));
  metadata.emplace_back("digest", Digest().hex());
  writer.header_ = safetensors_header(layout, metadata);
  writer.data_offset_ = writer.header_.size();
  return writer;
}

/// In JSON a quote within a text has a backslash before it, so nothing else reads like this entry.
void CheckpointWriter::put_digest(const Digest& digest) {
  const std::string key = R"("digest":")";
  const std::size_t at = header_.find(key + Digest().hex());
  FL_ASSERT(at != header_.npos);
  header_.replace(at + key.size(), digest.hex().size(), digest.hex());
}

Result<void> CheckpointWriter::append(std::span<const float> values) {
  FL_ASSERT(values.size() <= layout_->elements() - written_);
  const Bytes bytes = std::as_bytes(values);
  const std::uint64_t at = data_offset_ + written_ * sizeof(float);
  FL_CHECK(file_->write_at(at, bytes));
  hasher_.update(bytes);
  written_ += values.size();
  writeback_.reached(*file_, at + bytes.size());
  return {};
}

Result<CheckpointRecord> CheckpointWriter::finish() {
  FL_ASSERT(written_ == layout_->elements());
  record_.digest = hasher_.digest();
  record_.bytes = data_offset_ + layout_->bytes();
  put_digest(record_.digest);
  FL_CHECK(file_->write_at(0, bytes_of(std::string_view(header_))));
  FL_CHECK(file_->truncate(record_.bytes));
  failpoint("checkpoint.written");
  FL_CHECK(file_->sync());
  FL_CHECK(files_->rename(folder_ / (record_.file + ".tmp"), folder_ / record_.file));
  FL_CHECK(files_->sync_folder(folder_));
  failpoint("checkpoint.synced");
  return record_;
}

Result<InitialWeights> read_initial_weights(Files& files, const std::filesystem::path& path,
                                            const Layout& model, const Strategy& strategy) {
  const auto read = [&]() -> Result<InitialWeights> {
    std::vector<TensorSpec> specs;
    std::set<std::string, std::less<>> names;
    for (const auto& tensor : model.tensors()) {
      names.insert(tensor.name);
      if (!strategy.is_personal(tensor.name)) specs.push_back({tensor.name, tensor.shape});
    }
    FL_TRY(const Layout wanted, Layout::make(specs));
    InitialWeights weights{std::vector<float>(wanted.elements()), {}};
    const auto may_be_left = [&](const std::string& name) {
      weights.unused.push_back(name);
      return names.contains(name) || names.contains(parameter_of_shared(name));
    };
    FL_TRY(const auto file, files.open(path, OpenMode::read));
    FL_CHECK(read_safetensors(*file, wanted, weights.values, may_be_left));
    const auto& values = weights.values;
    const std::size_t bad = kernels().scan(values.data(), values.size()).first_bad;
    if (bad < values.size())
      return Error(Errc::invalid_input, fmt::format("{} is {}", wanted.describe(bad), values[bad]));
    return weights;
  };
  auto weights = read();
  if (!weights) return weights.error().at("--initial-weights " + path.string());
  return weights;
}

Result<void> check_digest(const ModelVersion& version, const Layout& layout) {
  FL_TRY([[maybe_unused]] const auto open, version.file.open());
  Hasher hasher;
  std::vector<float> values(std::min<std::uint64_t>(layout.elements(), 1 << 18));
  for (std::uint64_t first = 0; first < layout.elements(); first += values.size()) {
    const std::span part(values.data(), std::min(values.size(), layout.elements() - first));
    FL_CHECK(read_values(version, first, part));
    hasher.update(std::as_bytes(part));
  }
  if (hasher.digest() == version.record.digest) return {};
  return Error(
      Errc::corrupt,
      fmt::format("{}: the values are not those that were written (digest {}, {} is in the "
                  "history): put a copy in its place, or begin another run (--new-run)",
                  version.record.file, hasher.digest().hex(), version.record.digest.hex()));
}

Result<std::shared_ptr<const ModelVersion>> open_version(Files& files,
                                                         const std::filesystem::path& folder,
                                                         const CheckpointRecord& record,
                                                         const Layout& layout) {
  const auto path = folder / record.file;
  auto version = std::make_shared<ModelVersion>(files, folder, record);
  FL_TRY(const auto file, version->file.open());
  auto info = read_safetensors_header(*file);
  if (!info) return info.error().at(path.string());
  if (info->layout.digest() != layout.digest()) {
    return Error(Errc::corrupt,
                 fmt::format("{}: its tensors are not those of the run's model", path.string()));
  }
  FL_TRY(const std::uint64_t size, file->size());
  if (size != info->begin.front() + layout.bytes()) {
    return Error(Errc::corrupt, fmt::format("{}: {} bytes, {} expected", path.string(), size,
                                            info->begin.front() + layout.bytes()));
  }
  version->data_offset = info->begin.front();
  if (!record.delta_file.empty()) FL_CHECK(version->delta.open());
  return std::shared_ptr<const ModelVersion>(std::move(version));
}

Result<std::shared_ptr<const ModelVersion>> open_written(Files& files,
                                                         const std::filesystem::path& folder,
                                                         const CheckpointRecord& record,
                                                         const Layout& layout) {
  auto version = std::make_shared<ModelVersion>(files, folder, record);
  FL_TRY(const auto file, version->file.open());
  FL_TRY(const std::uint64_t size, file->size());
  if (size != record.bytes) {
    return Error(Errc::corrupt, fmt::format("{}: {} bytes, {} expected",
                                            (folder / record.file).string(), size, record.bytes));
  }
  version->data_offset = record.bytes - layout.bytes();
  if (!record.delta_file.empty()) FL_CHECK(version->delta.open());
  return std::shared_ptr<const ModelVersion>(std::move(version));
}

Result<void> read_values(const ModelVersion& version, std::uint64_t first, std::span<float> out) {
  FL_TRY(const auto file, version.file.open());
  return file->read_exactly(version.data_offset + first * sizeof(float),
                            std::as_writable_bytes(out));
}

}  // namespace fl::server
