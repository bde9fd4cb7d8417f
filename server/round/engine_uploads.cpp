// The engine's half of an upload: may it begin, is it right, is it durable, does it count.
#include "server/round/engine.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/params/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl {

namespace {

wire::Verdict verdict_for(const wire::UploadBegin& begin, wire::Verdict::Outcome outcome,
                          std::string reason) {
  wire::Verdict verdict;
  verdict.set_purpose(begin.purpose());
  verdict.set_task(begin.task());
  verdict.set_outcome(outcome);
  verdict.set_reason(std::move(reason));
  return verdict;
}

RoundEngine::Grant refuse(const wire::UploadBegin& begin, wire::Verdict::Outcome outcome,
                          std::string reason) {
  RoundEngine::Grant grant;
  grant.verdict = verdict_for(begin, outcome, std::move(reason));
  return grant;
}

}  // namespace

RoundEngine::Task* RoundEngine::task_of(const std::string& client) {
  auto& tasks = round_ ? round_->tasks : carried_;
  const auto found = tasks.find(client);
  return found != tasks.end() ? &found->second : nullptr;
}

RoundEngine::Task* RoundEngine::find_task(const std::string& client, std::int64_t id) {
  Task* const task = task_of(client);
  return task != nullptr && task->record.id == id ? task : nullptr;
}

std::size_t RoundEngine::chunk_bytes_max() const {
  // A session holds up to three chunks: the one being read, the one waiting, the one being written.
  const auto transfers = static_cast<std::size_t>(std::max(1, bulk_transfers_ + 1));
  const std::size_t fair = std::bit_floor(limits::bulk_bytes_max / (3 * transfers));
  return std::clamp(fair, limits::chunk_bytes_min, limits::chunk_bytes_max);
}

Awaitable<RoundEngine::Grant> RoundEngine::begin_upload(std::shared_ptr<Peer> peer,
                                                        wire::UploadBegin begin) {
  const std::string& client = peer->facts().name;
  if (begin.purpose() == wire::INITIAL)
    co_return co_await begin_initial(std::move(peer), std::move(begin));
  Task* const task = co_await admit(client, begin.task());
  if (stopping_ || ended_) co_return refuse(begin, wire::Verdict::LATER, "the server goes down");
  if (task == nullptr || !task->is_open()) {
    Grant grant;
    grant.verdict = co_await verdict_of_earlier(client, begin);
    co_return grant;
  }
  if (bulk_transfers_ >= static_cast<int>(limits::bulk_transfers_max)) {
    co_return refuse(begin, wire::Verdict::LATER,
                     fmt::format("{} transfers are under way", bulk_transfers_));
  }
  if (auto right = check_begin(begin, *task); !right) {
    TaskRecord record = task->record;
    record.state = TaskState::refused;
    record.reason = right.error().message();
    report("warning", fmt::format("{}: update refused: {}", client, record.reason));
    if (auto settled = co_await settle(*task, record); !settled)
      co_return refuse(begin, wire::Verdict::LATER, settled.error().message());
    co_return refuse(begin, wire::Verdict::REFUSED, record.reason);
  }
  Grant grant = co_await open_upload(std::move(begin));
  if (grant.upload && find_task(client, grant.upload->task()) == nullptr) {
    // The round was committed, and its spool cleared, while the file was made.
    if (auto removed = spool_.remove(grant.upload->file_name()); !removed) fail(removed.error());
    co_return refuse(grant.begin, wire::Verdict::STALE, "the round went on without it");
  }
  if (grant.upload) {
    grant.began_at = Clock::now();
    grant.offset = grant.upload->next_offset();
    Task& begun = *find_task(client, grant.upload->task());
    if (begun.begun_at == TimePoint{}) begun.begun_at = grant.began_at;
  }
  co_return grant;
}

Awaitable<RoundEngine::Grant> RoundEngine::open_upload(wire::UploadBegin begin) {
  Grant grant;
  const Digest digest = Digest::from_bytes(begin.digest()).value();  // Checked before.
  auto work = [this, task = begin.task(), bytes = begin.bytes(), digest] {
    return spool_.open(task, bytes, digest);
  };
  auto upload = co_await workers_.compute->run(std::move(work));
  if (!upload) {
    if (!will_pass(upload.error())) {
      fail(upload.error());
    } else if (upload.error().code() == Errc::no_space) {
      disk_is_full(fmt::format("task {}: {}", begin.task(), upload.error().message()));
    }
    co_return refuse(begin, wire::Verdict::LATER,
                     "the server can't store it now: " + upload.error().message());
  }
  grant.upload = std::move(*upload);
  grant.chunk_bytes_max = chunk_bytes_max();
  grant.begin = std::move(begin);
  co_return grant;
}

