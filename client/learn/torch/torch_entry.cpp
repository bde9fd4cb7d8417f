// SPDX-License-Identifier: Apache-2.0
// The only exported symbol of libfl-torch.so.
#include "client/learn/torch/torch_predictor.hpp"
#include "client/learn/torch/torch_trainer.hpp"
#include "client/learn/torch_library.hpp"

extern "C" [[gnu::visibility("default")]] const fl::TorchEntry fl_torch_entry = {
    fl::torch_library_version, &fl::make_torch_trainer, &fl::predict_by_torch, &fl::torch_devices};
