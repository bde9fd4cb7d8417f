// SPDX-License-Identifier: Apache-2.0
// The safetensors file format: eight bytes with the length of a JSON header, the header, then the
// bytes of the tensors without gaps. PyTorch users open such a file with one line. We read and
// write F32, F16, BF16 and F64. The header of a file is checked completely before its data is used.
//
// Only the File has state; any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"
#include "shared/params/layout.hpp"
#include "shared/params/write_values.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fl {

inline constexpr std::size_t safetensors_header_bytes_max = 64 << 20;
/// In our own files the data begins at a multiple of a page, so that it can be mapped.
inline constexpr std::size_t safetensors_data_alignment = 4096;

using Metadata = std::vector<std::pair<std::string, std::string>>;

enum class ElementType { f32, f16, bf16, f64 };

/// "F32", "F16", "BF16" or "F64", as a file names it; nothing for another text.
[[nodiscard]] std::optional<ElementType> parse_element_type(std::string_view text);

/// The bytes that come before the data in a file that holds a flat fp32 vector of `layout`: length,
/// JSON, and spaces up to a multiple of `alignment` bytes, which must be a multiple of 8. The
/// caller then writes the bytes of the vector, in any pieces. Bytes in `metadata` that are not
/// UTF-8 become U+FFFD. With `types`, one for each tensor, the data has these instead of fp32.
[[nodiscard]] std::string safetensors_header(const Layout& layout, const Metadata& metadata,
                                             std::size_t alignment = safetensors_data_alignment,
                                             std::span<const ElementType> types = {});

/// Writes a whole file of `layout` with the given element types, one for each tensor. `values` has
/// layout.elements() elements, which are rounded to nearest; too large a value becomes infinite.
/// What the file held before is overwritten, so that its blocks are used again.
[[nodiscard]] Result<void> write_safetensors(File& file, const Layout& layout,
                                             std::span<const float> values,
                                             std::span<const ElementType> types,
                                             const Metadata& metadata = {});

/// Writes a whole file in fp32, which replaces the file at `path`: after a crash there is either
/// the old file or the new one, complete.
[[nodiscard]] Result<void> replace_safetensors(Files& files, const std::filesystem::path& path,
                                               const Layout& layout, std::span<const float> values,
                                               const Metadata& metadata = {});

/// Rounds values to their tensors' types and back, in place: those of the elements from `first` on.
void round_to_types(const Layout& layout, std::span<const ElementType> types, std::uint64_t first,
                    std::span<float> values);

struct SafetensorsInfo {
  Layout layout;                     // The tensors in the order of the data.
  std::vector<ElementType> types;    // The type of each tensor of the layout.
  std::vector<std::uint64_t> begin;  // The offset in the file of each tensor, in bytes.
  Metadata metadata;                 // Sorted by key.
};

/// Reads and checks the header. Skips the int64 tensors named num_batches_tracked, in which
/// PyTorch's BatchNorm counts its batches. Errors: corrupt (not a safetensors file, or impossible
/// sizes, offsets or names), too_large, invalid_input (an element type that we don't read; the
/// message names the tensor), and those of the File.
[[nodiscard]] Result<SafetensorsInfo> read_safetensors_header(File& file);

/// Whether a file with this header has the tensors of `wanted`: what read_safetensors() checks
/// before it reads.
[[nodiscard]] Result<void> check_tensors(
    const SafetensorsInfo& info, const Layout& wanted,
    const std::function<bool(const std::string&)>& may_be_left = nullptr);

/// Reads the tensors of `wanted` by name, in whatever order the file has them, into
/// out[0, wanted.elements()) as fp32. invalid_input: a tensor is missing or has another shape, or
/// the file has a tensor that is not in `wanted` and for which may_be_left(name) is not true; then
/// `out` is unchanged. After an error of the File, `out` is partly written. Values are not checked:
/// they may be NaN or infinite.
[[nodiscard]] Result<void> read_safetensors(
    File& file, const Layout& wanted, std::span<float> out,
    const std::function<bool(const std::string&)>& may_be_left = nullptr);

/// Reads the tensors of `wanted` piece by piece, in their order. Errors also: those of `take`.
[[nodiscard]] Result<void> read_safetensors_pieces(File& file, const Layout& wanted,
                                                   const WriteValues& take);

}  // namespace fl