/// An upload for a task that is not open: decided before (the acknowledgement was lost), or too
/// late.
Awaitable<wire::Verdict> RoundEngine::verdict_of_earlier(const std::string& client,
                                                         const wire::UploadBegin& begin) {
  auto read = [run = run_.id, id = begin.task()](Store& store) { return store.find_task(run, id); };
  const auto found = co_await with_store(std::move(read));
  if (!found) co_return verdict_for(begin, wire::Verdict::LATER, found.error().message());
  if (!*found || (*found)->client != client) {
    co_return verdict_for(
        begin, wire::Verdict::STALE,
        fmt::format("task {} of round {} is not one of {}", begin.task(), begin.round(), client));
  }
  const TaskRecord& task = **found;
  if (task.state == TaskState::accepted) co_return verdict_for(begin, wire::Verdict::ACCEPTED, "");
  if (task.state == TaskState::refused)
    co_return verdict_for(begin, wire::Verdict::REFUSED, task.reason);
  if (task.state == TaskState::offered && !is_over())
    co_return verdict_for(begin, wire::Verdict::LATER, "it is being checked");
  co_return verdict_for(begin, wire::Verdict::STALE,
                        task.reason.empty() ? "the round went on without it" : task.reason);
}

Result<void> RoundEngine::check_begin(const wire::UploadBegin& begin, const Task& task) const {
  const auto bad = [](Errc code, std::string what) { return Error(code, std::move(what)); };
  const Round base = task.record.base_version;
  if (begin.round() != base + 1) {
    return bad(Errc::conflict, fmt::format("it is of round {}, its task was offered in round {}",
                                           begin.round(), base + 1));
  }
  if (begin.version() != base) {
    return bad(Errc::conflict,
               fmt::format("it was trained from model version {}, not {}", begin.version(), base));
  }
  if (!Digest::from_bytes(begin.digest()))
    return bad(Errc::invalid_input, "its digest has not 16 bytes");
  if (begin.codec() != task.record.codec) {
    return bad(Errc::invalid_input, fmt::format("it is coded as '{}', asked for was '{}'",
                                                begin.codec().substr(0, 64), task.record.codec));
  }
  if (begin.reference() != 0 && begin.reference() != task.record.reference) {
    return bad(
        Errc::conflict,
        fmt::format("it is the difference to the update of task {}, asked for was that to {}",
                    begin.reference(), task.record.reference));
  }
  const auto codec = parse_codec(task.record.codec).value();  // What its round has, warm-up or not.
  const std::uint64_t bytes_max = codec->payload_bytes_max(layout_);
  if (begin.bytes() == 0 || begin.bytes() > bytes_max) {
    return bad(Errc::too_large, fmt::format("it has {} bytes; 1 to {} fit the model and codec",
                                            begin.bytes(), bytes_max));
  }
  if (begin.examples() == 0) return bad(Errc::invalid_input, "its weight is 0 examples");
  if (begin.examples() > task.record.examples) {
    return bad(Errc::invalid_input, fmt::format("its weight is {} examples, the client has {}",
                                                begin.examples(), task.record.examples));
  }
  // With mini-batches of one example each.
  const std::uint64_t most = steps_max(work_of(base + 1), begin.examples());
  if (begin.steps() == 0 || begin.steps() > most) {
    return bad(Errc::invalid_input,
               fmt::format("it took {} steps; 1 to {} were asked for", begin.steps(), most));
  }
  if (!std::isfinite(begin.loss()))
    return bad(Errc::invalid_input, "its training loss is not finite");
  if (!(std::isfinite(begin.train_seconds()) && begin.train_seconds() >= 0)) {
    return bad(Errc::invalid_input, fmt::format("its training took {} s", begin.train_seconds()));
  }
  if (!(std::isfinite(begin.encode_seconds()) && begin.encode_seconds() >= 0)) {
    return bad(Errc::invalid_input, fmt::format("coding it took {} s", begin.encode_seconds()));
  }
  if (!(std::isfinite(begin.nmse()) && begin.nmse() >= 0)) {
    return bad(Errc::invalid_input, fmt::format("coding it lost {} of it", begin.nmse()));
  }
  return {};
}

