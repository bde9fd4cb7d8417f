// SPDX-License-Identifier: Apache-2.0
#include "client/agent/requests.hpp"

#include "shared/base/limits.hpp"

#include <fmt/format.h>

namespace fl::client {

Result<void> check_length(std::string_view what, std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return {};
  return Error(Errc::protocol,
               fmt::format("the name of the server's {} has {} bytes; the limit is {}", what,
                           text.size(), bytes_max));
}

Result<void> Requests::complete(wire::Offer& offer) {
  FL_CHECK(check_length("optimizer", offer.optimizer(), limits::spec_bytes_max));
  FL_CHECK(check_length("codec", offer.codec(), limits::spec_bytes_max));
  if (!offer.initial_digest().empty()) run_initial_ = offer.initial_digest();
  offer.set_initial_digest(run_initial_);
  return {};
}

void Requests::forget_offer(std::int64_t task) {
  if (offer_ && offer_->task() == task) offer_.reset();
}

void Requests::add(const wire::Evaluate& evaluation) {
  if (evaluations_.empty() || evaluations_.back().version() < evaluation.version())
    evaluations_.push_back(evaluation);
  if (evaluations_.size() > limits::evaluations_asked_max) evaluations_.pop_front();
}

void Requests::forget_version(std::uint32_t version) {
  if (!evaluations_.empty() && evaluations_.front().version() == version) evaluations_.pop_front();
  if (offer_ && offer_->version() == version) offer_.reset();
}

void Requests::clear() {
  offer_.reset();
  run_initial_.clear();
  evaluations_.clear();
}

}  // namespace fl::client
