// SPDX-License-Identifier: Apache-2.0
// The settings of local training arrive as they were in each message that has them. All values
// differ from the defaults and from each other, so a field that is lost or exchanged shows.
#include "shared/wire/train_messages.hpp"

#include "shared/base/limits.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/train_settings.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace fl::test {
namespace {

TEST_CASE("an offer has all settings of the training") {
  const TrainSettings settings = unusual_settings();
  wire::Offer offer;
  offer.set_task(5);
  write_train_settings(settings, offer);
  CHECK(read_train_settings(offer).value() == settings);
  CHECK(offer.task() == 5);
  // The fields that clients of other programs read.
  CHECK(offer.round() == settings.round);
  CHECK(offer.local_epochs() == settings.local_epochs);
  CHECK(offer.local_steps() == settings.local_steps);
  CHECK(offer.local_seconds() == settings.local_seconds);
  CHECK(offer.batch_size() == settings.batch_size);
  CHECK(offer.accumulate() == settings.accumulate);
  CHECK(offer.optimizer() == "adamw:beta1=0.75,epsilon=0.001");
  CHECK(offer.lr() == settings.lr);
  CHECK(offer.momentum() == settings.momentum);
  CHECK(offer.weight_decay() == settings.weight_decay);
  CHECK(offer.proximal_mu() == settings.proximal_mu);
  CHECK(offer.deadline_ms() == 290);
  CHECK(offer.seed() == settings.seed);
}

TEST_CASE("a deadline travels in whole milliseconds") {
  wire::Offer offer;
  for (std::uint64_t ms = 0; ms < 100'000; ms += 37) {
    offer.set_deadline_ms(ms);
    wire::Offer again;
    write_train_settings(read_train_settings(offer).value(), again);
    CHECK(again.deadline_ms() == ms);
  }
}

TEST_CASE("an offer whose optimizer nobody knows is refused") {
  wire::Offer offer;
  offer.set_optimizer("lamb");
  CHECK(read_train_settings(offer).error().code() == Errc::invalid_input);
}

TEST_CASE("an offer of larger batches than a client takes is refused by name") {
  wire::Offer offer;
  offer.set_batch_size(limits::batch_size_max);
  offer.set_accumulate(limits::accumulate_max);
  CHECK(read_train_settings(offer));
  offer.set_accumulate(limits::accumulate_max + 1);
  CHECK(read_train_settings(offer).error().message() ==
        "accumulate 65537: this client's limit is 65536");
  offer.set_batch_size(limits::batch_size_max + 1);
  CHECK(read_train_settings(offer).error().message() ==
        "batch_size 65537: this client's limit is 65536");
}

TEST_CASE("an optimizer is written as the shortest spec that parses to it") {
  const std::vector<std::string> specs{
      "sgd",   "nesterov",       "adam",
      "adamw", "adam:beta1=0.8", "adamw:beta1=0.8,beta2=0.99,epsilon=1e-06"};
  for (const std::string& spec : specs)
    CHECK(optimizer_spec(parse_optimizer(spec).value()) == spec);
  CHECK(optimizer_spec(parse_optimizer("adam:beta1=0.9,beta2=0.999").value()) == "adam");
  CHECK(optimizer_spec(parse_optimizer("").value()) == "sgd");
}

}  // namespace
}  // namespace fl::test
