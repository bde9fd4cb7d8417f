// SPDX-License-Identifier: Apache-2.0
// The CodecDevice (kernels/codec_device.hpp) of a CUDA device. Each slot has its own CUDA stream,
// device memory and page-locked host buffers, so that the copies of one slot run beside the kernels
// of the other. Work on whole vectors has a third stream. No stream waits for other work of the
// process.
#pragma once

#include "kernels/codec_device.hpp"

#include <memory>

namespace fl::cuda {

/// Uses the current device. Takes 17 MB of its memory now, and more with the work: up to 0.66 MB
/// for each block of a batch, in all at most an eighth of what is free now or 84 MB; as much as the
/// longest vector that copy() got; and the factors of products. Page-locked host memory is as large
/// as the tallies and the coded batch. If there is too little now, returns null and sets `error` to
/// the text of the CUDA error.
[[nodiscard]] std::unique_ptr<CodecDevice> make_codec_device(const char*& error);

}  // namespace fl::cuda
