// SPDX-License-Identifier: Apache-2.0
// A client's part in masked rounds without a server: what it says, also after a restart, and what
// it refuses.
#include "client/agent/masking.hpp"

#include "client/secure/attempt_record.hpp"
#include "client/secure/masked_attempt.hpp"
#include "shared/base/limits.hpp"
#include "shared/codec/spec/parser.hpp"
#include "shared/secure/lane_words.hpp"
#include "tests/client/agent/masking_world.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/run_of.hpp"
#include "tests/support/scripted_link.hpp"
#include "tests/support/stored.hpp"
#include "tests/wire/simulation.hpp"

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fl::test {

namespace {

using Stage = MaskedAttempt::Stage;

/// A member of an attempt with its disk.
struct Attender {
  std::string name;
  SecureOptions options;
  MemFiles files;
  std::unique_ptr<MaskedAttempt> attempt;

  explicit Attender(const std::string& called)
      : name(called),
        options{.site_key = secret_of(called),
                .trusted = secure::parse_member_list(first_list()).value()} {
    REQUIRE(files.make_folder(site_folder));
    load();
  }
  void load() {
    attempt = std::make_unique<MaskedAttempt>(files, site_folder, options);
    REQUIRE(attempt->load());
  }
  static secure::RunTerms terms() { return {"0123456789abcdef", "lenet", "fedavg", "layout"}; }
  Result<void> open(const secure::RunTerms& of = terms()) {
    return attempt->open({.terms = of,
                          .name = name,
                          .list = std::make_shared<const MemberList>(
                              secure::parse_member_list(first_list()).value())});
  }
  /// Starts the program again after a power loss.
  void restart() {
    files.crash(1);
    load();
    REQUIRE(open());
  }
  /// What it says, which a restart does not change.
  wire::Header says() {
    const wire::Header before = attempt->message().value();
    restart();
    const wire::Header after = attempt->message().value();
    CHECK(before.SerializeAsString() == after.SerializeAsString());
    return after;
  }
};

wire::Offer masked_offer(std::int64_t task, std::uint32_t number) {
  wire::Offer offer;
  offer.set_task(task);
  offer.set_round(1);
  offer.set_codec("lanes:8");
  offer.mutable_secure()->set_attempt(number);
  offer.mutable_secure()->set_members(secure::raw(digest_in(first_list())));
  return offer;
}

/// Three members, and a server that passes on what they say. The task of all is 7.
struct Gathering {
  std::vector<std::unique_ptr<Attender>> all;
  wire::Header cohort;
  std::vector<wire::SecureShares> shares;
  std::uint32_t number = 1;  // That of the attempt.

  Gathering() {
    for (const std::string& name : sites) all.push_back(std::make_unique<Attender>(name));
  }
  template <class Message>
  void address(Message& message) const {
    message.set_task(7);
    message.set_attempt(number);
  }
  void begin(const Public& weights = public_of("version")) {
    for (const auto& one : all) {
      REQUIRE(one->attempt->begin(masked_offer(7, number), weights, Attender::terms(), 0.5));
      REQUIRE(one->open());
    }
  }
  void deal() {
    cohort.Clear();
    address(*cohort.mutable_secure_cohort());
    for (const auto& one : all) {
      const wire::SecureKeys keys = one->says().secure_keys();
      CHECK(keys.attempt() == number);
      auto& member = *cohort.mutable_secure_cohort()->add_members();
      member.set_name(one->name);
      member.set_mask_key(keys.mask_key());
      member.set_share_key(keys.share_key());
      member.set_self_digest(keys.self_digest());
      member.set_signature(keys.signature());
    }
    shares.clear();
    for (const auto& one : all) {
      CHECK(one->attempt->take(cohort).value());
      CHECK(one->attempt->stage() == Stage::shares);
      shares.push_back(one->says().secure_shares());
    }
  }
  [[nodiscard]] wire::Header inbox_of(int to) const {
    wire::Header header;
    address(*header.mutable_secure_inbox());
    for (int from = 0; from < 3; ++from) {
      header.mutable_secure_inbox()->add_sharers(static_cast<std::uint32_t>(from));
      if (from != to)
        header.mutable_secure_inbox()->add_sealed(
            shares[static_cast<std::size_t>(from)].sealed(to < from ? to : to - 1));
    }
    return header;
  }
  void share() {
    for (int i = 0; i < 3; ++i) {
      CHECK(all[static_cast<std::size_t>(i)]->attempt->take(inbox_of(i)).value());
      CHECK(all[static_cast<std::size_t>(i)]->attempt->stage() == Stage::words);
    }
  }
  [[nodiscard]] wire::Header survivors() const {
    wire::Header header;
    address(*header.mutable_secure_survivors());
    for (std::uint32_t i = 0; i < 3; ++i) header.mutable_secure_survivors()->add_survivors(i);
    return header;
  }
};

std::string refusal_of(const Result<bool>& taken) {
  REQUIRE(!taken);
  CHECK(taken.error().code() == Errc::invalid_input);
  return taken.error().message();
}

}  // namespace

TEST_CASE("members go through an attempt, and say the same after a restart at each step") {
  Gathering world;
  world.begin();
  MaskedAttempt* const some = world.all[0]->attempt.get();
  CHECK(some->is_of(7));
  // What follows from words that it knows nothing of.
  CHECK(has_words(refusal_of(some->take(world.survivors())), "has lost what it said"));
  world.deal();
  world.share();
  // The masks of all but their own cancel out.
  std::vector<std::vector<std::uint64_t>> words(3, std::vector<std::uint64_t>(5));
  for (std::size_t i = 0; i < 3; ++i) {
    world.all[i]->restart();
    REQUIRE(world.all[i]->attempt->mask(words[i]));
    auto again = std::vector<std::uint64_t>(5);
    REQUIRE(world.all[i]->attempt->mask(again));
    CHECK(words[i] == again);
  }
  wire::Header ask;
  world.address(*ask.mutable_secure_ask());
  for (std::uint32_t i = 0; i < 3; ++i) {
    CHECK(world.all[i]->attempt->take(world.survivors()).value());
    auto& consent = *ask.mutable_secure_ask()->add_consents();
    consent.set_member(i);
    consent.set_signature(world.all[i]->says().secure_consent().signature());
  }
  for (const auto& one : world.all) {
    CHECK(!one->attempt->take(world.survivors()).value());  // Here already.
    CHECK(one->attempt->take(ask).value());
    CHECK(one->attempt->stage() == Stage::reveal);
    CHECK(one->says().secure_reveal().shares_size() == 2);
    CHECK(!one->attempt->take(ask).value());
    REQUIRE(one->attempt->remove());
    CHECK(!one->attempt->exists());
    CHECK(!one->files.exists(site_folder / "attempt.json"));
  }
}

TEST_CASE("keys serve one cohort, and one list of those that count is signed") {
  Gathering world;
  world.begin();
  world.deal();
  MaskedAttempt& north = *world.all[1]->attempt;
  CHECK(!north.take(world.cohort).value());
  wire::Header other = world.cohort;
  other.mutable_secure_cohort()->mutable_members(0)->mutable_self_digest()->front() ^= 1;
  CHECK(has_words(refusal_of(north.take(other)), "a second cohort"));
  other.mutable_secure_cohort()->set_attempt(2);
  CHECK(!north.take(other).value());

  wire::Header inbox = world.inbox_of(1);
  inbox.mutable_secure_inbox()->mutable_sealed()->RemoveLast();
  CHECK(has_words(refusal_of(north.take(inbox)), "fewer sealed shares"));
  world.share();
  wire::Header few = world.survivors();
  few.mutable_secure_survivors()->mutable_survivors()->RemoveLast();
  CHECK(!refusal_of(north.take(few)).empty());
  CHECK(north.take(world.survivors()).value());
  CHECK(has_words(refusal_of(north.take(few)), "a second list"));
}

TEST_CASE("a cohort with somebody who is not in the list, or too small a one, is refused") {
  Gathering world;
  world.begin();
  world.deal();
  Attender late("north");
  REQUIRE(late.attempt->begin(masked_offer(7, 1), public_of("version"), Attender::terms(), 0.5));
  REQUIRE(late.open());
  CHECK(has_words(refusal_of(late.attempt->take(world.cohort)), "other keys of this member"));
  wire::Header foreign = world.cohort;
  foreign.mutable_secure_cohort()->mutable_members(0)->set_name("mallory");
  CHECK(has_words(refusal_of(late.attempt->take(foreign)), "'mallory' is not in the member list"));
  wire::Header small = world.cohort;
  small.mutable_secure_cohort()->mutable_members()->RemoveLast();
  CHECK(!refusal_of(late.attempt->take(small)).empty());
}

TEST_CASE("the next attempt has new keys, until a list is signed") {
  Gathering world;
  world.begin();
  world.deal();
  Attender& north = *world.all[1];
  const std::string keys = world.cohort.secure_cohort().members(1).mask_key();
  wire::Offer changed = masked_offer(7, 2);
  changed.set_lr(2);
  const auto refused = north.attempt->begin_again(changed);
  REQUIRE(!refused);
  CHECK(has_words(refused.error().message(), "other settings for the training"));

  world.number = 2;
  for (const auto& one : world.all) {
    wire::Offer next = masked_offer(7, 2);
    next.set_deadline_ms(1000);
    REQUIRE(one->attempt->begin_again(next));
    REQUIRE(one->open());
    CHECK(one->attempt->stage() == Stage::keys);
  }
  world.deal();
  CHECK(world.cohort.secure_cohort().members(1).mask_key() != keys);
  CHECK(north.attempt->record().loss == 0.5);
  world.share();
  CHECK(north.attempt->take(world.survivors()).value());
  REQUIRE(north.attempt->begin_again(masked_offer(7, 3)));
  CHECK(north.attempt->record().attempt() == 2);
  CHECK(north.attempt->stage() == Stage::consent);
}

TEST_CASE("a site contributes to a version once, unless it is told that this is a test") {
  Gathering world;
  world.begin();
  world.deal();
  world.share();
  Attender& north = *world.all[1];
  REQUIRE(north.attempt->check_version(public_of("version")));
  CHECK(north.attempt->take(world.survivors()).value());
  for (const auto& one : world.all) REQUIRE(one->attempt->remove());
  // It does not even begin to train from the same weights again.
  const auto refused = north.attempt->check_version(public_of("version"));
  REQUIRE(!refused);
  CHECK(has_words(refused.error().message(), "has contributed to this version already"));
  CHECK(!north.attempt->begin(masked_offer(7, 1), public_of("version"), Attender::terms(), 0.5));
  CHECK(!north.attempt->exists());
  CHECK(north.attempt->check_version(public_of("another")));
  north.options.allows_same_version = true;
  world.begin();
  world.deal();
  world.share();
  CHECK(north.attempt->take(world.survivors()).value());
}

TEST_CASE("a site that has contributed to a version meanwhile signs for it no more") {
  Gathering world;
  world.begin();
  world.deal();
  world.share();
  Attender& north = *world.all[1];
  Contributions others(north.files, site_folder);
  REQUIRE(others.load());
  REQUIRE(others.add({public_of("version"), public_of("another"), "fedcba9876543210", 3}));
  north.restart();
  CHECK(has_words(refusal_of(north.attempt->take(world.survivors())),
                  "has contributed to this version already"));
}

TEST_CASE("an update is masked only for the run that it was trained for") {
  Attender north("north");
  REQUIRE(north.attempt->begin(masked_offer(7, 1), public_of("version"), Attender::terms(), 0.5));
  REQUIRE(north.open());
  for (const secure::RunTerms& other :
       {secure::RunTerms{"fedcba9876543210", "lenet", "fedavg", "layout"},
        {"0123456789abcdef", "mlp", "fedavg", "layout"},
        {"0123456789abcdef", "lenet", "scaffold", "layout"},
        {"0123456789abcdef", "lenet", "fedavg", "other"}}) {
    const auto refused = north.open(other);
    REQUIRE(!refused);
    CHECK(has_words(refused.error().message(), "was trained for another run"));
  }
}

TEST_CASE("what can't be opened is said with the words, and nothing of it is revealed") {
  Gathering world;
  world.begin();
  world.deal();
  world.shares[0].mutable_sealed(0)->front() ^= 1;  // For north.
  world.share();
  CHECK(world.all[1]->attempt->unreadable() == std::vector<std::uint32_t>{0});
  CHECK(world.all[2]->attempt->unreadable().empty());
  wire::Header ask;
  world.address(*ask.mutable_secure_ask());
  for (std::uint32_t i = 0; i < 3; ++i) {
    CHECK(world.all[i]->attempt->take(world.survivors()).value());
    auto& consent = *ask.mutable_secure_ask()->add_consents();
    consent.set_member(i);
    consent.set_signature(world.all[i]->says().secure_consent().signature());
  }
  CHECK(world.all[1]->attempt->take(ask).value());
  const auto reveal = world.all[1]->says().secure_reveal();
  REQUIRE(reveal.shares_size() == 2);
  CHECK(reveal.shares(0).empty());
  CHECK(reveal.shares(1).size() == 32);
  const auto read = secure::read_reveal(reveal, 1, {0, 1, 2}, {0, 1, 2}).value();
  REQUIRE(read.shares.size() == 1);
  CHECK(read.shares[0].about == 2);
}

// The agent's part --------------------------------------------------------------------------------

namespace {

/// A client that joins a run, and the others of its attempt. One of these is its double: it has the
/// same record, and so says the same.
struct JoiningWorld {
  Simulation simulation;
  Offload offload;
  TaskGroup group{simulation.io.get_executor()};
  AgentEvents events{simulation.io.get_executor(), agent_events_max};
  Worker worker{offload, group, events};
  MemFiles files;
  ClientState state{files, site_folder};
  RunLayout layout = run_of(Layout::make({{"w", {20, 20}}}).value());
  Upload upload{worker, state, nullptr};
  Conversation conversation{nullptr, true};
  std::shared_ptr<ScriptedLink> link = std::make_shared<ScriptedLink>(simulation.io.get_executor());
  std::optional<SecureOptions> options;
  std::unique_ptr<Masking> masking;
  Gathering others;

  explicit JoiningWorld(std::optional<SecureOptions> with) : options(std::move(with)) {
    REQUIRE(state.load());
    REQUIRE(simulation.result_of(conversation.begin(link)));
    masking = std::make_unique<Masking>(options, worker, state, upload, conversation);
    REQUIRE(masking->load());
  }
  Result<void> join(const std::string& members) {
    wire::Welcome welcome;
    welcome.set_run_key("0123456789abcdef");
    welcome.set_model("lenet");
    welcome.set_strategy("fedavg");
    welcome.set_layout_digest("layout");
    welcome.set_name("north");
    welcome.set_members(members);
    return simulation.result_of(masking->join(welcome));
  }
  [[nodiscard]] Attender& twin() { return *others.all[1]; }
  void copy_record() {
    const auto path = site_folder / "attempt.json";
    const std::string text = files.read_all(path).value();
    REQUIRE(twin().files.write_atomically(path, bytes_of(std::string_view(text))));
    twin().load();
    REQUIRE(twin().open());
  }
  /// Joins the run and trains; so have the others.
  void train() {
    REQUIRE(join(first_list()));
    const StoredValues version(std::vector<float>(layout.all.elements(), 0.25F));
    REQUIRE(masking->check_version(version));
    REQUIRE(masking->begin(masked_offer(7, 1), 0.5));
    wire::UploadBegin begin;
    begin.set_task(7);
    begin.set_round(1);
    begin.set_codec("lanes:8");
    begin.set_loss(0.5);
    begin.set_examples(99);
    begin.set_attempt(1);
    const auto no_steps = std::make_shared<const codec::LaneSteps>(1);
    REQUIRE(save(state, layout, std::vector<float>(layout.all.elements(), 0.125F),
                 *codec::parse_codec("lanes:8").value(), codec::CodeInputs(1, 1, no_steps), begin));
    AttemptFile mine(files, site_folder);
    REQUIRE(mine.load());
    others.begin(mine.record()->weights);
    copy_record();
    REQUIRE(prepare());
  }
  Result<void> prepare() { return simulation.result_of(masking->prepare(layout)); }
  Result<void> take(const wire::Header& message) {
    return simulation.result_of(masking->take(message));
  }
  Result<void> resume() {
    wire::Resume resume;
    resume.set_task(7);
    resume.set_chunk_bytes(limits::chunk_bytes_min);
    return simulation.result_of(upload.resume(resume));
  }
  Result<bool> decide(wire::Verdict::Outcome outcome) {
    wire::Verdict verdict;
    verdict.set_task(7);
    verdict.set_outcome(outcome);
    return simulation.result_of(upload.take_verdict(verdict, layout));
  }
  /// What the client announces now.
  wire::Header announced() {
    CHECK(upload.announce_at() <= Clock::now());
    REQUIRE(simulation.result_of(masking->announce()));
    CHECK(upload.announce_at() == never);
    return link->sent.back().header;
  }
  /// Whether it announces what its double says, and sends no bytes for it.
  bool says_the_same() {
    const bool is_equal =
        announced().SerializeAsString() == twin().attempt->message().value().SerializeAsString();
    const auto resumed = resume();
    return is_equal && !resumed && resumed.error().code() == Errc::protocol;
  }
};

}  // namespace

TEST_CASE("a client without a member list joins no masked run") {
  JoiningWorld world(std::nullopt);
  REQUIRE(world.join(""));
  CHECK(!world.masking->is_masked());
  CHECK(world.masking->check({}));
  CHECK(!world.masking->check(masked_offer(7, 1)));
  CHECK(has_words(world.join(first_list()).error().message(), "start with --members FILE"));
}

TEST_CASE("a client with a member list joins masked runs only") {
  JoiningWorld world(trusting(first_list()));
  CHECK(has_words(world.join("").error().message(), "it takes part in masked runs only"));
  CHECK(!world.masking->is_masked());
  REQUIRE(world.join(first_list()));
  CHECK(world.masking->is_masked());
  CHECK(world.masking->check(masked_offer(7, 1)));
  CHECK(!world.masking->check({}));
  CHECK(!world.masking->check(masked_offer(7, 0)));
  wire::Offer other = masked_offer(7, 1);
  other.mutable_secure()->set_members("another list");
  CHECK(!world.masking->check(other));
  CHECK(has_words(world.join(second_list()).error().message(), "a changed member list"));
  CHECK(!world.masking->is_masked());
}

TEST_CASE("of an update nothing but masked words is sent, and its verdict ends the attempt") {
  JoiningWorld world(trusting(first_list()));
  world.train();
  CHECK(world.says_the_same());  // The keys.
  world.others.deal();
  REQUIRE(world.take(world.others.cohort));
  CHECK(world.says_the_same());  // The shares.
  world.others.share();
  REQUIRE(world.take(world.others.inbox_of(1)));

  const wire::UploadBegin begin = world.announced().begin();
  CHECK(begin.attempt() == 1);
  CHECK(begin.examples() == 0);
  CHECK(begin.loss() == 0);
  const std::size_t sent_before = world.link->sent.size();
  REQUIRE(world.resume());
  while (world.upload.can_send())
    REQUIRE(world.simulation.result_of(world.upload.send_some(world.conversation)));
  std::string bytes;
  for (std::size_t i = sent_before; i < world.link->sent.size(); ++i)
    bytes += text_of(world.link->sent[i].payload.bytes());
  REQUIRE(bytes.size() == begin.bytes());
  CHECK(Digest::of(bytes_of(std::string_view(bytes))).raw() == begin.digest());
  // Without the masks the last word is the loss.
  std::vector<std::uint64_t> words(bytes.size() / 8);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  std::vector<std::uint64_t> masks(words.size());
  REQUIRE(world.twin().attempt->mask(masks));
  CHECK(secure::mean_loss_of(words.back() - masks.back(), 1) == 0.5);

  CHECK(!world.decide(wire::Verdict::HELD).value());
  CHECK(world.upload.announce_at() == never);
  world.upload.connection_lost();
  REQUIRE(world.prepare());
  CHECK(world.announced().begin().digest() == begin.digest());

  wire::Header ask;
  world.others.address(*ask.mutable_secure_ask());
  for (std::uint32_t i = 0; i < 3; ++i) {
    CHECK(world.others.all[i]->attempt->take(world.others.survivors()).value());
    auto& consent = *ask.mutable_secure_ask()->add_consents();
    consent.set_member(i);
    consent.set_signature(world.others.all[i]->attempt->message()->secure_consent().signature());
  }
  REQUIRE(world.take(world.others.survivors()));
  CHECK(world.says_the_same());  // The consent.
  CHECK(world.twin().attempt->take(ask).value());
  REQUIRE(world.take(ask));
  CHECK(world.says_the_same());  // What is revealed.
  CHECK(world.decide(wire::Verdict::ACCEPTED).value());
  CHECK(!world.state.pending());
  REQUIRE(world.prepare());
  CHECK(!world.files.exists(site_folder / "attempt.json"));
  CHECK(!world.files.exists(site_folder / "masked-update"));
}

TEST_CASE("a newer offer of the task masks the same update anew, and a lie ends its part in it") {
  JoiningWorld world(trusting(first_list()));
  world.train();
  CHECK(world.says_the_same());
  REQUIRE(world.simulation.result_of(world.masking->take_again(masked_offer(7, 1))));
  CHECK(world.upload.announce_at() == never);
  REQUIRE(world.simulation.result_of(world.masking->take_again(masked_offer(7, 2))));
  world.copy_record();
  CHECK(world.says_the_same());
  CHECK(world.link->sent.back().header.secure_keys().attempt() == 2);

  wire::Header cohort;
  cohort.mutable_secure_cohort()->set_task(7);
  cohort.mutable_secure_cohort()->set_attempt(1);
  const std::size_t sent_before = world.link->sent.size();
  REQUIRE(world.take(cohort));  // It is of the attempt before.
  CHECK(world.link->sent.size() == sent_before);
  cohort.mutable_secure_cohort()->set_attempt(2);
  REQUIRE(world.take(cohort));
  CHECK(world.link->sent.back().header.failed().task() == 7);
  CHECK(!world.upload.is_on());
  CHECK(!world.state.pending());
  CHECK(!world.files.exists(site_folder / "attempt.json"));
}

TEST_CASE("an update of a masked run is never sent in the clear, whatever is lost") {
  JoiningWorld world(trusting(first_list()));
  world.train();
  world.upload.connection_lost();
  REQUIRE(world.files.remove(site_folder / "attempt.json"));
  world.masking = std::make_unique<Masking>(world.options, world.worker, world.state, world.upload,
                                            world.conversation);
  REQUIRE(world.masking->load());
  SUBCASE("in a masked run") { REQUIRE(world.join(first_list())); }
  SUBCASE("in a run in the clear") {}
  const auto prepared = world.prepare();
  REQUIRE(!prepared);
  CHECK(has_words(prepared.error().message(), "training round 1 again"));
  CHECK(!world.upload.is_on());
  CHECK(!world.state.pending());
}

}  // namespace fl::test
