// SPDX-License-Identifier: Apache-2.0
#include "server/versions/export_model.hpp"

#include "server/versions/npz_writer.hpp"
#include "shared/params/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace fl::server {

namespace {

constexpr std::uint64_t piece_elements = 1 << 18;

/// Receives the tensors, one after another.
class ModelSink {
 public:
  virtual ~ModelSink() = default;
  [[nodiscard]] virtual Result<void> begin(const Layout::Tensor& tensor) = 0;
  [[nodiscard]] virtual Result<void> append(std::span<const float> values) = 0;
  [[nodiscard]] virtual Result<void> finish(const Digest& digest) = 0;
};

class NpzSink : public ModelSink {
 public:
  explicit NpzSink(File& file) : writer_(file) {}
  Result<void> begin(const Layout::Tensor& tensor) override {
    return writer_.begin(tensor.name, tensor.shape);
  }
  Result<void> append(std::span<const float> values) override { return writer_.append(values); }
  Result<void> finish(const Digest&) override { return writer_.finish(); }

 private:
  NpzWriter writer_;
};

class SafetensorsSink : public ModelSink {
 public:
  SafetensorsSink(File& file, const Layout& layout, Metadata metadata)
      : file_(file), layout_(layout), metadata_(std::move(metadata)) {
    // A digest has a fixed length, so the header has its size before the values are known.
    end_ = header(Digest()).size();
  }
  Result<void> begin(const Layout::Tensor&) override { return {}; }
  Result<void> append(std::span<const float> values) override {
    FL_CHECK(file_.write_at(end_, std::as_bytes(values)));
    end_ += values.size_bytes();
    return {};
  }
  Result<void> finish(const Digest& digest) override {
    FL_CHECK(file_.write_at(0, bytes_of(header(digest))));
    return file_.truncate(end_);
  }

 private:
  [[nodiscard]] std::string header(const Digest& digest) const {
    Metadata metadata = metadata_;
    std::erase_if(metadata, [](const auto& pair) { return pair.first == "digest"; });
    metadata.emplace_back("digest", digest.hex());
    return safetensors_header(layout_, metadata);
  }

  File& file_;
  const Layout& layout_;
  Metadata metadata_;
  std::uint64_t end_ = 0;
};

std::unique_ptr<ModelSink> make_sink(ModelFormat format, File& file, const Layout& layout,
                                     const Metadata& metadata) {
  if (format == ModelFormat::npz) return std::make_unique<NpzSink>(file);
  return std::make_unique<SafetensorsSink>(file, layout, metadata);
}

/// The tensors of the model itself.
Result<Layout> model_part(const Layout& all) {
  std::set<std::string_view> names;
  for (const auto& tensor : all.tensors()) names.insert(tensor.name);
  std::vector<TensorSpec> specs;
  for (const auto& tensor : all.tensors()) {
    if (!names.contains(parameter_of_shared(tensor.name)))
      specs.push_back({tensor.name, tensor.shape});
  }
  return Layout::make(specs);
}

/// Copies the tensors of `part`, and returns the digest of what was copied. `all` sees every value.
Result<Digest> copy_values(File& from, const SafetensorsInfo& info, const Layout& part,
                           ModelSink& sink, Hasher& all) {
  Hasher copied;
  // The index of the next tensor of `part`; they come in the order of the file.
  std::size_t next = 0;
  std::vector<float> values;
  for (std::size_t t = 0; t < info.layout.tensors().size(); ++t) {
    const auto& tensor = info.layout.tensors()[t];
    const bool is_of_part =
        next < part.tensors().size() && part.tensors()[next].name == tensor.name;
    if (is_of_part) {
      FL_CHECK(sink.begin(tensor));
      ++next;
    }
    for (std::uint64_t done = 0; done < tensor.elements; done += values.size()) {
      values.resize(std::min(piece_elements, tensor.elements - done));
      const auto bytes = std::as_writable_bytes(std::span(values));
      FL_CHECK(from.read_exactly(info.begin[t] + done * sizeof(float), bytes));
      all.update(bytes);
      if (!is_of_part) continue;
      copied.update(bytes);
      FL_CHECK(sink.append(values));
    }
  }
  FL_ASSERT(next == part.tensors().size());
  return copied.digest();
}

}  // namespace

Result<ExportedModel> export_model(Files& files, const std::filesystem::path& folder,
                                   const CheckpointRecord& record, ModelFormat format,
                                   const std::filesystem::path& to, const Metadata& facts) {
  const auto path = folder / record.file;
  FL_TRY(const auto from, files.open(path, OpenMode::read));
  const auto info = read_safetensors_header(*from);
  if (!info) return info.error().at(path.string());
  if (!std::ranges::all_of(info->types, [](auto type) { return type == ElementType::f32; }))
    return Error(Errc::corrupt, fmt::format("{}: it is not a checkpoint of ours", path.string()));
  FL_TRY(const Layout part, model_part(info->layout));
  Digest digest;
  const auto write = [&](File& file) -> Result<void> {
    Metadata metadata = info->metadata;
    metadata.insert(metadata.end(), facts.begin(), facts.end());
    const auto sink = make_sink(format, file, part, metadata);
    Hasher all;
    FL_TRY(digest, copy_values(*from, *info, part, *sink, all));
    if (all.digest() != record.digest) {
      return Error(
          Errc::corrupt,
          fmt::format("{}: the values are not those that were written (digest {}, {} is in "
                      "the history): put a copy in its place, or export another round",
                      path.string(), all.digest().hex(), record.digest.hex()));
    }
    return sink->finish(digest);
  };
  FL_CHECK(files.replace(to, write));
  return ExportedModel{part.tensors().size(), part.elements(), digest};
}

}  // namespace fl::server
