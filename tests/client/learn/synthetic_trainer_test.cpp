// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/random.hpp"
#include "client/learn/learn_options.hpp"
#include "kernels/kernels.hpp"
#include "shared/params/model_table.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace {

std::unique_ptr<fl::Trainer> synthetic(std::uint64_t n, std::uint64_t client_seed = 0) {
  return fl::make_trainer(
             {.model = "synthetic:" + std::to_string(n), .data = "", .client_seed = client_seed})
      .value();
}

std::vector<float> update_of(fl::Trainer& trainer, const fl::TrainSettings& settings) {
  const std::vector<float> global(trainer.layout().elements());
  std::vector<float> update(global.size(), -100.0f);
  const auto report = trainer.train(global, settings, {}, update, {});
  CHECK(report->examples == trainer.train_examples());
  CHECK(report->steps == 1);
  return update;
}

}  // namespace

TEST_CASE("the synthetic trainer has the layout and initial weights of the model table") {
  const auto trainer = synthetic(1234);
  CHECK(trainer->layout().digest() == fl::builtin_layout("synthetic:1234")->digest());
  CHECK(trainer->initial_weights(7).value() ==
        fl::builtin_initial_weights("synthetic:1234", 7).value());
  CHECK(trainer->holdout_examples() == 0);
  CHECK(trainer->evaluate(trainer->initial_weights(7).value(), {})->examples == 0);
}

// The update is the Gaussian stream that the header specifies, also beyond one piece of 2^20.
TEST_CASE("updates are Gaussian values that depend on client, round and seed") {
  constexpr std::size_t n = (1 << 20) + 77;
  const auto trainer = synthetic(n, 5);
  const auto update = update_of(*trainer, {.round = 3, .seed = 11});
  std::vector<float> expected(n);
  fl::kernels().gaussian(fl::mix_seeds(11, 5), 3, 0, expected.data(), n);
  CHECK(update == expected);
  CHECK(update != update_of(*trainer, {.round = 4, .seed = 11}));
  CHECK(update != update_of(*trainer, {.round = 3, .seed = 12}));
  CHECK(update != update_of(*synthetic(n, 6), {.round = 3, .seed = 11}));
}

TEST_CASE("a stop request ends synthetic training") {
  const auto trainer = synthetic(10);
  std::stop_source stop;
  stop.request_stop();
  std::vector<float> values(10);
  const auto report = trainer->train(values, {}, {}, values, stop.get_token());
  REQUIRE(report.has_error());
  CHECK(report.error().code() == fl::Errc::cancelled);
}

TEST_CASE("make_trainer() refuses unknown models and wrong options, and names them") {
  const auto expect = [](const fl::LearnOptions& options, std::string_view words) {
    const auto trainer = fl::make_trainer(options);
    REQUIRE(trainer.has_error());
    CAPTURE(trainer.error().message());
    CHECK(trainer.error().message().find(words) != std::string::npos);
  };
  expect({.model = "resnet", .data = ""}, "unknown model \"resnet\"");
  expect({.model = "synthetic:", .data = ""}, "synthetic:");
  expect({.model = "synthetic:0", .data = ""}, "synthetic:0");
  expect({.model = "synthetic:5", .data = "fashion-mnist"}, "takes no data");
  expect({.model = "synthetic:5", .data = "", .evaluate_only = true}, "can't be evaluated");
#ifdef FL_TORCH_BUILT
  expect({.model = "lenet", .data = ""}, "this model needs --data");
#else
  expect({.model = "lenet", .data = ""}, "needs libtorch");
#endif
}
