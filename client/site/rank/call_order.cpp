// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/call_order.hpp"

#include "client/learn/data/random.hpp"

#include <fmt/format.h>

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace fl::site {

namespace {

/// A rank tells three numbers of its next call: the digest of its calls up to this one, the number
/// of the name, and the bytes.
constexpr std::int64_t told_values = 3;

constexpr std::array<std::string_view, 5> names = {"sum", "broadcast", "all-gather", "all-to-all",
                                                   "barrier"};

std::int64_t number_of(std::string_view operation) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == operation) return static_cast<std::int64_t>(i);
  return -1;
}

std::string text_of_call(const std::int64_t* call) {
  const auto number = static_cast<std::size_t>(call[1]);
  const std::string_view name = number < names.size() ? names[number] : "a call";
  return call[2] == 0 ? std::string(name) : fmt::format("{} of {} bytes", name, call[2]);
}

}  // namespace

CallOrder::CallOrder(c10::intrusive_ptr<c10d::Backend> backend, torch::Device device,
                     std::chrono::milliseconds timeout, Await await)
    : backend_(std::move(backend)), device_(device), timeout_(timeout), await_(std::move(await)) {}

void CallOrder::check(const char* operation, std::uint64_t bytes) {
  const std::int64_t number = number_of(operation);
  digest_ = mix_seeds(mix_seeds(digest_, static_cast<std::uint64_t>(number + 1)), bytes);
  ++calls_;
  torch::Tensor mine =
      torch::tensor({static_cast<std::int64_t>(digest_), number, static_cast<std::int64_t>(bytes)},
                    torch::kInt64);
  torch::Tensor all = torch::empty({backend_->getSize() * told_values}, torch::kInt64);
  mine = mine.to(device_);
  all = all.to(device_);
  await_(*backend_->_allgather_base(all, mine, {.timeout = timeout_}));
  all = all.cpu();
  const auto* const calls = all.const_data_ptr<std::int64_t>();
  const std::int64_t* const own = calls + backend_->getRank() * told_values;
  for (int rank = 0; rank < backend_->getSize(); ++rank) {
    const std::int64_t* const other = calls + rank * told_values;
    if (other[0] == own[0]) continue;
    throw std::runtime_error(
        fmt::format("ranks are about to make different calls, as number {}: rank {} {}, rank {} {}",
                    calls_, backend_->getRank(), text_of_call(own), rank, text_of_call(other)));
  }
}

}  // namespace fl::site
