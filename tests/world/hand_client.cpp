// SPDX-License-Identifier: Apache-2.0
#include "tests/world/hand_client.hpp"

namespace fl::test {

Awaitable<Result<wire::Welcome>> greet_as(std::shared_ptr<MemoryLink> link, wire::Hello hello,
                                          wire::Ready ready) {
  wire::Header greeting;
  *greeting.mutable_hello() = std::move(hello);
  greeting.mutable_hello()->set_protocol(protocol_version);
  greeting.mutable_hello()->add_codecs("none");
  Message first(std::move(greeting));
  FL_CO_CHECK(co_await link->send(std::move(first)));
  FL_CO_TRY(const Message welcome, co_await link->receive());
  if (welcome.header.has_bye()) co_return Error(Errc::conflict, welcome.header.bye().reason());
  if (!welcome.header.has_welcome()) {
    co_return Error(Errc::protocol, "expected Welcome, got " + kind_name(welcome.header));
  }
  wire::Header answer;
  *answer.mutable_ready() = std::move(ready);
  Message second(std::move(answer));
  FL_CO_CHECK(co_await link->send(std::move(second)));
  co_return welcome.header.welcome();
}

Awaitable<Result<void>> greet(std::shared_ptr<MemoryLink> link, std::uint64_t examples) {
  wire::Hello hello;
  wire::Ready ready;
  ready.set_train_examples(examples);
  FL_CO_CHECK(co_await greet_as(link, std::move(hello), std::move(ready)));
  co_return success();
}

Awaitable<Result<wire::Offer>> await_offer(std::shared_ptr<MemoryLink> link) {
  for (;;) {
    FL_CO_TRY(const Message message, co_await link->receive());
    if (message.header.has_offer()) co_return message.header.offer();
  }
}

wire::Header begin_of(const wire::Offer& offer, std::string_view payload, std::uint64_t examples) {
  wire::Header header;
  auto& begin = *header.mutable_begin();
  begin.set_task(offer.task());
  begin.set_round(offer.round());
  begin.set_version(offer.version());
  begin.set_codec(offer.codec());
  begin.set_examples(examples);
  begin.set_steps(1);
  begin.set_bytes(payload.size());
  begin.set_digest(Digest::of(bytes_of(std::string_view(payload))).raw());
  return header;
}

Awaitable<Result<wire::Verdict>> upload(std::shared_ptr<MemoryLink> link, const wire::Offer& offer,
                                        std::string payload) {
  wire::Header header = begin_of(offer, payload, 1);
  Message announcement(std::move(header));
  FL_CO_CHECK(co_await link->send(std::move(announcement)));
  FL_CO_TRY(const Message answer, co_await link->receive());
  if (!answer.header.has_resume()) {
    co_return Error(Errc::protocol, "expected Resume, got " + kind_name(answer.header));
  }
  const auto owner = std::make_shared<std::string>(std::move(payload));
  wire::Header chunk;
  chunk.mutable_chunk()->set_transfer(static_cast<std::uint64_t>(offer.task()));
  Message body(std::move(chunk), Payload(owner, bytes_of(std::string_view(*owner))));
  FL_CO_CHECK(co_await link->send(std::move(body)));
  FL_CO_TRY(const Message verdict, co_await link->receive());
  if (!verdict.header.has_verdict()) {
    co_return Error(Errc::protocol, "expected Verdict, got " + kind_name(verdict.header));
  }
  co_return verdict.header.verdict();
}

}  // namespace fl::test
