// SPDX-License-Identifier: Apache-2.0
// The CodecDevice (kernels/codec_device.hpp) of a CUDA device. Each slot has its own CUDA stream,
// device memory and page-locked host buffers, so that the copies of one slot run beside the kernels
// of the other. Work on whole vectors has a third stream. No stream waits for other work of the
// process.
#pragma once

#include "kernels/codec_device.hpp"

#include <memory>

namespace fl::cuda {

/// Uses the current device. Takes about 34 MB of its memory for each slot and 17 MB more, and 5 MB
/// of page-locked host memory for each slot. copy() and products take more later. If
/// there is too little, returns null and sets `error` to the text of the CUDA error.
[[nodiscard]] std::unique_ptr<CodecDevice> make_codec_device(const char*& error);

}  // namespace fl::cuda
