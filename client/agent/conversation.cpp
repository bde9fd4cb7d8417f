// SPDX-License-Identifier: Apache-2.0
#include "client/agent/conversation.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"
#include "shared/base/version.hpp"
#include "shared/codec/spec/table.hpp"

#include <fmt/format.h>

#include <utility>

namespace fl::client {

namespace {

/// The Bye of a client that can't take part in the run.
wire::Header parting(std::string reason, const Layout* others) {
  wire::Header header;
  auto& bye = *header.mutable_bye();
  bye.set_cause(wire::Bye::LEAVING);
  bye.set_reason(std::move(reason));
  if (others == nullptr) return header;
  std::size_t bytes = 0;
  for (const Layout::Tensor& own : others->tensors()) {
    wire::Tensor tensor;
    tensor.set_name(own.name);
    tensor.mutable_shape()->Add(own.shape.begin(), own.shape.end());
    bytes += tensor.ByteSizeLong() + 8;  // With its length and tag.
    if (bytes > limits::tensors_told_bytes_max) {
      bye.set_has_more_tensors(true);
      break;
    }
    *bye.add_tensors() = std::move(tensor);
  }
  return header;
}

}  // namespace

std::string shown_reason(std::string_view text) {
  return printable(text, limits::reason_bytes_max);
}

Error error_of(const wire::Bye& bye) {
  FL_ASSERT(bye.cause() != wire::Bye::FINISHED);
  const std::string reason = shown_reason(bye.reason());
  if (bye.cause() != wire::Bye::REFUSED) return {Errc::unavailable, reason};
  return {Errc::unauthenticated, "the server rejected this client: " + reason};
}

Awaitable<Result<void>> Conversation::begin(std::shared_ptr<Link> link) {
  link_ = std::move(link);
  wants_renewal_ = false;
  if (std::exchange(is_between_runs_, false)) FL_CO_CHECK(co_await renew_between_runs());
  co_return success();
}

Awaitable<Result<void>> Conversation::renew_between_runs() {
  FL_CO_CHECK(co_await check_renewal());
  if (!wants_renewal_) co_return success();
  FL_CO_TRY(const Message answer, co_await link_->receive());
  if (answer.header.has_renewed()) co_return take_renewal(answer.header.renewed());
  const std::string reason = shown_reason(answer.header.bye().reason());
  co_return Error(Errc::unavailable, "this client's certificate was not renewed: " + reason);
}

Awaitable<Result<wire::Welcome>> Conversation::hello(wire::Hello hello) {
  hello.set_protocol(protocol_version);
  hello.set_software(std::string("tributary ") + software_version);
  for (const auto& row : codec::codec_rows()) hello.add_codecs(std::string(row.name));
  hello.add_codecs(std::string(codec::delta_codec));
  const Features all = Features::of(End::client);
  *hello.mutable_features() = (masks_ ? all : all.without(Feature::secure_aggregation)).to_wire();
  hello.set_uptime_s(seconds(Clock::now() - began_at_));
  wire::Header header;
  *header.mutable_hello() = std::move(hello);
  FL_CO_CHECK(co_await send(std::move(header)));

  FL_CO_TRY(Message answer, co_await link_->receive());
  if (answer.header.has_bye()) {
    const auto& bye = answer.header.bye();
    is_between_runs_ = bye.cause() == wire::Bye::FINISHED;
    if (is_between_runs_) co_return Error(Errc::cancelled, shown_reason(bye.reason()));
    co_return error_of(bye);
  }
  if (!answer.header.has_welcome()) {
    co_return Error(Errc::protocol,
                    fmt::format("the server answered Hello with {}", kind_name(answer.header)));
  }
  FL_CO_TRY(server_features_, Features::read(answer.header.welcome()));
  authorities_ = answer.header.welcome().authorities();
  co_return std::move(*answer.header.mutable_welcome());
}

Awaitable<Result<void>> Conversation::ready(wire::Ready ready) {
  declined_run_.clear();
  wire::Header header;
  *header.mutable_ready() = std::move(ready);
  const auto sent = co_await send(std::move(header));
  if (sent) ++number_;
  co_return sent;
}

Awaitable<Error> Conversation::decline(std::string run_key, Error why, const Layout* others) {
  const bool is_told = has_declined(run_key);
  declined_run_ = std::move(run_key);
  if (is_told) co_return why;
  auto bye = parting(shown_reason(why.message()), others);
  const auto sent = co_await send(std::move(bye));
  if (!sent || others == nullptr) co_return why;
  const auto last = co_await link_->receive();
  if (!last || last->header.bye().cause() != wire::Bye::REFUSED) co_return why;
  co_return Error(why.code(), shown_reason(last->header.bye().reason()));
}

Awaitable<void> Conversation::listen(AgentEvents& events) {
  FL_ASSERT(link_ != nullptr);
  const auto link = link_;
  const auto connection = number_;
  for (;;) {
    auto message = co_await link->receive();
    Arrival arrival{connection, std::move(message)};
    const bool is_end = !arrival.message;
    AgentEvent event(std::move(arrival));
    if (!co_await events.push_waiting(std::move(event)) || is_end) co_return;
  }
}

Awaitable<Result<void>> Conversation::send(wire::Header header) {
  FL_ASSERT(link_ != nullptr);
  Message message(std::move(header));
  co_return co_await link_->send(std::move(message));
}

Awaitable<void> Conversation::leave(std::string why) {
  wire::Header header;
  header.mutable_bye()->set_cause(wire::Bye::LEAVING);
  header.mutable_bye()->set_reason(shown_reason(why));
  [[maybe_unused]] auto sent = co_await send(std::move(header));
}

void Conversation::close() {
  link_->close();
  link_.reset();
}

Awaitable<Result<void>> Conversation::check_renewal() {
  if (keeper_ == nullptr || !server_features_.has(Feature::renewal)) co_return success();
  const auto request = keeper_->renewal_request(authorities_);
  if (will_pass(request)) {
    log_warn("can't renew this client's certificate now: {}", request.error().message());
    co_return success();
  }
  FL_CO_CHECK(request);
  if (!*request) co_return success();
  wire::Header header;
  header.mutable_renew()->set_csr_pem(**request);
  wants_renewal_ = true;
  co_return co_await send(std::move(header));
}

void Conversation::take_notice(const wire::Notice& notice) {
  if (notices_.passes("notice")) log_warn("the server says: {}", shown_reason(notice.text()));
}

Result<void> Conversation::take_renewal(const wire::Renewed& renewed) {
  if (!std::exchange(wants_renewal_, false)) {
    log_warn("ignored a certificate that this client did not ask for");
    return {};
  }
  const auto taken = keeper_->take_renewal(renewed);
  if (taken) log_info("renewed this client's certificate");
  if (!will_pass(taken)) return taken;
  log_warn("can't keep this client's renewed certificate now: {}", taken.error().message());
  return {};
}

}  // namespace fl::client
