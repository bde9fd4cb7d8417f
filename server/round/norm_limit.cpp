// SPDX-License-Identifier: Apache-2.0
#include "server/round/norm_limit.hpp"

#include "shared/base/error.hpp"

#include <algorithm>
#include <utility>

namespace fl::server {

SortedNorms::SortedNorms(std::vector<double> norms) : norms_(std::move(norms)) {
  std::ranges::sort(norms_);
}

void SortedNorms::add(double norm) { norms_.insert(std::ranges::upper_bound(norms_, norm), norm); }

void SortedNorms::remove(double norm) {
  const auto place = std::ranges::lower_bound(norms_, norm);
  FL_ASSERT(place != norms_.end() && *place == norm);
  norms_.erase(place);
}

double SortedNorms::median() const {
  return norms_.size() < norms_to_judge_min ? 0 : norms_[norms_.size() / 2];
}

RoundNorms::RoundNorms(std::map<std::string, double>& past, double limit)
    : past_(&past), limit_(limit) {
  std::vector<double> all;
  all.reserve(past.size());
  for (const auto& [client, norm] : past) all.push_back(norm);
  of_all_ = SortedNorms(std::move(all));
}

void RoundNorms::add(const std::string& client, double norm) {
  FL_ASSERT(!cohort_.contains(client));
  if (const auto before = past_->find(client); before != past_->end())
    of_all_.remove(before->second);
  cohort_[client] = norm;
  of_cohort_.add(norm);
  of_all_.add(norm);
}

void RoundNorms::refuse(const std::string& client) {
  const auto refused = cohort_.extract(client);
  FL_ASSERT(!refused.empty());
  of_cohort_.remove(refused.mapped());
  (*past_)[client] = refused.mapped();  // The norm stays in of_all_.
}

bool RoundNorms::fits(double norm, double median) const {
  return median == 0 || norm <= limit_ * median;
}

JudgedNorm RoundNorms::judge(double norm) const {
  const double median = of_all_.median();
  return {fits(norm, median) ? NormVerdict::fits : NormVerdict::waits, median};
}

JudgedNorm RoundNorms::judge_at_end(double norm) {
  if (!median_at_end_) {
    const bool is_cohort_enough = of_cohort_.count() >= norms_to_judge_min;
    median_at_end_ = is_cohort_enough ? of_cohort_.median() : of_all_.median();
  }
  return {fits(norm, *median_at_end_) ? NormVerdict::fits : NormVerdict::too_large,
          *median_at_end_};
}

}  // namespace fl::server
