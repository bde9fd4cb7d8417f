// The CodecDevice (kernels/codec_device.hpp) of a CUDA device. A slot is a stream of its own, which
// waits for nothing else of the process, with its memory there and its page-locked buffers here, so
// that one slot's copies go on beside the other's kernels. What is done of whole vectors has a
// third stream.
#pragma once

#include "kernels/codec_device.hpp"

#include <memory>

namespace fl::cuda {

/// Takes about 34 MB of the current device's memory for each slot and 17 MB besides, and 5 MB,
/// page-locked, of the host's for each slot; later what copy() and the factors of a product take.
/// Null and the error, as error_text() would name it,
/// where that can't be had.
[[nodiscard]] std::unique_ptr<CodecDevice> make_codec_device(const char*& error);

}  // namespace fl::cuda
