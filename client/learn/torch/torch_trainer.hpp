// SPDX-License-Identifier: Apache-2.0
// Trains and evaluates the built-in models with libtorch: mini-batch SGD on the CPU or on one
// CUDA device. On the CPU of one machine, with the same number of threads, the same weights,
// settings and data give the same update bit for bit. This header includes nothing of libtorch.
#pragma once

#include "client/learn/data/data.hpp"
#include "client/learn/learn_options.hpp"
#include "client/learn/torch_devices.hpp"

#include <memory>

namespace fl {

/// Makes a trainer of options.model with `data` on options.device. Sets the number of libtorch's
/// threads for the whole process to options.threads. Errors. invalid_input: a model without a
/// module, data that do not fit it, a missing CUDA device, an unknown precision, or Hogwild on
/// a GPU. internal: libtorch itself failed.
///
/// train() does w -= lr * v with v = momentum * v + g. g is the gradient of the batch's mean
/// loss + weight_decay * w + proximal_mu * (w - w_global). Weight decay and momentum are
/// as in PyTorch's SGD. The proximal term is FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith,
/// "Federated Optimization in Heterogeneous Networks", 2020, section 3.2. The reported loss is
/// that of torch_task.hpp only.
///
/// Epoch e visits the examples in the order
/// shuffled_indices(n, mix_seeds(settings.seed, client_seed), e). The last batch of an epoch may be
/// shorter. With settings.accumulate = A a batch has A * batch_size examples and is computed in
/// parts of batch_size.
///
/// With options.precision bf16 or fp16 the model runs as under PyTorch's autocast. With fp16 the
/// loss is scaled (loss_scale.hpp). A step whose gradient overflows is skipped, and the next batch
/// takes its place.
///
/// With options.keep_moments the optimizer's moments begin where those of the client's round before
/// ended, also after a restart; they are in options.state (kept_moments.hpp).
///
/// With options.hogwild = N > 1, N threads take the round's steps on the same weights without
/// locks, each with its own order of examples, gradient and momentum: Niu, Recht, Re, Wright,
/// "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent", 2011,
/// algorithm 1. Writes may be lost, so results are not reproducible.
[[nodiscard]] Result<std::unique_ptr<Trainer>> make_torch_trainer(const LearnOptions& options,
                                                                  LocalData data);
/// The devices that libtorch finds on this machine (torch_devices.hpp).
[[nodiscard]] TorchDevices torch_devices();

class StepSync;
/// A rank of a site: train() is called on all ranks with the same arguments and data, and all make
/// the same update. A step has batch_size examples a rank; with N ranks it does what one would do
/// with batches of N * batch_size, up to rounding and to BatchNorm, which sees a rank's own
/// examples; its statistics are averaged. Only rank 0 keeps moments on the disk. `together` must
/// outlive the trainer. Errors of train(): unavailable if another rank is lost. invalid_input:
/// Hogwild.
[[nodiscard]] Result<std::unique_ptr<Trainer>> make_torch_trainer(const LearnOptions& options,
                                                                  LocalData data,
                                                                  StepSync* together);

}  // namespace fl
