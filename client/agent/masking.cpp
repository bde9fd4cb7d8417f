// SPDX-License-Identifier: Apache-2.0
#include "client/agent/masking.hpp"

#include "shared/base/failpoint.hpp"
#include "shared/base/log.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/spec/parser.hpp"
#include "shared/secure/lane_words.hpp"

#include <fmt/format.h>

#include <bit>
#include <span>
#include <utility>
#include <vector>

namespace fl::client {

namespace {

using Stage = MaskedAttempt::Stage;

static_assert(std::endian::native == std::endian::little, "words are sent as they lie in memory");

bool is_unreadable(const Error& error) {
  return error.code() == Errc::corrupt || error.code() == Errc::not_found;
}

}  // namespace

Masking::Masking(const std::optional<SecureOptions>& options, Worker& worker, ClientState& state,
                 Upload& upload, Conversation& conversation)
    : worker_(worker), state_(state), upload_(upload), conversation_(conversation) {
  if (options) member_.emplace(state, *options);
}

std::filesystem::path Masking::words_path() const { return state_.folder() / "masked-update"; }

Result<void> Masking::load() {
  if (!member_) return {};
  FL_CHECK(attempt().load());
  const auto& pending = state_.pending();
  const bool is_left = attempt().exists() && (!pending || !attempt().is_of(pending->begin.task()));
  return is_left ? remove_attempt() : success();
}

// Joining a run ---------------------------------------------------------------------------------

Awaitable<Result<void>> Masking::join(const wire::Welcome& welcome) {
  if (!member_) {
    if (welcome.members().empty()) co_return success();
    co_return Error(Errc::invalid_input,
                    "this run adds up masked updates: start with --members FILE and a site key "
                    "(fl-client site-key)");
  }
  if (welcome.members().empty()) {
    co_return Error(Errc::invalid_input,
                    "this run adds up updates in the clear, and this client has a member list "
                    "(--members): it takes part in masked runs only");
  }
  const secure::RunTerms& terms = run_.terms;
  const bool is_joined = is_masked() && members_ == welcome.members() &&
                         run_.name == welcome.name() && terms.run_key == welcome.run_key() &&
                         terms.model == welcome.model() && terms.strategy == welcome.strategy() &&
                         terms.layout_digest == welcome.layout_digest();
  if (is_joined) co_return success();
  // A job that runs would see the run change.
  if (!co_await worker_.end()) co_return Error(Errc::cancelled, "stopped");
  run_ = {};
  auto accept = [this, &welcome] {
    return member_->membership.accept(welcome.members(), welcome.name());
  };
  FL_CO_TRY(auto list, co_await worker_.step(std::move(accept)));
  members_ = welcome.members();
  run_ = {
      .terms = {welcome.run_key(), welcome.model(), welcome.strategy(), welcome.layout_digest()},
      .name = welcome.name(),
      .list = std::move(list)};
  co_return success();
}

Result<void> Masking::check(const wire::Offer& offer) const {
  const auto unfit = [](const char* why) { return Error(Errc::invalid_input, why); };
  if (!is_masked()) {
    if (!offer.has_secure()) return {};
    return unfit("the offer is of a masked run, and this client has joined one in the clear");
  }
  if (!offer.has_secure() || offer.secure().attempt() == 0)
    return unfit("the offer is of a run in the clear, and this client has joined a masked one");
  if (offer.secure().members() != secure::raw(run_.list->digest()))
    return unfit("the offer is for another member list than the one that this client has accepted");
  return {};
}

// The update ------------------------------------------------------------------------------------

Result<void> Masking::check_version(const StoredValues& version) {
  secure::ValuesDigest weights;
  weights.update(std::as_bytes(version.values()));
  FL_CHECK(version.check());
  weights_ = weights.finish();
  return attempt().check_version(weights_);
}

Result<void> Masking::begin(const wire::Offer& offer, double loss) {
  return attempt().begin(offer, weights_, run_.terms, loss);
}

/// On the worker thread. Returns false if the update has to be trained again.
Result<bool> Masking::open() {
  const std::int64_t task = state_.pending()->begin.task();
  if (!is_masked() || !attempt().is_of(task)) return false;
  const auto file = state_.open_pending();
  is_damaged_ = !file && is_unreadable(file.error());
  if (!file && !is_damaged_) return file.error();
  if (newer_) FL_CHECK(attempt().begin_again(*newer_));
  // Once this client has signed, the server has its words.
  const bool needs_update = !attempt().record().survivors;
  if (is_damaged_ && needs_update) return false;
  FL_CHECK(attempt().open(run_));
  FL_CHECK(make_message());
  return true;
}

Awaitable<Result<void>> Masking::prepare(const RunLayout& layout) {
  layout_ = &layout;
  const bool is_clear = !state_.pending() || state_.pending()->begin.attempt() == 0;
  if (!is_masked() && is_clear) co_return co_await upload_.prepare();
  if (!state_.pending()) {
    if (!attempt().exists()) co_return success();
    auto remove = [this] { return remove_attempt(); };
    co_return co_await worker_.step(std::move(remove));
  }
  auto open = [this] { return this->open(); };
  const auto opened = co_await worker_.step(std::move(open));
  newer_.reset();
  if (will_pass(opened)) {
    log_warn("{}; trying again", opened.error().message());
    worker_.pause_for_disk();
    co_return success();
  }
  if (opened && !*opened) co_return co_await train_again();
  Result<void> made = success();
  if (!opened) made = opened.error();
  co_return co_await proceed(std::move(made));
}

/// Forgets an update that can't be masked. The server offers its task again to a new connection.
Awaitable<Result<void>> Masking::train_again() {
  const std::uint32_t round = state_.pending()->begin.round();
  auto forget = [this]() -> Result<void> {
    FL_CHECK(state_.forget_pending());
    return member_ ? remove_attempt() : success();
  };
  FL_CO_CHECK(co_await worker_.step(std::move(forget)));
  co_return Error(
      Errc::unavailable,
      fmt::format("training round {} again, because its saved update can't be used", round));
}

Awaitable<Result<void>> Masking::take_again(const wire::Offer& offer) {
  if (!is_masked()) co_return success();
  if (worker_.is_busy() || !upload_.is_on()) {
    newer_ = offer;  // For prepare().
    co_return success();
  }
  if (offer.secure().attempt() <= attempt().record().attempt()) co_return success();
  auto begin = [this, &offer]() -> Result<bool> {
    FL_CHECK(attempt().begin_again(offer));
    if (attempt().record().attempt() != offer.secure().attempt()) return false;
    FL_CHECK(attempt().open(run_));
    FL_CHECK(make_message());
    return true;
  };
  const auto begun = co_await worker_.step(std::move(begin));
  if (begun && !*begun) co_return success();
  Result<void> made = success();
  if (!begun) made = begun.error();
  co_return co_await proceed(std::move(made));
}

/// On the worker thread.
Result<void> Masking::remove_attempt() {
  FL_CHECK(state_.files().remove(words_path()));
  return attempt().remove();
}

// The attempt -----------------------------------------------------------------------------------

/// Makes what this client says at this stage. On the worker thread.
Result<void> Masking::make_message() {
  if (attempt().stage() == Stage::words) return make_words();
  words_.reset();
  FL_TRY(message_, attempt().message());
  return {};
}

/// They follow from the update and the record, so they need not be durable. On the worker thread.
Result<void> Masking::make_words() {
  const AttemptRecord& record = attempt().record();
  const Layout& layout = layout_->all;
  FL_TRY(const auto codec, codec::parse_codec(record.offer.codec()));
  const auto steps = codec::parse_lane_steps(record.offer.lane_steps(), layout.tensors().size());
  if (!steps)
    return Error(Errc::invalid_input, "the offer's lane_steps: " + steps.error().message());
  FL_TRY(auto runs, codec->lane_runs(layout, *steps));
  const secure::LaneWords places(std::move(runs), layout.tensors().size(),
                                 static_cast<std::uint64_t>(record.cohort->members_size()));
  FL_TRY(const auto update, state_.open_pending());
  codec::FileSource source(*update);
  FL_TRY(auto reader, codec::PayloadReader::open(source, state_.pending()->begin.bytes(), layout));
  if (reader.blocks() != places.runs().size())
    return Error(Errc::invalid_input, "the update has other blocks than the codec says");
  auto words = secure::lane_words_of(reader, places, *steps, record.loss, 1);
  if (!words && words.error().code() == Errc::corrupt)
    return Error(Errc::invalid_input, words.error().message());
  FL_CHECK(words);
  FL_CHECK(attempt().mask(*words));
  const Bytes bytes = std::as_bytes(std::span(*words));
  FL_TRY(auto file, state_.files().open(words_path(), OpenMode::fresh));
  FL_CHECK(file->write_at(0, bytes));
  words_ = std::move(file);
  begin_.Clear();
  begin_.set_task(record.offer.task());
  begin_.set_round(record.offer.round());
  begin_.set_version(record.offer.version());
  begin_.set_bytes(bytes.size());
  begin_.set_digest(Digest::of(bytes).raw());
  begin_.set_codec(record.offer.codec());
  begin_.set_attempt(record.attempt());
  for (const std::uint32_t member : attempt().unreadable()) begin_.add_unreadable(member);
  failpoint("attempt.masked");
  return {};
}

/// Goes on after a step that has made what comes next.
Awaitable<Result<void>> Masking::proceed(Result<void> made) {
  if (!made && made.error().code() == Errc::invalid_input) co_return co_await refuse(made.error());
  FL_CO_CHECK(made);
  if (attempt().stage() != Stage::words) {
    upload_.hold(is_damaged_);
    co_return success();
  }
  log_info("round {}: masked for {} members", begin_.round(), attempt().sharers());
  for (const std::uint32_t member : attempt().unreadable())
    log_warn("round {}: what '{}' has sealed for this client can't be opened", begin_.round(),
             attempt().record().cohort->members(static_cast<int>(member)).name());
  upload_.send_words(begin_, words_);
  co_return success();
}

Awaitable<Result<void>> Masking::announce() {
  if (!is_masked() || attempt().stage() == Stage::words)
    co_return co_await upload_.announce(conversation_);
  const std::uint32_t round = attempt().record().offer.round();
  if (attempt().stage() == Stage::keys)
    log_info("round {}: waiting for others to have trained", round);
  if (attempt().stage() == Stage::reveal)
    log_info("round {}: the sum of {} members is opened", round,
             attempt().record().survivors->survivors_size());
  auto message = message_;
  co_return co_await upload_.announce(conversation_, std::move(message));
}

Awaitable<Result<void>> Masking::take(const wire::Header& message) {
  if (!is_masked())
    co_return Error(Errc::protocol, fmt::format("a server may not send {} in a run in the clear",
                                                kind_name(message)));
  // Once it has trained, the server repeats this.
  if (worker_.is_busy()) co_return success();
  if (!state_.pending()) co_return co_await leave(message);
  if (!upload_.is_on()) co_return Error(Errc::unavailable, "this client can't read its update yet");
  bool is_new = false;
  auto take = [this, &message, &is_new]() -> Result<void> {
    FL_TRY(is_new, attempt().take(message));
    return is_new ? make_message() : success();
  };
  const Result<void> taken = co_await worker_.step(std::move(take));
  const bool may_count = message.has_secure_survivors() || message.has_secure_ask();
  // The sum may have this update, so it stays until the verdict.
  if (may_count && !taken && taken.error().code() == Errc::invalid_input)
    co_return co_await say_why(taken.error());
  if (taken && !is_new) {
    log_at(LogLevel::debug, "ignored {}: it is of another attempt, or was here before",
           kind_name(message));
    co_return success();
  }
  co_return co_await proceed(taken);
}

/// Tells the server that this client has no update for the task that a message is about, and so
/// nothing to answer. Nobody would go on without it otherwise.
Awaitable<Result<void>> Masking::leave(const wire::Header& message) {
  wire::Header header;
  header.mutable_failed()->set_task(secure::subject_of(message).task);
  header.mutable_failed()->set_reason("this client has lost its update");
  co_return co_await conversation_.send(std::move(header));
}

/// Tells the server why this client does not go on with the task.
Awaitable<Result<void>> Masking::say_why(Error why) {
  const wire::UploadBegin& begin = state_.pending()->begin;
  log_warn("round {}: this client leaves the attempt: {}", begin.round(), why.message());
  wire::Header header;
  header.mutable_failed()->set_task(begin.task());
  header.mutable_failed()->set_reason(shown_reason(why.message()));
  co_return co_await conversation_.send(std::move(header));
}

/// Leaves the attempt, and takes the update back.
Awaitable<Result<void>> Masking::refuse(Error why) {
  FL_CO_CHECK(co_await say_why(std::move(why)));
  auto settle = [this]() -> Result<void> {
    FL_CHECK(is_damaged_ ? state_.forget_pending() : state_.settle_unused(*layout_));
    return remove_attempt();
  };
  FL_CO_CHECK(co_await worker_.step(std::move(settle)));
  upload_.forget();
  co_return success();
}

}  // namespace fl::client
