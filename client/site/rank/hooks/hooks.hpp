// SPDX-License-Identifier: Apache-2.0
// The functions that make the gradient hooks; each is in the file of its hook. W is the number of
// ranks and n the number of elements of a bucket. "Sends" is per rank, bucket and step, in bytes; a
// sum of m bytes over the ranks sends 2 m (W - 1) / W, a gather of m bytes of each rank
// (W - 1) m. "As PyTorch" means the same bits as the hook of that name in
// torch.distributed.algorithms.ddp_comm_hooks of PyTorch 2.11, over Gloo.
//
// Hooks that lose something by compressing first agree on whether all ranks' values are finite (a
// sum of 8 bytes). If not, the bucket goes as plain fp32, so that all ranks see the same infinite
// or undefined mean, and what the hook keeps stays as it was.
#pragma once

#include "client/site/rank/gradient_hook.hpp"
#include "shared/base/error.hpp"
#include "shared/base/spec/spec_options.hpp"

#include <memory>
#include <string_view>

namespace fl::site {

/// Divides, then sums. As PyTorch's allreduce_hook. Sends the sum of 4 n bytes.
[[nodiscard]] std::unique_ptr<GradientHook> make_allreduce(SpecOptions& options);

/// Casts to 16 bits, divides and sums in 16 bits. As PyTorch's fp16_compress_hook and
/// bf16_compress_hook, but a bucket that overflows in fp16 goes as plain fp32. Sends the sum of 2 n
/// bytes; fp16 also agrees on overflows.
[[nodiscard]] std::unique_ptr<GradientHook> make_fp16(SpecOptions& options);
[[nodiscard]] std::unique_ptr<GradientHook> make_bf16(SpecOptions& options);
/// The hook `inner` on the gradients in 16 bits. As PyTorch's fp16_compress_wrapper and
/// bf16_compress_wrapper, but a bucket that overflows goes as plain fp32, without `inner`.
[[nodiscard]] std::unique_ptr<GradientHook> make_16_bits(torch::ScalarType type,
                                                         std::unique_ptr<GradientHook> inner);

/// PowerSGD: Vogels 2019, "PowerSGD: practical low-rank gradient compression for distributed
/// optimization", algorithms 1 and 2, with warm start. As PyTorch's powerSGD_hook with the same
/// settings, but epsilon is 1e-8 by default, so that a gradient of zeros stays zero. Sends the sum
/// of (rows + columns) rank values for each compressed matrix and of the other tensors.
[[nodiscard]] std::unique_ptr<GradientHook> make_powersgd(SpecOptions& options);
/// PowerSGD on the whole bucket as one square matrix. As PyTorch's batched_powerSGD_hook is meant
/// (in 2.11 it fails: it can't resize its bucket). Sends the sum of 2 rank ceil(sqrt(n)) values.
[[nodiscard]] std::unique_ptr<GradientHook> make_batched_powersgd(SpecOptions& options);

/// Min-max quantization to 8 bits, of the bucket as a whole or of rows of `channel` elements, with
/// the arithmetic of PyTorch's quantization_pertensor_hook and quantization_perchannel_hook (which
/// fail over Gloo in 2.11). No error feedback. Sends the gather of n + 8 bytes for each row.
[[nodiscard]] std::unique_ptr<GradientHook> make_quantize(SpecOptions& options);

/// The fraction `keep` of the elements with the largest absolute values, with error feedback: Aji
/// and Heafield 2017, "Sparse communication for distributed gradient descent", section 3. Sends
/// the gather of an index of 4 bytes and a value for each.
[[nodiscard]] std::unique_ptr<GradientHook> make_topk(SpecOptions& options);
/// A random fraction of the elements, the same on all ranks, with error feedback: Stich 2018,
/// "Sparsified SGD with memory", section 2; but with one element in each of equally long stretches,
/// which is faster than any subset. Sends the sum of these values.
[[nodiscard]] std::unique_ptr<GradientHook> make_randk(SpecOptions& options);

/// QSGD with 2^(bits - 1) - 1 levels: Alistarh 2017, "QSGD: communication-efficient SGD via
/// gradient quantization and encoding", section 3. Unbiased, so without error feedback. It is the
/// codec "qsgd" (make_codec_hook()).
[[nodiscard]] std::unique_ptr<GradientHook> make_qsgd(SpecOptions& options);

/// Signs with the mean absolute value of each parameter, with error feedback: Karimireddy 2019,
/// "Error feedback fixes SignSGD and other gradient compression schemes", algorithm 1. Sends the
/// gather of ceil(elements / 8) + 4 bytes for each parameter.
[[nodiscard]] std::unique_ptr<GradientHook> make_sign(SpecOptions& options);

/// 1-bit Adam: Tang 2021, "1-bit Adam: communication efficient large-scale training with Adam's
/// convergence speed", algorithm 1. What it returns is Adam's step, divided by the learning rate:
/// the learner's optimizer must be SGD without momentum and weight decay. In `warmup` steps it is
/// Adam on the mean gradient; then the variance stays as it is, and the ranks exchange signs of
/// their momentum, with error feedback at both ends. Sends the sum of 4 n bytes in the warm-up,
/// later about 2 (n / 8) (W - 1) / W.
[[nodiscard]] std::unique_ptr<GradientHook> make_onebit_adam(SpecOptions& options);

/// Post-local SGD: Lin 2020, "Don't use large mini-batches, use local SGD", section 3. Before step
/// `start` as allreduce; then each group of `group` ranks in turn has the mean of its own
/// gradients, and after every `period` steps the parameters become their mean over all ranks. As
/// PyTorch's post_localSGD_hook and PeriodicModelAverager.
[[nodiscard]] std::unique_ptr<GradientHook> make_post_local_sgd(SpecOptions& options);

/// Any of our codecs (shared/codec/spec/parser.hpp), bucket by bucket; "+ef" and "+dgc" keep what
/// each rank's payloads lost. Each rank sends its payload to all others, which add up what they
/// decode in the order of the ranks. Errors: invalid_input, also for "delta+". Sends (W - 1)
/// payloads and the gather of 8 bytes.
[[nodiscard]] Result<std::unique_ptr<GradientHook>> make_codec_hook(std::string_view spec);

}  // namespace fl::site