Awaitable<wire::Verdict> RoundEngine::finish_upload(std::shared_ptr<Peer> peer, Grant grant) {
  if (grant.begin.purpose() == wire::INITIAL)
    co_return co_await finish_initial(std::move(peer), std::move(grant));
  const std::string client = peer->facts().name;
  const auto& begin = grant.begin;
  const TimePoint arrived_at = Clock::now();
  Task* task = nullptr;
  TaskRecord record;
  double decode_seconds = 0;
  Result<UpdateNorms> checked = UpdateNorms();
  if (Task* const arrived = find_task(client, begin.task())) arrived->has_arrived = true;
  task = co_await admit(client, begin.task());
  if (task != nullptr) task->has_arrived = false;
  if (task == nullptr || !task->is_open() || stopping_ || ended_) {
    co_return co_await verdict_of_earlier(client, begin);
  }
  task->is_verifying = true;  // From here to its end the round can't close, so `task` stays.
  record = task->record;
  record.examples = begin.examples();
  record.steps = begin.steps();
  record.reference = begin.reference();
  for (;;) {
    auto work = [this, upload = grant.upload, record, &decode_seconds]() -> Result<UpdateNorms> {
      FL_CHECK(spool_.finish(*upload));
      failpoint("upload.synced");
      const TimePoint began = Clock::now();
      auto added = add_to_sums(*upload->file(), upload->bytes(), record);
      decode_seconds = std::chrono::duration<double>(Clock::now() - began).count();
      return added;
    };
    checked = co_await workers_.compute->run(std::move(work));
    if (checked || checked.error().code() != Errc::too_large || !is_range_narrow()) break;
    // The main loop widens the sums' range, and then this update is added up again.
    round_->is_too_narrow = true;
    task->waits_for_range = true;
    changed_.notify();
    while (round_->is_too_narrow && !stopping_ && !ended_) co_await changed_.wait(never);
    task->waits_for_range = false;
    if (round_->is_too_narrow) {
      task->is_verifying = false;
      co_return verdict_for(begin, wire::Verdict::LATER, "the server goes down");
    }
  }

  record.loss = begin.loss();
  record.train_seconds = begin.train_seconds();
  record.update_bytes = begin.bytes();
  record.raw_bytes = layout_.elements() * sizeof(float);
  record.encode_seconds = begin.encode_seconds();
  record.decode_seconds = decode_seconds;
  record.nmse = begin.nmse();
  // After a restart of ours it may begin at once with what it made before.
  record.ready_seconds = std::max(seconds(task->begun_at - task->offered_at),
                                  begin.train_seconds() + begin.encode_seconds());
  if (const std::uint64_t sent = begin.bytes() - grant.offset; sent > 0) {
    record.upload_seconds = seconds(arrived_at - grant.began_at) *
                            static_cast<double>(begin.bytes()) / static_cast<double>(sent);
  }
  record.update_digest = grant.upload->digest();
  wire::Verdict::Outcome outcome = wire::Verdict::ACCEPTED;
  if (checked) {
    ++clocks_[client];
    record.state = TaskState::accepted;
    record.norm = checked->l2;
    record.spool_file = grant.upload->file_name();
  } else {
    const Errc code = checked.error().code();
    // Sums that could not be taken back are rebuilt from the spool by a restart.
    if (code == Errc::io || code == Errc::internal || sums_->broken()) {
      fail(checked.error());  // A failed fsync is never retried.
      task->is_verifying = false;
      co_return verdict_for(begin, wire::Verdict::LATER, "the server's disk failed");
    }
    // Bytes that are not those announced are this session's loss only: the client sends them again.
    const bool again =
        will_pass(checked.error()) || (code == Errc::corrupt && grant.upload->differs());
    if (code == Errc::no_space)
      disk_is_full(fmt::format("{}: {}", client, checked.error().message()));
    report("warning", fmt::format("{}: update {}: {}", client, again ? "to be repeated" : "refused",
                                  checked.error().message()));
    auto removed = spool_.remove(grant.upload->file_name());
    if (!removed) fail(removed.error());
    if (again) {
      task->is_verifying = false;
      end_tasks_of_expelled();
      changed_.notify();  // The round may be waiting for us to close.
      co_return verdict_for(begin, wire::Verdict::LATER, checked.error().message());
    }
    outcome = wire::Verdict::REFUSED;
    record.state = TaskState::refused;
    record.reason = checked.error().message();
    if (record.codec.starts_with(delta_prefix)) {
      const bool is_reference_bad =
          record.reference != 0 && (code == Errc::not_found || code == Errc::corrupt);
      auto dropped = references_.refuse(client, record.id, is_reference_bad);
      if (!dropped) fail(dropped.error());
    }
  }
  if (auto settled = co_await settle(*task, record); !settled)
    co_return verdict_for(begin, wire::Verdict::LATER, "the server stops");
  if (begin.has_holdout() && outcome == wire::Verdict::ACCEPTED) {
    wire::Evaluation holdout;
    holdout.set_version(begin.version());
    holdout.set_examples(begin.holdout_examples());
    holdout.set_loss(begin.holdout_loss());
    holdout.set_accuracy(begin.holdout_accuracy());
    holdout.set_own_loss(begin.own_loss());
    holdout.set_own_accuracy(begin.own_accuracy());
    co_await evaluation(peer, std::move(holdout));
  }
  co_return verdict_for(begin, outcome, record.reason);
}

