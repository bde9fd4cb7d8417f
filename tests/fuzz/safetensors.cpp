// SPDX-License-Identifier: Apache-2.0
// Fuzzes a safetensors file. If its header is accepted, all its tensors must be readable.
#include "shared/params/safetensors.hpp"

#include "tests/fuzz/memory_path.hpp"
#include "tests/fuzz/rows.hpp"

using namespace fl;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryPath memory(std::as_bytes(std::span(data, size)));
  const auto file = posix_files().open(memory.path(), OpenMode::read).value();
  const auto info = read_safetensors_header(*file);
  if (!info) {
    const Errc code = info.error().code();
    FL_ASSERT(code == Errc::corrupt || code == Errc::too_large || code == Errc::invalid_input);
    return 0;
  }
  const auto& tensors = info->layout.tensors();
  FL_ASSERT(info->types.size() == tensors.size() && info->begin.size() == tensors.size());
  FL_ASSERT(info->layout.elements() <= size / 2);
  const auto values = fuzz::decode_with_all_rows(
      info->layout.elements(),
      [&](std::span<float> out) { return read_safetensors(*file, info->layout, out); });
  FL_ASSERT(values);
  return 0;
}
