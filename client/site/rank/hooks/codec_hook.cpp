// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/agreement.hpp"
#include "client/site/rank/hooks/hooks.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/codec/encode/feedback.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/spec/parser.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

namespace fl {

namespace {

/// A length of a payload that can't be: this rank's values can't be coded.
constexpr std::int64_t not_coded = -1;

class CodecHook final : public GradientHook {
 public:
  explicit CodecHook(std::shared_ptr<const Codec> codec) : codec_(std::move(codec)) {}

  void reduce(Bucket& bucket, Ranks& ranks) override {
    const Layout layout = layout_of(bucket);
    torch::Tensor update = bucket.gradient.cpu().clone();
    const std::span<float> values = span_of(update);
    torch::Tensor velocity;
    if (codec_->momentum() > 0) {
      velocity = velocities_.of(bucket).clone();
      add_velocity(values, span_of(velocity), codec_->momentum());
    }
    if (codec_->error_feedback())
      add_residual(values, span_of(residuals_.of(bucket)), codec_->residual_kept());

    CodecState& state = states_[bucket.key()];
    CodecState next = state;
    std::vector<std::byte> payload;
    VectorSink sink(payload);
    const bool is_coded =
        std::ranges::all_of(values, [](float value) { return std::isfinite(value); }) &&
        codec_
            ->encode(layout, values, seeds_of(bucket, ranks), sink, block_elements_of_codec, &next)
            .has_value();
    const auto lengths =
        gather(is_coded ? static_cast<std::int64_t>(payload.size()) : not_coded, ranks);
    if (std::ranges::count(lengths, not_coded) > 0) {
      divide_and_sum(bucket.gradient, ranks);
    } else {
      const torch::Tensor own = torch::from_blob(
          payload.data(), {static_cast<std::int64_t>(payload.size())}, torch::kUInt8);
      add_up(gather_bytes(own.to(ranks.device()), lengths, ranks), layout, bucket);
      keep(payload, layout, bucket, values, velocity);
      state = std::move(next);
    }
    if (bucket.is_last) ++step_;
  }

  [[nodiscard]] HookState save() const override {
    HookState saved = {{"step", torch::tensor({step_}, torch::kInt64)}};
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
    step_ = 0;
    states_.clear();
    for (const auto& [name, values] : saved) {
      if (name == "step") step_ = values.item<std::int64_t>();
      if (!name.starts_with("codec/")) continue;
      if (auto state = CodecState::parse(bytes_of(values))) states_[name.substr(6)] = *state;
    }
    residuals_.load(saved);
    velocities_.load(saved);
  }

 private:
  static std::span<float> span_of(torch::Tensor& values) {
    return {values.data_ptr<float>(), static_cast<std::size_t>(values.numel())};
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

  /// The shared seed is the same on all ranks; each step and bucket has others.
  [[nodiscard]] Seeds seeds_of(const Bucket& bucket, const Ranks& ranks) const {
    const std::uint64_t shared = static_cast<std::uint64_t>(step_) << 32 | bucket.index << 12;
    return {shared + 1 + static_cast<std::uint64_t>(ranks.rank()), shared};
  }

  static void add_up(const std::vector<torch::Tensor>& payloads, const Layout& layout,
                     Bucket& bucket) {
    torch::Tensor sum = torch::zeros({bucket.gradient.numel()}, torch::kFloat32);
    for (const torch::Tensor& sent : payloads) {  // In the order of the ranks.
      const torch::Tensor payload = sent.cpu();
      SpanSource source(bytes_of(payload));
      PayloadReader reader =
          PayloadReader::open(source, static_cast<std::uint64_t>(payload.numel()), layout).value();
      add_decoded(span_of(sum), reader).value();
    }
    bucket.gradient.copy_(sum.div_(static_cast<double>(payloads.size())));
  }

  void keep(const std::vector<std::byte>& payload, const Layout& layout, const Bucket& bucket,
            std::span<const float> values, torch::Tensor& velocity) {
    if (!codec_->error_feedback()) return;
    SpanSource source(payload);
    PayloadReader reader = PayloadReader::open(source, payload.size(), layout).value();
    keep_residual(values, reader, span_of(residuals_.of(bucket))).value();
    if (!velocity.defined()) return;
    stop_sent(span_of(velocity), reader).value();
    velocities_.of(bucket).copy_(velocity);
  }

  std::shared_ptr<const Codec> codec_;
  std::int64_t step_ = 0;
  Residuals residuals_{"residual/", torch::kCPU};
  Residuals velocities_{"velocity/", torch::kCPU};
  std::map<std::string, CodecState> states_;  // By the bucket's key.
};

}  // namespace

Result<std::unique_ptr<GradientHook>> make_codec_hook(std::string_view spec) {
  FL_TRY(auto codec, parse_codec(spec));
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

}  // namespace fl
