// SPDX-License-Identifier: Apache-2.0
#include "server/round/replay.hpp"

#include "server/round/kept_round.hpp"
#include "server/round/next_version.hpp"
#include "server/versions/make_version.hpp"

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace fl::server {

namespace {

constexpr std::size_t compared_elements = 1 << 16;

/// All that a round is made of, checked against the digests in the history and the description.
struct Ingredients {
  Rounds::StoredRound stored;
  KeptRound kept;
  RunSettings settings;
  PastRounds past;
  std::map<Version, CheckpointRecord> versions;  // The versions that are on the disk.
  Digest recorded;
};

std::string rounds_there(const std::vector<Round>& rounds) {
  if (rounds.empty()) return "no round's are";
  return fmt::format("those of {} rounds from {} to {} are", rounds.size(), rounds.front(),
                     rounds.back());
}

Result<KeptRound> description_of(const ReplaySource& from, Round round) {
  auto kept = read_description(from.files, from.kept, round);
  if (kept && kept->run_key == from.run.key && kept->round == round) return kept;
  if (kept) {
    return Error(Errc::corrupt,
                 fmt::format("{} is of another run or round: put the right file back",
                             (from.kept / description_name(round)).string()));
  }
  if (kept.error().code() != Errc::not_found) return kept;
  FL_TRY(const auto rounds, described_rounds(from.files, from.kept));
  return Error(
      Errc::not_found,
      fmt::format("the updates of round {} of run {} were not kept, or are gone; {} on the "
                  "disk. A run with --keep-updates keeps them",
                  round, from.run.id, rounds_there(rounds)));
}

/// The accepted tasks, each with its kept file in place of the spool's. They must match the
/// description.
Result<std::vector<TaskRecord>> counted_tasks(const Ingredients& of) {
  std::vector<TaskRecord> counted;
  for (const TaskRecord& task : of.stored.tasks) {
    if (task.state != TaskState::accepted) continue;
    const KeptUpdate update = kept_update_of(of.kept.round, task);
    if (std::ranges::find(of.kept.updates, update) == of.kept.updates.end()) {
      return Error(Errc::corrupt,
                   fmt::format("what the history says of the update of {} (task {}) is not what {} "
                               "says: one of them was changed",
                               task.client, task.id, description_name(of.kept.round)));
    }
    counted.push_back(task);
    counted.back().spool_file = update.file;
  }
  if (counted.size() != of.kept.updates.size()) {
    return Error(Errc::corrupt, fmt::format("updates of the round: the history has {}, and {} has "
                                            "{}: one of them was changed",
                                            counted.size(), description_name(of.kept.round),
                                            of.kept.updates.size()));
  }
  return counted;
}

Result<void> check_file(Files& files, const std::filesystem::path& path, std::uint64_t bytes,
                        const Digest& digest, const std::string& what) {
  const auto found = digest_of_file(files, path, bytes);
  if (!found && found.error().code() == Errc::not_found) {
    return Error(Errc::not_found,
                 fmt::format("{} is missing: {}. After a crash the server's next start completes "
                             "what it keeps; otherwise put the file back from a backup",
                             what, found.error().message()));
  }
  if (!found) return found.error().at(what);
  if (*found == digest) return {};
  return Error(Errc::corrupt, fmt::format("{} was changed: {} has digest {}, recorded was {}", what,
                                          path.string(), found->hex(), digest.hex()));
}

/// Checks the reference of each update that is a delta against its recorded digest.
Result<void> check_references(const ReplaySource& from, const KeptRound& kept) {
  for (const KeptUpdate& update : kept.updates) {
    if (update.reference == TaskId::none) continue;
    const std::string name = kept_reference_name(kept.round, update.reference);
    const auto found = std::ranges::find(kept.references, name, &KeptState::file);
    if (found == kept.references.end())
      return Error(Errc::corrupt,
                   fmt::format("{} does not name {}", description_name(kept.round), name));
    FL_CHECK(check_file(
        from.files, from.kept / name, found->bytes, found->digest,
        fmt::format("what the update of {} (task {}) refers to", update.client, update.task)));
  }
  return {};
}

DeltaReferences::Places reference_places(const ReplaySource& from, const KeptRound& kept) {
  DeltaReferences::Places places;
  for (const KeptUpdate& update : kept.updates)
    places[update.reference] = from.kept / kept_reference_name(kept.round, update.reference);
  return places;
}

Result<void> check_files(const ReplaySource& from, const KeptRound& kept) {
  for (const KeptUpdate& update : kept.updates) {
    FL_CHECK(check_file(from.files, from.kept / update.file, update.bytes, update.digest,
                        fmt::format("the update of {} (task {})", update.client, update.task)));
  }
  FL_CHECK(check_references(from, kept));
  const auto names = state_names(base_of(kept.round));
  for (const KeptState& state : kept.state) {
    if (std::ranges::find(names, state.file) == names.end()) {
      return Error(Errc::corrupt, fmt::format("{} names {}, which is not of its round",
                                              description_name(kept.round), state.file));
    }
    FL_CHECK(check_file(from.files, from.checkpoints / state.file, state.bytes, state.digest,
                        "the method's state before the round"));
  }
  return {};
}

Result<PastRounds> rounds_before(Store& store, RunId run, Round round) {
  PastRounds past;
  FL_TRY(const auto rounds, store.summaries().rounds(run));
  for (const RoundSummary& each : rounds) {
    if (each.round < round) past.losses.push_back(each.train_loss.value_or(std::nan("")));
  }
  if (round > 1) {
    FL_TRY(const auto before, store.rounds().closed(run, round - 1));
    past.totals.population = before.round.population;
  }
  return past;
}

Result<Digest> recorded_digest(Summaries& summaries, RunId run, Round round) {
  FL_TRY(const auto rounds, summaries.rounds(run));
  const auto found = std::ranges::find(rounds, round, &RoundSummary::round);
  if (found != rounds.end()) return Digest::parse_hex(found->model_digest);
  return Error(Errc::not_found, fmt::format("run {} has no version {}", run, round));
}

Result<Ingredients> gather(const ReplaySource& from, Round round) {
  Ingredients all;
  FL_TRY(all.stored, from.store.rounds().closed(from.run.id, round));
  FL_TRY(all.kept, description_of(from, round));
  FL_TRY(all.stored.tasks, counted_tasks(all));
  FL_CHECK(check_files(from, all.kept));
  FL_TRY(all.settings, settings_from_json(all.kept.settings));
  FL_TRY(all.past, rounds_before(from.store, from.run.id, round));
  FL_TRY(all.recorded, recorded_digest(from.store.summaries(), from.run.id, round));
  FL_TRY(const auto versions, from.store.rounds().checkpoints(from.run.id));
  for (const CheckpointRecord& version : versions) all.versions[version.version] = version;
  return all;
}

/// The parts of an engine that close a round, without an engine: there are no clients, and the
/// history is only read. Everything runs on the caller's thread.
class Workbench {
 public:
  Workbench(const ReplaySource& from, Ingredients all, const Layout& model)
      : from_(from),
        all_(std::move(all)),
        strand_(net::make_strand(io_)),
        plan_(all_.settings, from.run, model),
        store_(strand_, from.store, caller_, from.run.id, {[](const Error&) {}}),
        spool_(from.files, from.kept),
        references_(from.files, reference_places(from, all_.kept)),
        versions_(from.files, from.checkpoints, plan_.layout),
        roster_(plan_.mode.ahead),
        tasks_(plan_, roster_),
        sums_({store_, caller_, plan_, spool_, references_, versions_, tasks_, all_.past}),
        next_({store_, caller_, plan_, references_, versions_, tasks_, all_.past}) {
    store_.stop();  // A step that would wait for room on the disk ends instead.
    store_.close();
  }

  Result<ReplayedRound> run() {
    FL_CHECK(take_versions());
    open_round();
    FL_TRY(const CheckpointRecord made, make());
    ReplayedRound replayed;
    replayed.round = all_.kept.round;
    FL_TRY(replayed.updates, directions(made.version));
    replayed.recorded = all_.recorded;
    replayed.made = made.digest;
    replayed.closed_by = all_.kept.software;
    FL_TRY(replayed.difference, difference_of(made));
    return replayed;
  }

 private:
  Result<void> take_version(Version version);
  Result<void> take_versions();
  void open_round();
  Result<CheckpointRecord> make();
  Awaitable<Result<CheckpointRecord>> close_round();
  Result<std::vector<UpdateDirection>> directions(Version made);
  Result<std::string> difference_of(const CheckpointRecord& made);
  Result<std::string> first_value(const CheckpointRecord& made);
  Result<std::string> state_difference();

  const ReplaySource& from_;
  const Ingredients all_;
  net::io_context io_{1};
  net::any_io_executor strand_;
  Offload caller_;
  const RunPlan plan_;
  StoreThread store_;
  Spool spool_;
  DeltaReferences references_;
  Versions versions_;
  Roster roster_;
  Tasks tasks_;
  RoundSums sums_;
  NextVersion next_;
};

/// Opens a version that the round reads, and checks its values.
Result<void> Workbench::take_version(Version version) {
  if (versions_.contains(version)) return {};
  const std::string what = fmt::format("the model after round {}", version);
  const auto found = all_.versions.find(version);
  if (found == all_.versions.end()) {
    return Error(Errc::not_found,
                 fmt::format("{} of run {} is not on the disk, and the round was made from it: put "
                             "it back from a backup",
                             what, from_.run.id));
  }
  if (auto opened = versions_.publish(found->second); !opened) return opened.error().at(what);
  auto checked = check_digest(*versions_.at(version), plan_.layout);
  if (!checked) return checked.error().at(what);
  return checked;
}

Result<void> Workbench::take_versions() {
  FL_CHECK(take_version(all_.stored.round.base_version));
  if (plan_.mode.compensation == 0) return {};
  for (const TaskRecord& task : all_.stored.tasks) FL_CHECK(take_version(task.base_version));
  return {};
}

/// Opens the round as a restart does.
void Workbench::open_round() {
  OpenRound round;
  round.record = all_.stored.round;
  round.is_durable = true;
  for (const TaskRecord& record : all_.stored.tasks) {
    Task task;
    task.record = record;
    round.put(std::move(task));
  }
  tasks_.open(std::move(round));
}

Awaitable<Result<CheckpointRecord>> Workbench::close_round() {
  FL_CO_CHECK(co_await sums_.rebuild());
  FL_CO_CHECK(co_await sums_.settle());
  auto open_mean = [this] { return sums_.mean(); };
  co_return co_await next_.make(from_.scratch, std::move(open_mean));
}

Result<CheckpointRecord> Workbench::make() {
  std::optional<Result<CheckpointRecord>> made;
  std::exception_ptr thrown;
  net::co_spawn(strand_, close_round(),
                [&](const std::exception_ptr& failure, Result<CheckpointRecord> result) {
                  thrown = failure;
                  made = std::move(result);
                });
  io_.run();
  if (thrown) std::rethrow_exception(thrown);
  FL_ASSERT(made.has_value());
  return std::move(*made);
}

Result<std::vector<UpdateDirection>> Workbench::directions(Version made) {
  FL_TRY(const auto mean, open_kept_mean(from_.files, from_.scratch, made));
  FL_ASSERT(mean != nullptr);
  UpdateDirections directions;
  const ElementRange parameters{0, plan_.run_layout.parameter_elements};
  const ReadValues read = [&mean](std::uint64_t first, std::span<float> out) {
    return mean->read_exactly(first * sizeof(float), std::as_writable_bytes(out));
  };
  for (const auto& named : tasks_.round().tasks) {
    const TaskRecord& task = named.second.record;
    const auto add = [&](codec::PayloadReader& update, std::uint64_t,
                         const AdjustUpdate& adjust) -> Result<void> {
      FL_TRY(const auto sums, direction_sums(update, adjust, read, {&parameters, 1}));
      directions.add(task, sums);
      return {};
    };
    FL_CHECK(sums_.read_accepted(task, add));
  }
  return directions.finish();
}

Result<std::string> Workbench::difference_of(const CheckpointRecord& made) {
  if (made.digest != all_.recorded) return first_value(made);
  return state_difference();
}

/// The first value that is not the one in the recorded version's file.
Result<std::string> Workbench::first_value(const CheckpointRecord& made) {
  const auto found = all_.versions.find(made.version);
  if (found == all_.versions.end())
    return fmt::format("the model after round {} is not on the disk to compare", made.version);
  FL_TRY(const auto again, open_version(from_.files, from_.scratch, made, plan_.layout));
  const auto there = open_version(from_.files, from_.checkpoints, found->second, plan_.layout);
  if (!there) return there.error().message();
  std::vector<float> ours(std::min<std::uint64_t>(compared_elements, plan_.layout.elements()));
  std::vector<float> theirs(ours.size());
  for (std::uint64_t first = 0; first < plan_.layout.elements(); first += ours.size()) {
    const auto some = static_cast<std::size_t>(
        std::min<std::uint64_t>(ours.size(), plan_.layout.elements() - first));
    FL_CHECK(read_values(*again, first, std::span(ours).first(some)));
    FL_CHECK(read_values(**there, first, std::span(theirs).first(some)));
    for (std::size_t i = 0; i < some; ++i) {
      if (std::bit_cast<std::uint32_t>(ours[i]) == std::bit_cast<std::uint32_t>(theirs[i]))
        continue;
      return fmt::format("{} is {} in {}, and {} made again", plan_.layout.describe(first + i),
                         theirs[i], found->second.file, ours[i]);
    }
  }
  return fmt::format(
      "{} has the values that were made again, and not the digest that the history "
      "has",
      found->second.file);
}

/// Where the next round is kept too, its description has digests of the files that lay beside this
/// version.
Result<std::string> Workbench::state_difference() {
  const auto next = read_description(from_.files, from_.kept, all_.kept.round + 1);
  if (!next) return std::string();
  for (const KeptState& state : next->state) {
    const auto path = from_.scratch / state.file;
    const auto digest = digest_of_file(from_.files, path, state.bytes);
    const bool is_same = digest && *digest == state.digest;
    if (!is_same && from_.files.exists(path))
      return fmt::format("{} is not what round {} began with", state.file, next->round);
  }
  return std::string();
}

}  // namespace

Result<Layout> checked_layout(const RunSettings& settings) {
  FL_CHECK(check_settings(settings));
  return model_layout(settings);
}

Result<ReplayedRound> replay_round(const ReplaySource& from, Round round) {
  FL_TRY(Ingredients all, gather(from, round));
  FL_TRY(const Layout model, from.layout_of(all.settings));
  Workbench workbench(from, std::move(all), model);
  return workbench.run();
}

}  // namespace fl::server
