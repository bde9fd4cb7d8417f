// SPDX-License-Identifier: Apache-2.0
// What a method adds to a client's training, against the same computed with plain vectors: vectors
// in memory and in files, models with personal tensors and without.
#include "client/agent/local_method.hpp"

#include "client/learn/blockwise_trainer.hpp"
#include "shared/base/io/scratch_folder.hpp"
#include "shared/codec/spec/parser.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/stored.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::client;
using namespace fl::codec;
namespace {

using client::LocalMethod;
using client::StoredValues;

/// Moves each weight by a known function of all that it is given. It reads and writes in pieces of
/// seven, from the end to the beginning.
class KnownTrainer final : public BlockwiseTrainer {
 public:
  const Layout& layout() const override { return layout_; }
  std::uint64_t train_examples() const override { return 10; }
  std::uint64_t holdout_examples() const override { return 5; }
  Abilities abilities() const override { return can; }

  Result<void> make_initial(std::uint64_t seed, ValueSink& out) const override {
    return fill(out, [&](std::uint64_t i) { return initial(seed, i); });
  }
  Result<TrainReport> train_blocks(const ValueSource& global, const TrainSettings& settings,
                                   const ValueSource* correction, ValueSink& update,
                                   std::stop_token) override {
    mus.push_back(settings.proximal_mu);
    const auto weights = all(global);
    const auto added = correction == nullptr ? std::vector<float>() : all(*correction);
    FL_CHECK(fill(
        update, [&](std::uint64_t i) { return moved(weights[i], added.empty() ? 0 : added[i]); }));
    return TrainReport{.examples = 10, .steps = 4, .loss = 0.5, .seconds = 1};
  }
  Result<void> write_gradient(const ValueSource& weights, const TrainSettings&, ValueSink& out,
                              std::stop_token) override {
    const auto values = all(weights);
    return fill(out, [&](std::uint64_t i) { return 3 * values[i]; });
  }
  Result<EvalReport> evaluate_blocks(const ValueSource& weights, std::stop_token) override {
    evaluated.push_back(all(weights));
    return EvalReport{.examples = 5, .loss = 1};
  }

  static float initial(std::uint64_t seed, std::uint64_t i) {
    return static_cast<float>(seed) + 0.5F * static_cast<float>(i % 17);
  }
  static float moved(float weight, float added) { return -0.25F * weight - 0.5F * added + 1; }

  Abilities can = Abilities::all();
  std::vector<double> mus;
  std::vector<std::vector<float>> evaluated;

 private:
  static std::vector<float> all(const ValueSource& source) {
    std::vector<float> values(source.elements());
    for (std::size_t end = values.size(); end > 0;) {
      const std::size_t count = std::min<std::size_t>(7, end);
      end -= count;
      source.read(end, std::span(values).subspan(end, count)).value();
    }
    return values;
  }
  template <class Value>
  Result<void> fill(ValueSink& out, const Value& value) const {
    for (std::uint64_t end = layout_.elements(); end > 0;) {
      const auto count = std::min<std::uint64_t>(7, end);
      end -= count;
      std::vector<float> piece(count);
      for (std::uint64_t i = 0; i < count; ++i) piece[i] = value(end + i);
      FL_CHECK(out.write(end, piece));
    }
    return {};
  }

  Layout layout_ = Layout::make({{"body.weight", {20, 30}},
                                 {"head.bias", {5}},
                                 {"head.weight", {5, 20}},
                                 {"norm.running_mean", {30}}})
                       .value();
};

/// A method on a client's state, with all vectors in memory or in files.
struct Client {
  Files& files;
  ClientState state;
  KnownTrainer trainer;
  LocalMethod method;
  TrainSettings settings;

  Client(Files& disk, const std::filesystem::path& folder, const std::string& spec)
      : files(disk),
        state(disk, folder, 1, 0),
        method((state.load().value(), LocalMethod::make(spec, trainer, state).value())) {
    settings.lr = 0.1;
    settings.proximal_mu = method.strategy().proximal_mu();
  }

