// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/round_moments.hpp"

#include "shared/base/io/file.hpp"
#include "shared/base/log.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace fl {

namespace {

std::int64_t stepped_elements(const HeldParameters& held) {
  return held.stepped(held.weights()).size(0);
}

/// Whether this rank steps a part of the parameters, and others the rest.
bool steps_a_part(const HeldParameters& held) { return stepped_elements(held) < held.parameters(); }

torch::Tensor tensor_of(std::vector<float>& values) {
  return torch::from_blob(values.data(), {static_cast<std::int64_t>(values.size())},
                          torch::kFloat32);
}

}  // namespace

KeptMoments RoundMoments::files_of(const HeldParameters& held) const {
  std::optional<KeptMoments::Part> part;
  if (steps_a_part(held)) part = {together_->member(), together_->members()};
  return {posix_files(), folder_, part};
}

Result<Moments> RoundMoments::before(const std::string& run_key, std::uint32_t round,
                                     const HeldParameters& held) const {
  const std::int64_t elements = stepped_elements(held);
  const bool is_part = steps_a_part(held);
  Moments moments;
  if (is_part || is_first()) {
    // On another machine than the agent's there may be no such folder yet.
    FL_CHECK(posix_files().make_folder(folder_));
    FL_TRY(moments, files_of(held).before(run_key, round, held.stepped_pieces(), elements));
  }
  if (together_ == nullptr) return moments;
  if (is_part)
    drop_unless_all_have(moments);
  else
    broadcast(moments, elements);
  return moments;
}

Result<void> RoundMoments::keep(const std::string& run_key, std::uint32_t round,
                                const HeldParameters& held, const Moments& moments) const {
  if (!steps_a_part(held) && !is_first()) return {};
  return files_of(held).keep(run_key, round, moments, held.stepped_pieces());
}

/// Gives the first rank's moments to all.
void RoundMoments::broadcast(Moments& moments, std::int64_t elements) const {
  torch::Tensor told = torch::tensor(
      {static_cast<std::int64_t>(moments.first.size()),
       static_cast<std::int64_t>(moments.second.size()), static_cast<std::int64_t>(moments.steps)},
      torch::kInt64);
  told = told.to(device_);
  together_->broadcast(told);
  moments.steps = static_cast<std::uint64_t>(told[2].item<std::int64_t>());
  for (const auto& [values, index] : {std::pair(&moments.first, 0), {&moments.second, 1}}) {
    const auto n = told[index].item<std::int64_t>();
    if (n != elements) continue;
    values->resize(static_cast<std::size_t>(n));
    torch::Tensor shared = tensor_of(*values).to(device_);
    together_->broadcast(shared);
    tensor_of(*values).copy_(shared);
  }
}

/// Where ranks were divided in another way, and the files of some are out of reach, all begin anew.
void RoundMoments::drop_unless_all_have(Moments& moments) const {
  const bool has = moments.steps > 0 || !moments.first.empty();
  torch::Tensor having = torch::full({1}, has ? 1 : 0, torch::dtype(torch::kInt64).device(device_));
  together_->sum_of_all(having);
  const auto count = having.item<std::int64_t>();
  if (count == together_->members()) return;
  moments = {};
  if (count > 0 && is_first())
    log_warn("the optimizer's moments begin anew: {} of {} ranks don't find theirs",
             together_->members() - count, together_->members());
}

}  // namespace fl
