// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/agreement.hpp"
#include "client/site/rank/hooks/hooks.hpp"
#include "client/site/rank/hooks/loops.hpp"
#include "client/site/rank/hooks/payload_sums.hpp"
#include "kernels/kernels.hpp"
#include "shared/base/limits.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/codec/encode/feedback.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/spec/parser.hpp"

#include <ATen/Parallel.h>
#include <algorithm>
#include <map>
#include <optional>

namespace fl::site {

namespace {

/// Stands for the length of a payload where a rank's values can't be coded.
constexpr std::int64_t not_coded = -1;

class CodecHook final : public GradientHook {
 public:
  explicit CodecHook(std::shared_ptr<const codec::Codec> codec) : codec_(std::move(codec)) {}

  void reduce(Bucket& bucket, Ranks& ranks) override {
    const Layout layout = layout_of(bucket);
    const torch::Tensor gradient = bucket.gradient.cpu();  // No copy if it is there.
    torch::Tensor velocity;
    const std::span<const float> values = values_of(gradient, bucket, velocity);
    codec::CodecState& state = states_[bucket.key()];
    codec::CodecState next = state;
    payload_.clear();
    codec::VectorSink sink(payload_);
    const bool is_coded = all_finite(values) &&
                          codec_
                              ->encode(layout, values, seeds_of(bucket, ranks), sink,
                                       codec::block_elements_of_codec, &next, at::get_num_threads())
                              .has_value();
    const auto lengths =
        gather(is_coded ? static_cast<std::int64_t>(payload_.size()) : not_coded, ranks);
    if (std::ranges::count(lengths, not_coded) > 0) {
      divide_and_sum(bucket.gradient, ranks);
    } else {
      // From here on the gradient's own values are not needed.
      torch::Tensor sum = gradient.zero_();
      add_payloads(payload_, lengths, codec_->payload_bytes_max(layout), layout, span_of(sum),
                   ranks, lanes(ranks), limits::hook_slice_bytes,
                   keep_lost(values, bucket, velocity));
      bucket.gradient.copy_(sum.div_(ranks.size()));
      state = std::move(next);
    }
    if (bucket.is_last) ++step_;
  }

  [[nodiscard]] HookState save() const override {
    HookState saved = state_with_step(step_);
    residuals_.save(saved);
    velocities_.save(saved);
    for (const auto& [key, state] : states_) {
      const std::vector<std::byte> bytes = state.bytes();
      saved.emplace_back("codec/" + key,
                         torch::from_blob(const_cast<std::byte*>(bytes.data()),
                                          {static_cast<std::int64_t>(bytes.size())}, torch::kUInt8)
                             .clone());
    }
    return saved;
  }
  void load(const HookState& saved) override {
    step_ = step_in(saved);
    states_.clear();
    for (const auto& [name, values] : saved) {
      if (!name.starts_with("codec/")) continue;
      if (auto state = codec::CodecState::parse(bytes_of(values))) states_[name.substr(6)] = *state;
    }
    residuals_.load(saved);
    velocities_.load(saved);
  }

 private:
  /// As many as the rank has threads and can use.
  Lanes& lanes(const Ranks& ranks) {
    constexpr std::uint64_t most_of_rank = 4;
    if (!lanes_)
      lanes_.emplace(at::get_num_threads(),
                     most_of_rank * static_cast<std::uint64_t>(ranks.size()));
    return *lanes_;
  }

  static Bytes bytes_of(const torch::Tensor& values) {
    return {static_cast<const std::byte*>(values.const_data_ptr()),
            static_cast<std::size_t>(values.numel())};
  }

  static Layout layout_of(const Bucket& bucket) {
    std::vector<TensorSpec> specs;
    for (const Bucket::Part& part : bucket.parts)
      specs.push_back({.name = std::to_string(part.parameter), .shape = part.shape});
    return Layout::make(specs).value();
  }

  /// All ranks have the same shared seed; each step and bucket has another one.
  [[nodiscard]] codec::CodeInputs seeds_of(const Bucket& bucket, const Ranks& ranks) const {
    const std::uint64_t shared = static_cast<std::uint64_t>(step_) << 32 | bucket.index << 12;
    return {shared + 1 + static_cast<std::uint64_t>(ranks.rank()), shared};
  }

  /// Returns what is coded: the gradient or, with error feedback, a sum in room_. With momentum it
  /// sets `velocity`, which stays undefined otherwise.
  std::span<const float> values_of(const torch::Tensor& gradient, const Bucket& bucket,
                                   torch::Tensor& velocity) {
    if (!codec_->error_feedback()) return span_of(gradient);
    torch::Tensor values = gradient;
    if (codec_->momentum() > 0) {
      values = gradient.clone();
      velocity = velocities_.of(bucket).clone();
      codec::add_velocity(span_of(values), span_of(velocity), codec_->momentum());
    }
    room_.resize(std::max(room_.size(), static_cast<std::size_t>(values.numel())));
    const auto sums = std::span(room_).first(static_cast<std::size_t>(values.numel()));
    add_kept(span_of(values), span_of(residuals_.of(bucket)), codec_->residual_kept(), sums);
    return sums;
  }

  /// Keeps what each block of the own payload has lost.
  UseOwnBlock keep_lost(std::span<const float> values, const Bucket& bucket,
                        const torch::Tensor& velocity) {
    if (!codec_->error_feedback()) return {};
    const std::span<float> residual = span_of(residuals_.of(bucket));
    std::span<float> kept;
    if (velocity.defined()) {
      velocities_.of(bucket).copy_(velocity);
      kept = span_of(velocities_.of(bucket));
    }
    return [=](const codec::Block& block, std::span<const float> sent) {
      subtract_values(values.subspan(block.flat, sent.size()), sent,
                      residual.subspan(block.flat, sent.size()));
      if (kept.empty()) return;
      for (std::size_t i = 0; i < sent.size(); ++i)
        if (sent[i] != 0) kept[block.flat + i] = 0;
    };
  }

  std::shared_ptr<const codec::Codec> codec_;
  std::int64_t step_ = 0;
  Residuals residuals_{"residual/", torch::kCPU};
  Residuals velocities_{"velocity/", torch::kCPU};
  std::map<std::string, codec::CodecState> states_;  // By Bucket::key().
  // Memory that is used again, because the system is slow to give new pages.
  std::vector<float> room_;
  std::vector<std::byte> payload_;
  std::optional<Lanes> lanes_;
};

}  // namespace

Result<std::unique_ptr<GradientHook>> make_codec_hook(std::string_view spec) {
  FL_TRY(auto codec, codec::parse_codec(spec));
  if (codec->is_delta())
    return Error(Errc::invalid_input, "codec:" + std::string(spec) +
                                          ": \"delta+\" can't code gradients, which have no last "
                                          "accepted value; use \"+ef\"");
  return std::unique_ptr<GradientHook>(std::make_unique<CodecHook>(std::move(codec)));
}

std::unique_ptr<GradientHook> make_qsgd(SpecOptions& options) {
  const std::string bits(options.word("bits", {"8", "7", "6", "5", "4", "3", "2"}));
  const std::string spec = "qsgd:" + std::to_string((1 << (std::stoi(bits) - 1)) - 1);
  return make_codec_hook(spec).value();
}

}  // namespace fl::site