  [[nodiscard]] const RunLayout& layout() const { return method.layout(); }
  [[nodiscard]] StoredValues stored(const std::vector<float>& values) const {
    auto out = state.scratch().borrow(values.size()).value();
    client::copy_values(values, out).value();
    return out;
  }
  struct Trained {
    std::vector<float> update, kept;
    wire::UploadBegin begin;
  };
  Trained train(const std::vector<float>& version) {
    const auto from = stored(version);
    auto kept = method.next_local_values(from, 9).value();
    auto update = state.scratch().borrow(version.size()).value();
    Trained out;
    method.train(settings, from, kept.values, update, out.begin, {}).value();
    out.update = values_of(update, version.size());
    out.kept = values_of(kept.values, kept.values.size());
    return out;
  }
};

template <class Test>
void on_both_disks(const char* spec, const Test& test) {
  CAPTURE(std::string(spec));
  MemFiles memory;
  Client in_memory(memory, "/state", spec);
  test(in_memory);
  const ScratchFolder folder = ScratchFolder::make("method").value();
  Client in_files(posix_files(), folder.path(), spec);
  test(in_files);
}

std::vector<float> version_of(const Client& client) {
  std::vector<float> version(client.layout().all.elements());
  for (std::size_t i = 0; i < version.size(); ++i) version[i] = 0.125F * static_cast<float>(i % 23);
  return version;
}

TEST_CASE("without a method of its own, a client sends what the trainer makes") {
  on_both_disks("fedavg", [](Client& client) {
    const auto version = version_of(client);
    const auto trained = client.train(version);
    for (std::size_t i = 0; i < version.size(); ++i)
      REQUIRE(trained.update[i] == KnownTrainer::moved(version[i], 0));
    CHECK(trained.kept.empty());
    CHECK(trained.begin.examples() == 10);
    CHECK(trained.begin.steps() == 4);
    CHECK(trained.begin.loss() == 0.5);
  });
}

TEST_CASE("SCAFFOLD adds the server's control minus the client's, and moves both") {
  on_both_disks("scaffold", [](Client& client) {
    const auto version = version_of(client);
    const std::size_t model = client.layout().model_elements;
    const std::size_t parameters = client.layout().parameter_elements;
    REQUIRE(version.size() == model + parameters);
    const auto trained = client.train(version);
    const std::span control = std::span(version).subspan(model);
    for (std::size_t i = 0; i < model; ++i) {
      const float added = i < parameters ? control[i] : 0;  // The client's own begins with zeros.
      REQUIRE(trained.update[i] == KnownTrainer::moved(version[i], added));
    }
    const auto scale = static_cast<float>(1 / (0.1 * 4));
    for (std::size_t i = 0; i < parameters; ++i) {
      const float next = 0 - control[i] - trained.update[i] * scale;
      REQUIRE(trained.kept[i] == next);
      REQUIRE(trained.update[model + i] == next);
    }
  });
}

TEST_CASE("personal tensors are joined with the version, move, and do not travel") {
  on_both_disks("fedavg:personal=head.*", [](Client& client) {
    const auto version = version_of(client);
    CHECK(version.size() == 600 + 30);
    const auto trained = client.train(version);
    REQUIRE(trained.kept.size() == 105);
    for (std::size_t i = 0; i < version.size(); ++i)
      REQUIRE(trained.update[i] == KnownTrainer::moved(version[i], 0));
    for (std::size_t i = 0; i < 105; ++i) {
      const float before = KnownTrainer::initial(9, 600 + i);
      REQUIRE(trained.kept[i] == before + KnownTrainer::moved(before, 0));
    }
    const auto own = client.method.own_tensors("toy");
    REQUIRE(own);
    CHECK(own->tensors.size() == 2);
    CHECK(own->local_values == 105);
  });
}

TEST_CASE("personal tensors get no correction") {
  on_both_disks("feddyn:alpha=0.5,personal=head.weight", [](Client& client) {
    const auto version = version_of(client);
    const auto trained = client.train(version);
    CHECK(client.trainer.mus.back() == 0.5);
    const std::size_t parameters = client.layout().parameter_elements;
    CHECK(trained.kept.size() == parameters + 100);
    for (std::size_t i = 0; i < 100; ++i) {
      const float before = KnownTrainer::initial(9, 605 + i);
      REQUIRE(trained.kept[parameters + i] == before + KnownTrainer::moved(before, 0));
    }
  });
}

TEST_CASE("Ditto trains a model of the client's own, pulled to the version") {
  on_both_disks("ditto:lambda=0.5", [](Client& client) {
    const auto version = version_of(client);
    const auto trained = client.train(version);
    REQUIRE(client.trainer.mus.size() == 2);
    CHECK(client.trainer.mus[0] == 0.5);
    CHECK(client.trainer.mus[1] == 0);
    for (std::size_t i = 0; i < version.size(); ++i) {
      // It begins as the version, so the pull is 0.
      REQUIRE(trained.kept[i] == version[i] + KnownTrainer::moved(version[i], 0));
      REQUIRE(trained.update[i] == KnownTrainer::moved(version[i], 0));
    }
    const auto kept = client.stored(trained.kept);
    const auto measured = client.method.evaluate(client.stored(version), kept, {}).value();
    REQUIRE(measured.own);
    CHECK(client.trainer.evaluated.at(0) == trained.kept);
    CHECK(client.trainer.evaluated.at(1) == version);
  });
}

TEST_CASE("the local values of a client are those of its last accepted update") {
  on_both_disks("fedavg:personal=head.*", [](Client& client) {
    const auto first = client.stored(version_of(client));
    auto kept = client.method.next_local_values(first, 9).value();
    const std::vector<float> fives(105, 5.0F);
    client::copy_values(fives, kept.values).value();
    auto update = client.stored(version_of(client));
    client.state
        .save_update(client.layout(), update, *parse_codec("none").value(), 1, {}, std::move(kept))
        .value();
    const auto before = client.method.own_values(first, 9).value();
    CHECK(before.values()[0] == KnownTrainer::initial(9, 600));
    client.state.settle_accepted().value();
    const auto after = client.method.own_values(first, 9).value();
    CHECK(std::ranges::equal(after.values(), fives));
  });
}

TEST_CASE("version 0 is the trainer's without personal tensors, and zeros behind it") {
  on_both_disks("scaffold:personal=head.bias", [](Client& client) {
    auto values = client.state.scratch().borrow(client.layout().all.elements()).value();
    client.method.write_initial(9, values).value();
    const std::size_t model = client.layout().model_elements;
    REQUIRE(model == 600 + 100 + 30);
    for (std::size_t i = 0; i < model; ++i)
      REQUIRE(values.values()[i] == KnownTrainer::initial(9, i < 600 ? i : i + 5));
    CHECK(std::ranges::all_of(values.values().subspan(model), [](float v) { return v == 0; }));
  });
}

TEST_CASE("settings that the trainer does not follow are refused, with the ability's name") {
  struct Case {
    double TrainSettings::*setting;
    bool Trainer::Abilities::*lacks;
    const char* name;
  };
  for (const Case& refused :
       {Case{&TrainSettings::clip_norm, &Trainer::Abilities::clip_norm, "'clip_norm'"},
        Case{&TrainSettings::proximal_mu, &Trainer::Abilities::proximal, "'proximal'"}}) {
    CAPTURE(std::string(refused.name));
    MemFiles files;
    Client client(files, "/state", "fedavg");
    const auto version = version_of(client);
    client.trainer.can.*refused.lacks = false;
    client.train(version);
    client.settings.*refused.setting = 1;
    const auto from = client.stored(version);
    auto kept = client.method.next_local_values(from, 9).value();
    auto update = client.state.scratch().borrow(version.size()).value();
    wire::UploadBegin begin;
    const auto trained = client.method.train(client.settings, from, kept.values, update, begin, {});
    REQUIRE_FALSE(trained);
    CHECK(trained.error().message().find(refused.name) != std::string::npos);
    client.trainer.can = Trainer::Abilities::all();
    client.train(version);
  }
}

TEST_CASE("a trainer that lacks what the method needs is refused, with the ability's name") {
  struct Case {
    const char* spec;
    bool Trainer::Abilities::*lacks;
    const char* name;
  };
  for (const Case& refused : {Case{"fednova", &Trainer::Abilities::optimizer, "'optimizer'"},
                              Case{"scaffold", &Trainer::Abilities::correction, "'correction'"},
                              Case{"fedprox:mu=0.1", &Trainer::Abilities::proximal, "'proximal'"},
                              Case{"ditto", &Trainer::Abilities::correction, "'correction'"}}) {
    CAPTURE(std::string(refused.spec));
    MemFiles files;
    ClientState state(files, "/state");
    state.load().value();
    KnownTrainer trainer;
    CHECK(LocalMethod::make(refused.spec, trainer, state));
    trainer.can.*refused.lacks = false;
    const auto made = LocalMethod::make(refused.spec, trainer, state);
    REQUIRE_FALSE(made);
    CHECK(made.error().code() == Errc::invalid_input);
    CHECK(made.error().message().find(refused.name) != std::string::npos);
  }
}

}  // namespace
}  // namespace fl::test
