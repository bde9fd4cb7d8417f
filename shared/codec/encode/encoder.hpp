// SPDX-License-Identifier: Apache-2.0
// The encoding of one vector, block by block, on several threads or with a device. Codec::encode()
// says what comes of it.
#pragma once

#include "shared/base/error.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/core/byte_io.hpp"
#include "shared/codec/core/codec_state.hpp"
#include "shared/codec/device/device_coder.hpp"
#include "shared/codec/encode/rule.hpp"

#include <cstdint>
#include <span>

namespace fl::codec {

/// A vector and how to encode it. All of it must outlive the call.
struct VectorToEncode {
  std::span<const Rule> rules;           // Those of the codec.
  std::span<const Rule* const> rule_of;  // One of them for each tensor; null: it is sent dense.
  const BlockMap* map;
  std::span<const float> x;
  CodeInputs inputs;
  CodecState* state;  // May be null.
  int threads;        // 0: one per core.
  bool adds_lanes;    // Levels of "lanes" are added up, so what is sent dense must fit (lanes.cpp).
  bool is_plain;      // Values are only copied (Codec::is_plain), which is not worth many threads.
  DeviceCopy device;  // Without a coder the CPU does everything.
};

/// Writes the payload and returns its bytes, as Codec::encode() does.
[[nodiscard]] Result<std::uint64_t> encode_vector(const VectorToEncode& what, PayloadSink& out);

}  // namespace fl::codec
