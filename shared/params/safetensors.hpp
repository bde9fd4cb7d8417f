// The safetensors file format, which PyTorch users open with one line: eight bytes with the length
// of a JSON header, the header, then the tensors' bytes without gaps. We write F32; we read F32,
// F16 and BF16. Foreign files are checked completely before a byte of theirs is used.
//
// Pure functions apart from the File; any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace fl {

inline constexpr std::size_t safetensors_header_bytes_max = 64 << 20;
/// Where our own files begin their data: on a page, so that it can be mapped and written directly.
inline constexpr std::size_t safetensors_data_alignment = 4096;

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// What stands before the data of a file that holds `layout` as one flat fp32 vector: length, JSON,
/// and spaces up to a multiple of `alignment` bytes (itself a multiple of 8). The data, written
/// after it in any pieces, is the vector's bytes. Bytes that are not UTF-8 in `metadata` become
/// U+FFFD.
[[nodiscard]] std::string safetensors_header(const Layout& layout, const Metadata& metadata,
                                             std::size_t alignment = safetensors_data_alignment);

enum class ElementType { f32, f16, bf16 };

struct SafetensorsInfo {
  Layout layout;                     // In the order of the data.
  std::vector<ElementType> types;    // One for each of the layout's tensors.
  std::vector<std::uint64_t> begin;  // Where each tensor begins, from the start of the file, bytes.
  Metadata metadata;                 // Sorted by key.
};

/// What a BatchNorm of PyTorch has counted its batches in, an int64 named num_batches_tracked, is
/// passed over. Errors: corrupt (not a safetensors file; sizes, offsets or names that can't be),
/// too_large, invalid_input (a type of element that we don't read, with the tensor's name), and the
/// File's.
[[nodiscard]] Result<SafetensorsInfo> read_safetensors_header(File& file);

/// Reads the tensors of `wanted`, by name, in whatever order the file has them, into
/// out[0, wanted.elements()), as fp32. Missing and mis-shaped tensors are invalid_input, and so are
/// others but those that `may_be_left` names; `out` is then untouched. After an error of the File
/// it is partly written. Values are not looked at: they may be NaN or infinite.
[[nodiscard]] Result<void> read_safetensors(
    File& file, const Layout& wanted, std::span<float> out,
    const std::function<bool(const std::string&)>& may_be_left = nullptr);

}  // namespace fl
