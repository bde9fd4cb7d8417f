// Training and evaluation of the built-in image models with libtorch: mini-batch SGD on the CPU or
// on one CUDA device. No libtorch in this header. On one machine, with the same number of threads
// and on the CPU, the same (weights, settings, data) give the same update bit for bit.
#pragma once

#include "client/learn/data/data.hpp"
#include "client/learn/trainer.hpp"

#include <memory>

namespace fl {

/// A trainer of options.model on `data`, on options.device. Sets the number of libtorch's threads
/// for the whole process to options.threads. Errors, invalid_input: a model without a module,
/// images that aren't 28 x 28, "cuda" where there is none, an unknown precision, several
/// threads of hogwild on a GPU; internal: libtorch
/// itself failed.
///
/// train(): w -= lr * v, v = momentum * v + g, where g is the gradient of the mean cross-entropy of
/// the batch + weight_decay * w + proximal_mu * (w - w_global). The reported loss is the
/// cross-entropy alone. Epoch e visits the examples in the order
/// shuffled_indices(n, mix_seeds(settings.seed, client_seed), e); the last batch of an epoch may be
/// shorter. With settings.accumulate a batch is so many times as long, and is gone through in parts
/// of batch_size. With options.precision bf16 or fp16 the model runs as under PyTorch's autocast;
/// with fp16 the loss has a scale (loss_scale.hpp), and a step whose gradient overflows is not
/// taken: the next batch is in its place. Weight decay and momentum are as in PyTorch's SGD, the
/// proximal term is FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization
/// in Heterogeneous Networks", 2020, section 3.2.
///
/// With options.hogwild N > 1 the round's steps are taken by N threads on the same weights without
/// locks, each with its own order of the examples, gradient and momentum: Niu, Recht, Re, Wright,
/// "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent", 2011,
/// algorithm 1. A write may be lost, and no two trainings give the same update.
[[nodiscard]] Result<std::unique_ptr<Trainer>> make_torch_trainer(const LearnOptions& options,
                                                                  LocalData data);

}  // namespace fl