// Decisions, made durable in groups: one transaction for all that came while the last one was
// written. --

/// Ends a task. Until that is durable nothing else decides on it, and its round can't close.
Awaitable<Result<void>> RoundEngine::settle(Task& task, TaskRecord record) {
  task.is_verifying = true;
  // After a restart of ours the offer is younger than the work.
  record.seconds = std::max(seconds(Clock::now() - task.offered_at), record.ready_seconds);
  auto decided = co_await decide(record);
  task.is_verifying = false;
  if (decided && round_) round_->decide(task, record);
  if (decided && !round_) task.record = record;  // It is carried to the next round.
  if (record.state != TaskState::accepted) note_failure(task);
  changed_.notify();  // The round may wait for it to close, and other uploads for its place.
  co_return decided;
}

Awaitable<Result<void>> RoundEngine::decide(TaskRecord record) {
  if (ended_) co_return Error(Errc::unavailable, "the server goes down");
  auto decision = std::make_shared<Decision>();
  decision->record = std::move(record);
  decisions_.push_back(decision);
  decided_.notify();
  while (!decision->outcome) co_await decided_.wait();
  co_return *decision->outcome;
}

Awaitable<void> RoundEngine::commit_decisions() {
  for (;;) {
    while (decisions_.empty() && !ended_) co_await decided_.wait();
    if (decisions_.empty()) co_return;
    const auto group = std::exchange(decisions_, {});
    std::vector<TaskRecord> records;
    records.reserve(group.size());
    for (const auto& decision : group) records.push_back(decision->record);
    auto write = [this, records](Store& store) -> Result<void> {
      FL_CHECK(spool_.sync_names());
      failpoint("task.before_decided");
      FL_CHECK(store.decide_tasks(records));
      failpoint("task.decided");
      return {};
    };
    auto written = co_await with_store(std::move(write));
    if (!written && !will_pass(written.error())) fail(written.error());
    for (const auto& decision : group) decision->outcome = written;
    decided_.notify();
  }
}

// The initial model ----------------------------------------------------------------------------

bool RoundEngine::came_from_seed() const { return settings_.initial_weights.empty(); }

/// Asks a trainer for the initial weights, and after a while another: the first may have lost its
/// line without our noticing. All make the same, so the first to bring them will do.
void RoundEngine::pick_initialiser() {
  if (!came_from_seed()) return;
  if (!initialisers_.empty() && Clock::now() < next_initialiser_at_) return;
  auto candidates = trainers();
  if (initialisers_.size() >= candidates.size()) initialisers_.clear();  // Round again.
  for (const auto& candidate : candidates) {
    if (!initialisers_.insert(candidate->facts().name).second) continue;
    next_initialiser_at_ = Clock::now() + limits::initialiser_patience;
    wire::Header header;
    header.mutable_initialise();
    candidate->post(std::move(header));
    return;
  }
}

Awaitable<RoundEngine::Grant> RoundEngine::begin_initial(std::shared_ptr<Peer> peer,
                                                         wire::UploadBegin begin) {
  if (!versions_.empty()) co_return refuse(begin, wire::Verdict::ACCEPTED, "");
  if (!initialisers_.contains(peer->facts().name))
    co_return refuse(begin, wire::Verdict::STALE, "another client was asked");
  const bool fits = begin.codec() == "none" && begin.bytes() > 0 &&
                    begin.bytes() <= parse_codec("none").value()->payload_bytes_max(layout_) &&
                    Digest::from_bytes(begin.digest()).has_value();
  if (!fits)
    co_return refuse(begin, wire::Verdict::REFUSED,
                     "these initial weights do not fit the run's model");
  begin.set_task(0);
  co_return co_await open_upload(std::move(begin));
}

