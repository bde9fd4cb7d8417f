// SPDX-License-Identifier: Apache-2.0
// Malicious members of a world: each has a valid certificate, and breaks one promise of the
// protocol.
#include "shared/codec/spec/parser.hpp"
#include "shared/codec/spec/table.hpp"
#include "tests/world/hand_client.hpp"
#include "tests/world/world.hpp"

#include <fmt/format.h>

#include <limits>

namespace fl::test {

using namespace fl::codec;

namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t claimed_examples = 50;
constexpr int flood_messages = 200;

/// Hello with all codecs, and what follows until Ready.
Awaitable<Result<void>> join(std::shared_ptr<MemoryLink> link) {
  wire::Header hello;
  hello.mutable_hello()->set_protocol(protocol_version);
  hello.mutable_hello()->add_codecs(std::string(delta_codec));
  for (const CodecRow& row : codec_rows()) hello.mutable_hello()->add_codecs(std::string(row.name));
  Message first(std::move(hello));
  FL_CO_CHECK(co_await link->send(std::move(first)));
  FL_CO_TRY(const Message welcome, co_await link->receive());
  if (!welcome.header.has_welcome()) co_return Error(Errc::protocol, "no Welcome");
  wire::Header ready;
  ready.mutable_ready()->set_train_examples(claimed_examples);
  Message second(std::move(ready));
  co_return co_await link->send(std::move(second));
}

std::string small_update(const Layout& layout, const std::string& codec, std::uint64_t seed) {
  const std::vector<float> values(layout.elements(), 0.01F);
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  parse_codec(codec).value()->encode(layout, values, seed, sink).value();
  return std::string(text_of(bytes));
}

/// Makes the n-th false claim about an update.
void make_claim(wire::UploadBegin& begin, int n) {
  switch (n % 6) {
    case 0: begin.set_examples(std::numeric_limits<std::uint64_t>::max()); break;
    case 1: begin.set_steps(std::numeric_limits<std::uint64_t>::max()); break;
    case 2: begin.set_loss(std::numeric_limits<double>::quiet_NaN()); break;
    case 3: begin.set_version(begin.version() + 1); break;
    case 4: begin.set_bytes(std::numeric_limits<std::uint64_t>::max()); break;
    default: begin.set_train_seconds(-1); break;
  }
}

/// Failures of tasks of others, evaluations that nobody asked for; at last that its own task
/// failed.
Awaitable<Result<void>> flood(std::shared_ptr<MemoryLink> link, std::int64_t task) {
  for (int i = 0; i <= flood_messages; ++i) {
    wire::Header header;
    if (i == flood_messages) {
      header.mutable_failed()->set_task(task);
      header.mutable_failed()->set_reason("enough");
    } else if (i % 2 == 0) {
      header.mutable_failed()->set_task(task + 1 + i);
      header.mutable_failed()->set_reason(std::string(200, 'x'));
    } else {
      header.mutable_evaluation()->set_examples(1);
      wire::Metric& metric = *header.mutable_evaluation()->add_metrics();
      metric.set_name("accuracy");
      metric.set_value(1);
    }
    Message message(std::move(header));
    FL_CO_CHECK(co_await link->send(std::move(message)));
  }
  co_return success();
}

/// Everything that one malicious member does.
class Mischief {
 public:
  Mischief(Malice malice, std::shared_ptr<MemoryLink> link, const Layout& layout)
      : malice_(malice), link_(std::move(link)), layout_(layout) {}

  /// Until the line ends.
  Awaitable<void> run() {
    for (;;) {
      const auto message = co_await link_->receive();
      if (!message) co_return;
      const auto answered = co_await answer(message->header);
      if (!answered) co_return;
    }
  }

 private:
  Awaitable<Result<void>> answer(const wire::Header& header) {
    if (header.has_offer()) {
      offer_ = header.offer();
      if (malice_ == Malice::silence) co_return success();
      if (malice_ == Malice::flood) co_return co_await flood(link_, offer_.task());
      co_return co_await announce();
    }
    if (header.has_resume()) co_return co_await send_bytes(header.resume());
    // The server's disk was full: it comes again, as all must.
    if (header.has_verdict() && header.verdict().outcome() == wire::Verdict::LATER) {
      co_await sleep_for(2s);
      co_return co_await announce();
    }
    const bool is_accepted =
        header.has_verdict() && header.verdict().outcome() == wire::Verdict::ACCEPTED;
    if (is_accepted && malice_ == Malice::twice && !std::exchange(is_repeated_, true))
      co_return co_await announce();
    co_return success();
  }

  Awaitable<Result<void>> announce() {
    payload_ = small_update(layout_, offer_.codec(), offer_.seed());
    wire::Header header = begin_of(offer_, payload_, claimed_examples);
    if (malice_ == Malice::claims) make_claim(*header.mutable_begin(), claims_++);
    if (malice_ == Malice::wrong_digest) header.mutable_begin()->set_digest(std::string(16, 'x'));
    if (header.begin().task() != repeated_task_) is_repeated_ = false;
    repeated_task_ = header.begin().task();
    Message message(std::move(header));
    co_return co_await link_->send(std::move(message));
  }

  Awaitable<Result<void>> send_bytes(wire::Resume resume) {
    for (std::uint64_t at = resume.offset(); at < payload_.size(); at += resume.chunk_bytes()) {
      const auto owner = std::make_shared<std::string>(payload_.substr(at, resume.chunk_bytes()));
      wire::Header chunk;
      chunk.mutable_chunk()->set_transfer(static_cast<std::uint64_t>(offer_.task()));
      chunk.mutable_chunk()->set_offset(at);
      Message message(std::move(chunk), Payload(owner, bytes_of(std::string_view(*owner))));
      FL_CO_CHECK(co_await link_->send(std::move(message)));
    }
    co_return success();
  }

  const Malice malice_;
  const std::shared_ptr<MemoryLink> link_;
  const Layout& layout_;
  wire::Offer offer_;
  std::string payload_;
  int claims_ = 0;
  std::int64_t repeated_task_ = 0;
  bool is_repeated_ = false;
};

}  // namespace

Awaitable<void> World::live_as_malicious(std::string name, Malice malice) {
  const auto strategy = parse_strategy(options_.settings.strategy).value();
  const RunLayout layout = run_layout(options_.problem.layout, *strategy).value();
  while (!server_is_over_) {
    co_await sleep_for(100ms);
    // Does nothing before the first round: this member does not attack the initial model.
    if (engine() == nullptr || engine()->view().status().round == 0) continue;
    const auto link = connect(io_.get_executor(), name);
    if (!link) continue;
    const auto joined = co_await join(link);
    if (joined) {
      Mischief mischief(malice, link, layout.all);
      co_await mischief.run();
    }
    link->close();
  }
}

}  // namespace fl::test