Awaitable<wire::Verdict> RoundEngine::finish_initial(std::shared_ptr<Peer> peer, Grant grant) {
  const auto& begin = grant.begin;
  if (!versions_.empty() || initial_under_way_)
    co_return verdict_for(begin, wire::Verdict::STALE, "the initial model is there");
  initial_under_way_ = true;
  auto work = [this, upload = grant.upload]() -> Result<CheckpointRecord> {
    FL_CHECK(upload->finish());
    FileSource source(*upload->file());
    FL_TRY(auto reader, PayloadReader::open(source, upload->bytes(), layout_));
    FL_TRY(auto out, CheckpointWriter::create(files_, paths_.checkpoints, 0, layout_,
                                              {{"run", run_.key}, {"model", run_.model}}));
    std::vector<float> values;
    for (std::uint64_t index = 0; index < reader.blocks(); ++index) {
      values.resize(reader.block(index).elements);
      FL_TRY([[maybe_unused]] const Scan scan, reader.decode(index, values));
      FL_CHECK(out.append(values));
    }
    return out.finish();
  };
  auto made = co_await workers_.compute->run(std::move(work));
  if (made) {
    auto write = [run = run_.id, record = *made](Store& store) {
      return store.set_initial_model(run, record);
    };
    auto written = co_await with_store(std::move(write));
    if (!written) made = written.error();
  }
  initial_under_way_ = false;
  if (!made) {
    if (made.error().code() == Errc::io || made.error().code() == Errc::internal)
      fail(made.error());
    // Its bytes are wrong, and whoever is asked next would go on behind them.
    auto removed = spool_.remove(grant.upload->file_name());
    if (!removed) fail(removed.error());
    next_initialiser_at_ = Clock::now() + limits::ask_again_min;
    changed_.notify();
    report("warning", fmt::format("{}: initial weights refused: {}", peer->facts().name,
                                  made.error().message()));
    co_return verdict_for(begin, wire::Verdict::REFUSED, made.error().message());
  }
  failpoint("initial.committed");
  auto removed = spool_.remove(grant.upload->file_name());
  if (!removed) fail(removed.error());
  auto version = open_version(files_, paths_.checkpoints, *made, layout_);
  if (!version) {
    fail(version.error());
    co_return verdict_for(begin, wire::Verdict::LATER, "the server stops");
  }
  log_info("initial model of {} parameters, digest {}", layout_.elements(), made->digest.hex());
  publish(std::move(*version));
  co_return verdict_for(begin, wire::Verdict::ACCEPTED, "");
}

Awaitable<Result<void>> RoundEngine::take_initial_file() {
  auto work = [this]() -> Result<CheckpointRecord> {
    auto read = read_initial_weights(files_, settings_.initial_weights, model_, *strategy_);
    // A file that can't be read is this run's fault, and not the disk's.
    if (!read && read.error().code() == Errc::io)
      return Error(Errc::invalid_input, read.error().message());
    FL_CHECK(read);
    if (!read->unused.empty()) {
      const std::string names = fmt::format("{}", fmt::join(read->unused, ", "));
      log_info("{}: not used are {}{}", settings_.initial_weights, names,
               vector_.personal_elements > 0
                   ? "; the personal part every client makes itself, from the seed"
                   : "");
    }
    // What travels with the model begins with zeros.
    std::vector<float> values = std::move(read->values);
    values.resize(layout_.elements());
    FL_TRY(auto out,
           CheckpointWriter::create(
               files_, paths_.checkpoints, 0, layout_,
               {{"run", run_.key}, {"model", run_.model}, {"from", settings_.initial_weights}}));
    FL_CHECK(out.append(values));
    return out.finish();
  };
  const auto made = co_await with_room(std::move(work));
  if (!made) co_return made.error();
  auto write = [run = run_.id, record = *made](Store& store) {
    return store.set_initial_model(run, record);
  };
  FL_CO_CHECK(co_await with_store(std::move(write)));
  FL_CO_TRY(auto version, open_version(files_, paths_.checkpoints, *made, layout_));
  publish(std::move(version));
  co_return success();
}

}  // namespace fl
