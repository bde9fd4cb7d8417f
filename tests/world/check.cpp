// SPDX-License-Identifier: Apache-2.0
#include "tests/world/check.hpp"
#include "shared/codec/spec/parser.hpp"

#include "client/state/client_state.hpp"
#include "server/run/round_mode.hpp"
#include "shared/codec/payload/reader.hpp"
#include "tests/server/sums/rows_in_memory.hpp"
#include "tests/support/stored.hpp"
#include "tests/world/check_evaluations.hpp"
#include "tests/world/check_masked.hpp"
#include "tests/world/check_replays.hpp"
#include "tests/world/exact_sum.hpp"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <cmath>

namespace fl::test {

using namespace fl::client;
using namespace fl::codec;
using namespace fl::server;

namespace {

Error wrong(std::string what) { return {Errc::internal, std::move(what)}; }

/// A row of the checkpoint table. Its file may have been deleted.
struct VersionRow {
  Digest digest;
};

struct RoundRow {
  Version base = 0;
  std::uint32_t target = 0;
  std::uint64_t population = 0;
  std::uint64_t examples_max = 0;
  bool is_closed = false;
};

/// Returns the rows of a SELECT. All columns must be text or numbers.
Result<std::vector<std::vector<std::string>>> rows_of(Store& store, const std::string& sql) {
  std::vector<std::vector<std::string>> rows;
  sqlite3_stmt* raw = nullptr;
  if (sqlite3_prepare_v2(store.raw(), sql.c_str(), -1, &raw, nullptr) != SQLITE_OK)
    return wrong(sqlite3_errmsg(store.raw()));
  const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> statement(raw, sqlite3_finalize);
  while (sqlite3_step(raw) == SQLITE_ROW) {
    auto& row = rows.emplace_back();
    for (int i = 0; i < sqlite3_column_count(raw); ++i) {
      const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(raw, i));
      row.emplace_back(text == nullptr ? "" : text);
    }
  }
  return rows;
}

Result<std::vector<float>> decode(const std::string& payload, const Layout& layout) {
  SpanSource source(bytes_of(std::string_view(payload)));
  FL_TRY(auto reader, PayloadReader::open(source, payload.size(), layout));
  std::vector<float> values(layout.elements());
  FL_CHECK(reader.decode_all(values));
  return values;
}

Result<std::vector<float>> code_and_decode(const Codec& codec, const Layout& layout,
                                           std::span<const float> x, std::uint64_t seed) {
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  FL_CHECK(codec.encode(layout, x, seed, sink));
  return decode(std::string(text_of(bytes)), layout);
}

class Checker {
 public:
  Checker(World& world, History& history)
      : world_(world),
        history_(history),
        settings_(world.options().settings),
        mode_(parse_mode(settings_.mode).value()),
        strategy_(parse_strategy(settings_.strategy).value()),
        vector_(run_layout(world.options().problem.layout, *strategy_).value()),
        parameter_elements_(static_cast<std::size_t>(vector_.parameter_elements)),
        model_elements_(static_cast<std::size_t>(vector_.model_elements)),
        layout_(vector_.all) {}

  Result<void> run() {
    FL_CHECK(read_rows());
    FL_CHECK(check_model());
    if (vector_.personal_elements == 0) {
      std::vector<std::span<const float>> models;
      for (const auto& model : models_) models.push_back(std::span(model).first(model_elements_));
      FL_CHECK(check_evaluations(world_, history_, models));
    }
    for (auto& [name, client] : world_.clients()) {
      auto right = check_client(name, client);
      if (!right) return right.error().at(name);
    }
    return check_leftovers();
  }

 private:
  Result<void> read_rows() {
    FL_TRY(const auto versions,
           rows_of(*history_.store, "SELECT version, digest FROM checkpoint ORDER BY version"));
    for (const auto& row : versions) {
      FL_TRY(const Digest digest, Digest::parse_hex(row[1]));
      versions_.push_back({digest});
    }
    FL_TRY(const auto rounds,
           rows_of(*history_.store,
                   "SELECT base_version, target, "
                   "population, examples_max, ended_at FROM round ORDER BY round"));
    for (const auto& row : rounds) {
      rounds_.push_back({static_cast<Round>(std::stoul(row[0])),
                         static_cast<std::uint32_t>(std::stoul(row[1])), std::stoull(row[2]),
                         std::stoull(row[3]), !row[4].empty()});
    }
    FL_TRY(const auto summary, history_.store->summaries().rounds(history_.run.id));
    for (const auto& row : summary) losses_.push_back(row.train_loss.value_or(std::nan("")));
    if (history_.run.state != RunState::finished) return wrong("the run is not finished");
    if (versions_.size() != rounds_.size() + 1)
      return wrong(fmt::format("{} rounds made {} versions", rounds_.size(), versions_.size()));
    if (history_.run.early_end.empty() && rounds_.size() != settings_.rounds)
      return wrong(fmt::format("{} rounds, not {}", rounds_.size(), settings_.rounds));
    return {};
  }

  /// Recomputes each version from the version before it and the accepted updates, and compares bit
  /// for bit.
  Result<void> check_model() {
    const auto& problem = world_.options().problem;
    std::vector<float> model = sent_part(problem.initial_weights(settings_.seed));
    model.resize(layout_.elements());
    for (unsigned vector = 0; vector < strategy_->state_vectors(); ++vector)
      state_.emplace_back(parameter_elements_, strategy_->initial_state(vector));
    std::vector<float> carry(model.size());
    FL_CHECK(check_version(0, model));
    models_.push_back(model);
    for (Round round = 1; round <= rounds_.size(); ++round) {
      auto mean = accepted_mean(round);
      if (!mean) return mean.error().at(fmt::format("round {}", round));
      auto figures = check_figures(round);
      if (!figures) return figures.error().at(fmt::format("round {}", round));
      std::vector<float> step = server_step(round, std::move(*mean));
      if (settings_.downlink_codec != "none") {
        FL_TRY(const auto downlink, parse_downlink_codec(settings_.downlink_codec, round));
        for (std::size_t i = 0; i < step.size(); ++i) step[i] += carry[i];
        FL_TRY(const auto decoded,
               code_and_decode(*downlink, layout_, step, settings_.seed + round));
        for (std::size_t i = 0; i < step.size(); ++i) carry[i] = step[i] - decoded[i];
        step = decoded;
      }
      for (std::size_t i = 0; i < model.size(); ++i) model[i] += step[i];
      FL_CHECK(check_version(round, model));
      models_.push_back(model);
    }
    return {};
  }

  /// Derives what the round's row says of its clients from the members and the models.
  Result<void> check_figures(Round round) {
    double loss = 0;
    double weights = 0;
    for (const auto& [id, task] : tasks_) {
      if (task.round != round || task.state != TaskState::accepted) continue;
      FL_TRY(const double of_task, loss_of(task));
      const double weight = loss_weight_of(task);
      loss += of_task * weight;
      weights += weight;
    }
    const double expected = loss / weights;
    const double recorded = losses_.at(round - 1);
    if (std::fabs(recorded - expected) > 1e-9 * std::fabs(expected))
      return wrong(
          fmt::format("the training loss is {}, the clients' losses make {}", recorded, expected));
    return world_.has_played_clients() ? success() : check_population(round);
  }

  /// The loss that the client of a task must have measured on the version that it trained from.
  Result<double> loss_of(const TaskRecord& task) const {
    const auto client = world_.clients().find(task.client);
    // The checker does not follow personal tensors from version to version.
    if (client == world_.clients().end() || vector_.personal_elements > 0) return task.loss;
    const auto point = world_.options().problem.point(client->second.member.part.client);
    const double loss =
        ToyTrainer::loss_at(std::span(models_.at(task.base_version)).first(model_elements_), point);
    if (task.loss == loss) return loss;
    return wrong(fmt::format("the loss of {} is {}, expected {}", task.client, task.loss, loss));
  }

  /// A round's limit and population are those of all trainers that were asked in the rounds before,
  /// and of some others: those that were here. At least as many as the round wanted.
  Result<void> check_population(Round round) const {
    std::set<std::string> asked;
    for (const auto& [id, task] : tasks_) {
      if (task.round < round) asked.insert(task.client);
    }
    std::vector<std::vector<std::uint64_t>> possible{{}};  // The examples of each possible group.
    for (const auto& [name, client] : world_.clients()) {
      if (client.member.evaluator) continue;
      auto with = possible;
      for (auto& group : with) group.push_back(client.member.part.examples);
      if (asked.contains(name)) {
        possible = std::move(with);
      } else {
        possible.insert(possible.end(), with.begin(), with.end());
      }
    }
    const RoundRow& row = rounds_.at(round - 1);
    const std::size_t least = mode_.is_async ? 1 : row.target;
    for (const auto& group : possible) {
      if (group.size() >= least && fits(row, group)) return {};
    }
    return wrong(
        fmt::format("a population of {} with at most {} examples each is not the weight of {} or "
                    "more trainers with all that were asked before",
                    row.population, row.examples_max, least));
  }

  /// Whether these clients' examples make the round's limit and population.
  bool fits(const RoundRow& row, std::vector<std::uint64_t> examples) const {
    std::ranges::sort(examples);
    const auto middle = static_cast<double>(examples.at(examples.size() / 2));
    const auto most = static_cast<std::uint64_t>(std::ceil(settings_.weight_cap * middle));
    std::uint64_t weight = 0;
    for (const std::uint64_t one : examples)
      weight += weight_of(most == 0 ? one : std::min(one, most));
    return row.examples_max == most && row.population == weight;
  }

  [[nodiscard]] std::uint64_t weight_of(std::uint64_t examples) const {
    return strategy_->weight_of(settings_.weights == "equal" ? 1 : examples);
  }

  /// The part of `whole` that is sent: the whole model without the personal tensors.
  [[nodiscard]] std::vector<float> sent_part(std::span<const float> whole) const {
    std::vector<float> part(model_elements_);
    std::vector<float> personal(vector_.personal_elements);
    vector_.split(whole, part, personal);
    return part;
  }

  /// The examples that an update counts with (--weight-cap).
  [[nodiscard]] std::uint64_t counted(const TaskRecord& task) const {
    const std::uint64_t most = rounds_.at(task.round - 1).examples_max;
    return most == 0 ? task.examples : std::min(task.examples, most);
  }

  /// The weight of the task's loss. No world has predictions so unlike that the limit cuts them.
  [[nodiscard]] double loss_weight_of(const TaskRecord& task) const {
    const auto client = world_.clients().find(task.client);
    if (client == world_.clients().end() || !client->second.member.part.predictions)
      return static_cast<double>(counted(task));
    return *client->second.member.part.predictions * static_cast<double>(task.examples);
  }

  /// The step that the strategy makes from the mean update.
  std::vector<float> server_step(Round round, std::vector<float> step) {
    std::uint64_t weight = 0;
    for (const auto& [id, task] : tasks_) {
      if (task.round == round && task.state == TaskState::accepted)
        weight += weight_of(counted(task));
    }
    RoundFacts facts;
    facts.round = round;
    facts.lr = settings_.lr;
    const auto all = static_cast<double>(rounds_.at(round - 1).population);
    facts.share = static_cast<double>(weight) / all;
    if (round > 1) facts.regrouped = static_cast<double>(rounds_.at(round - 2).population) / all;
    const std::span whole(step);
    const std::vector<std::span<float>> state(state_.begin(), state_.end());
    strategy_->step(facts, state, whole.first(parameter_elements_));
    const auto part = static_cast<float>(strategy_->shared_step(facts));
    const auto grown = static_cast<float>(strategy_->shared_keep(facts) - 1);
    for (std::size_t i = model_elements_; i < step.size(); ++i) {
      step[i] *= part;
      step[i] += grown * models_.at(round - 1).at(i);
    }
    return step;
  }

  Result<void> check_version(Version version, std::span<const float> model) const {
    const Digest digest = Digest::of(std::as_bytes(model));
    if (digest == versions_.at(version).digest) return {};
    return wrong(fmt::format("version {} has digest {}, the accepted updates make {}", version,
                             versions_.at(version).digest.hex(), digest.hex()));
  }

  /// Checks that each task of the round is decided, and that each accepted task has its correct
  /// upload. Returns the weighted mean of the accepted updates, or what a robust rule makes of
  /// them.
  Result<std::vector<float>> accepted_mean(Round round) {
    const RoundRow& row = rounds_.at(round - 1);
    if (!row.is_closed || row.base != round - 1)
      return wrong("the round is still open, or its base is not the version before it");
    FL_TRY(const auto tasks, history_.store->rounds().tasks(history_.run.id, round));
    ExactSum sum(layout_);
    std::uint32_t accepted = 0;
    std::uint64_t update_bytes = 0;
    std::set<std::string> counted;
    std::map<std::string, std::vector<float>> updates;  // By client.
    for (const TaskRecord& task : tasks) {
      if (task.state == TaskState::offered)
        return wrong(fmt::format("task {} is undecided", task.id));
      tasks_[task.id] = task;
      if (task.state != TaskState::accepted) continue;
      if (!counted.insert(task.client).second) return wrong(task.client + " was counted twice");
      if (malice_of(task.client).value_or(Malice::twice) != Malice::twice)
        return wrong("a false update of " + task.client + " was counted");
      auto values = accepted_update(task);
      if (!values) return values.error().at(fmt::format("task {} of {}", task.id, task.client));
      accepted_[task.client].push_back(*values);
      updates[task.client] = *values;
      FL_CHECK(add_stale(sum, task, *values));
      update_bytes += task.update_bytes;
      ++accepted;
    }
    if (accepted < std::min(settings_.min_clients, row.target))
      return wrong(
          fmt::format("the round closed with {} updates, fewer than its quorum", accepted));
    FL_CHECK(check_bytes(round, update_bytes));
    const AggregateRule rule = parse_aggregate(settings_.aggregate).value();
    if (rule.is_mean()) return sum.mean();
    std::vector<std::vector<float>> rows;
    for (auto& [client, update] : updates) rows.push_back(std::move(update));
    center_ = aggregate(rule, std::move(rows), parameter_elements_,
                        rule.has_center() ? center_ : std::vector<float>());
    return center_;
  }

  /// The malice of a member; none for honest members.
  [[nodiscard]] std::optional<Malice> malice_of(const std::string& client) const {
    const auto& malicious = world_.options().malicious;
    for (std::size_t i = 0; i < malicious.size(); ++i) {
      if (client == fmt::format("mallory-{}", i + 1)) return malicious[i];
    }
    return std::nullopt;
  }

  /// Adds an accepted update. Discounts and compensates it as the mode says if it was trained from
  /// an older version.
  Result<void> add_stale(ExactSum& sum, const TaskRecord& task, std::vector<float> values) {
    if (task.base_version >= task.round)
      return wrong("an update of a version that did not exist yet was counted");
    const Round age = task.round - 1 - task.base_version;
    if (age > mode_.late_max)
      return wrong(fmt::format("an update {} versions old was counted", age));
    const std::uint64_t weight = weight_of(counted(task));
    const std::uint64_t discounted = mode_.discounted(weight, age);
    const bool is_compensated = mode_.compensation > 0 && age > 0;
    // The server adds sketches undecoded, unless it must change the decoded values before the sum.
    if (task.codec.starts_with("countsketch") && !is_compensated &&
        !strategy_->adds_what_clients_see()) {
      FL_TRY(const std::string update, spooled_update(task));
      sum.take_sketches(layout_, bytes_of(std::string_view(update)), values, discounted);
    }
    if (task.codec.starts_with("gradzip") && age == 0) {
      FL_TRY(const std::string update, spooled_update(task));
      const std::string identity = fmt::format("{}/{}", settings_.seed, task.round);
      sum.take_factors(layout_, Digest::of(bytes_of(std::string_view(identity))).short_id(), update,
                       values, discounted);
    }
    if (is_compensated) {
      const double factor = mode_.compensation / (settings_.lr * static_cast<double>(task.steps));
      for (std::size_t i = 0; i < parameter_elements_; ++i) {
        const double moved = static_cast<double>(models_.at(task.round - 1)[i]) -
                             static_cast<double>(models_.at(task.base_version)[i]);
        const double u = values[i];
        values[i] = static_cast<float>(u - factor * u * u * moved);
      }
    }
    sum.add(values, discounted, weight * mode_.unit());
    return {};
  }

  Result<std::string> spooled_update(const TaskRecord& task) {
    const auto files = world_.spooled().find(task.spool_file);
    if (files == world_.spooled().end()) return wrong("its upload was never in the spool");
    for (const std::string& file : files->second) {
      const std::string update =
          file.substr(0, task.update_bytes);  // The spool's mark follows the update.
      if (Digest::of(bytes_of(std::string_view(update))) == task.update_digest) return update;
    }
    return wrong("no spool file of it has its digest");
  }

  Result<std::vector<float>> accepted_update(const TaskRecord& task) {
    FL_TRY(const std::string update, spooled_update(task));
    FL_TRY(auto values, decode(update, layout_));
    const bool is_delta = task.codec.starts_with(delta_prefix);
    std::vector<float> reference(values.size());
    if (is_delta) {
      Deltas& deltas = deltas_[task.client];
      if (task.reference != TaskId::none && task.reference != deltas.task)
        return wrong(
            fmt::format("it refers to task {}, the last one was {}", task.reference, deltas.task));
      if (task.reference != TaskId::none) reference = deltas.newest;
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = reference[i] + values[i];
      deltas = {task.id, std::exchange(deltas.newest, values), values};
    }
    if (!world_.clients().contains(task.client)) return values;  // Played by the test.
    const auto& client = world_.clients().at(task.client);
    const auto trained = client.updates.find(task.base_version + 1);
    if (trained == client.updates.end()) return wrong("its client has never trained this update");
    if (task.examples != client.member.part.examples)
      return wrong("its weight is not its client's number of examples");
    const TrainSettings work = local_work(settings_, *strategy_, task.base_version + 1, losses_);
    if (const auto steps = ToyTrainer::steps_of(work, client.member.part); task.steps != steps)
      return wrong(fmt::format("it took {} steps, not {}", task.steps, steps));
    // With error feedback the update also contains the residual; check_mass() checks the sum.
    const bool has_feedback = settings_.codec.ends_with("+ef");
    const auto sent = sent_part(trained->second);
    // The values of a sketch have large errors, but the encoder is deterministic: compare the
    // bytes. This is impossible if the update has more than the model (SCAFFOLD's second vector),
    // because the client does not record that part.
    if (task.codec.starts_with("countsketch")) {
      if (layout_.elements() > sent.size()) return values;
      std::vector<std::byte> wanted;
      VectorSink sink(wanted);
      FL_CHECK(parse_codec(task.codec).value()->encode(layout_, sent, 0, sink));
      if (text_of(wanted) != update)
        return wrong("its sketches are not those of the trained update");
      return values;
    }
    double largest = 0;
    for (std::size_t i = 0; i < sent.size(); ++i)
      largest = std::max(largest, std::fabs(static_cast<double>(sent[i]) - reference[i]));
    // With deltas no element's error is larger than the element: it is 0 if not selected, and
    // nearest_run() (quantized_levels.hpp) guarantees it otherwise.
    const double bound = is_delta               ? largest
                         : task.codec == "none" ? 0
                         : task.codec == "fp16" ? largest / 1024
                                                : largest / 7.5;
    for (std::size_t i = 0; i < model_elements_ && !has_feedback; ++i) {
      if (std::fabs(static_cast<double>(values[i]) - sent[i]) > bound) {
        return wrong(fmt::format("{} arrived as {}, but was trained as {}", layout_.describe(i),
                                 values[i], sent[i]));
      }
    }
    return values;
  }

  Result<void> check_bytes(Round round, std::uint64_t update_bytes) {
    FL_TRY(const auto rows, history_.store->summaries().rounds(history_.run.id));
    const auto row = std::find_if(rows.begin(), rows.end(),
                                  [&](const RoundSummary& r) { return r.round == round; });
    if (row == rows.end()) return wrong("round_summary has no row for the round");
    bytes_up_ += row->bytes_up;
    bytes_down_ += row->bytes_down;
    update_bytes_ += update_bytes;
    // Compare sums over all rounds, because a late update may have arrived in an earlier round. A
    // restarted server counts from 0 again.
    if (world_.server_starts() == 1 && bytes_up_ < update_bytes_) {
      return wrong(fmt::format("{} bytes were counted as received, but the updates alone have {}",
                               bytes_up_, update_bytes_));
    }
    return {};
  }

  Result<void> check_client(const std::string& name, World::Client& client) {
    for (const std::int64_t task : client.acknowledged) {
      const auto found = tasks_.find(TaskId{task});
      if (found == tasks_.end() || found->second.client != name ||
          found->second.state != TaskState::accepted) {
        return wrong(fmt::format("task {} was acknowledged but is not accepted", task));
      }
    }
    if (client.member.evaluator) return {};
    if (vector_.personal_elements > 0) FL_CHECK(check_personal(name, client));
    if (settings_.codec.starts_with(delta_prefix)) return check_reference(name, client);
    if (settings_.codec.ends_with("+ef")) return check_mass(name, client);
    return {};
  }

  /// A client's reference must be its last accepted update, or the one before it if the last
  /// verdict has not arrived.
  Result<void> check_reference(const std::string& name, World::Client& client) {
    const Deltas& deltas = deltas_[name];
    FL_TRY(const auto state, ClientState::open(client.disk, "/state"));
    FL_TRY(const auto stored, state.reference(layout_));
    const auto reference = values_of(stored, layout_.elements());
    std::vector<float> newest = deltas.newest;
    std::vector<float> before = deltas.before;
    newest.resize(reference.size());
    before.resize(reference.size());
    if (reference == newest || (state.pending() && reference == before)) return {};
    return wrong("its reference is not its last accepted update");
  }

  /// A client's personal part must be the initial one plus its accepted updates. The last update
  /// may be missing, because its verdict may not have arrived.
  Result<void> check_personal(const std::string& name, World::Client& client) {
    const auto personal_of = [this](std::span<const float> whole) {
      std::vector<float> part(model_elements_);
      std::vector<float> personal(vector_.personal_elements);
      vector_.split(whole, part, personal);
      return personal;
    };
    auto expected = personal_of(world_.options().problem.initial_weights(settings_.seed));
    std::vector<float> before;
    for (const auto& [id, task] : tasks_) {
      if (task.client != name || task.state != TaskState::accepted) continue;
      before = expected;
      const auto moved = personal_of(client.updates.at(task.base_version + 1));
      for (std::size_t i = 0; i < moved.size(); ++i) expected[i] += moved[i];
    }
    if (before.empty()) return {};  // None of its updates was accepted.
    FL_TRY(const auto state, ClientState::open(client.disk, "/state"));
    const bool has_vector = strategy_->local() != nullptr && strategy_->local()->keeps_vector();
    FL_TRY(const auto kept,
           state.local_values((has_vector ? parameter_elements_ : 0) + vector_.personal_elements));
    if (kept.size() == 0 && state.pending()) return {};
    if (kept.size() < expected.size()) return wrong("its personal part is missing");
    const auto last = kept.values().last(expected.size());
    if (std::ranges::equal(last, expected) || std::ranges::equal(last, before)) return {};
    return wrong("its personal part is not the initial one plus its accepted updates");
  }

  /// Error feedback loses nothing: the sum of all trained updates is the sum of the accepted
  /// updates, the pending upload and the residual.
  Result<void> check_mass(const std::string& name, World::Client& client) {
    FL_TRY(const auto state, ClientState::open(client.disk, "/state"));
    FL_TRY(const auto stored, state.residual(layout_));
    const auto residual = values_of(stored, layout_.elements());
    std::vector<double> mass(residual.begin(), residual.end());
    const auto add = [&mass](std::span<const float> values, double sign) {
      for (std::size_t i = 0; i < values.size(); ++i) mass[i] += sign * values[i];
    };
    for (const auto& update : accepted_[name]) add(update, 1);
    if (state.pending()) {
      const auto task = tasks_.find(TaskId{state.pending()->begin.task()});
      const bool is_counted = task != tasks_.end() && task->second.state == TaskState::accepted;
      if (!is_counted) {
        FL_TRY(const auto values,
               decode(peek(client.disk, "/state/" + state.pending()->file), layout_));
        add(values, 1);
      }
    }
    // A client may train twice in a round, if its first task was given up. Both updates are equal.
    for (const auto& [task, round] : client.saved) add(sent_part(client.updates.at(round)), -1);
    for (std::size_t i = 0; i < parameter_elements_; ++i) {
      if (std::fabs(mass[i]) > 1e-5 * static_cast<double>(1 + client.saved.size())) {
        return wrong(fmt::format("the sum of {} over {} saved updates is off by {}",
                                 layout_.describe(i), client.saved.size(), mass[i]));
      }
    }
    return {};
  }

  /// The server must have each client's last accepted update as its reference, and no other files.
  Result<void> check_references() {
    FL_TRY(auto names, world_.server_disk().list("/state/references"));
    for (const auto& [client, deltas] : deltas_) {
      if (deltas.task == TaskId::none) continue;  // None of its updates was accepted.
      const std::string name = std::to_string(number_of(deltas.task));
      if (std::erase(names, name) == 0)
        return wrong(fmt::format("the server has no reference of {}", client));
      const std::string file = peek(world_.server_disk(), "/state/references/" + name);
      if (!std::ranges::equal(bytes_of(std::string_view(file)),
                              std::as_bytes(std::span<const float>(deltas.newest))))
        return wrong(fmt::format("the reference of {} is not its last update", client));
    }
    if (!names.empty() && !world_.has_lost_power())
      return wrong(fmt::format("{} unused references are left, the first is {}", names.size(),
                               names.front()));
    return {};
  }

  Result<void> check_leftovers() {
    // A restarted server counts from 0 again, so a round may then have almost no bytes.
    const bool has_counted = bytes_up_ > 0 && bytes_down_ > 0;
    if (world_.server_starts() == 1 && !has_counted) return wrong("no bytes were counted");
    // A lie may deliver a frame twice.
    const bool is_exact = std::ranges::count(world_.options().troubles, Trouble::lie) == 0;
    if (is_exact && (bytes_up_ > world_.bytes_up() || bytes_down_ > world_.bytes_down())) {
      return wrong(fmt::format("the history has {} bytes up and {} down, but {} and {} were sent",
                               bytes_up_, bytes_down_, world_.bytes_up(), world_.bytes_down()));
    }
    FL_TRY(const auto spool, world_.server_disk().list("/state/spool"));
    if (!spool.empty() && !world_.has_lost_power())
      return wrong(fmt::format("{} files are left in the spool, the first is {}", spool.size(),
                               spool.front()));
    FL_CHECK(check_references());
    FL_TRY(const auto kept, history_.store->rounds().checkpoints(history_.run.id));
    FL_TRY(auto files, world_.server_disk().list("/state/checkpoints"));
    std::erase_if(files, [&kept](const std::string& name) {
      // The strategy's state, the downlink codec's carry and a rule's last result have no rows.
      if (name.ends_with(".state") || name.ends_with(".carry") || name.ends_with(".mean"))
        return true;
      return std::ranges::any_of(kept, [&name](const CheckpointRecord& record) {
        return record.file == name || record.delta_file == name;
      });
    });
    if (!files.empty() && !world_.has_lost_power())
      return wrong(files.front() + " belongs to no version that the history keeps");
    for (const auto& record : kept) {
      auto version = open_version(world_.server_disk(), "/state/checkpoints", record, layout_);
      if (!version) return version.error();
      std::vector<float> values(layout_.elements());
      FL_CHECK(read_values(**version, 0, values));
      if (Digest::of(std::as_bytes(std::span<const float>(values))) != record.digest)
        return wrong(record.file + " does not have the digest of its version");
    }
    return {};
  }

  World& world_;
  History& history_;
  const RunSettings& settings_;
  RoundMode mode_;
  std::shared_ptr<const Strategy> strategy_;
  RunLayout vector_;
  std::size_t parameter_elements_;
  std::size_t model_elements_;
  const Layout& layout_;
  std::vector<VersionRow> versions_;
  std::vector<RoundRow> rounds_;
  std::vector<double> losses_;              // By round, from 1.
  std::vector<std::vector<float>> models_;  // By version.
  std::vector<float> center_;               // The last result of a robust rule.
  std::vector<std::vector<float>> state_;   // The strategy's state vectors.
  std::map<TaskId, TaskRecord> tasks_;
  std::map<std::string, std::vector<std::vector<float>>> accepted_;  // Decoded, by client.
  /// The last two accepted updates of a client that sends deltas, and the task of the last one.
  struct Deltas {
    TaskId task = TaskId::none;
    std::vector<float> before;
    std::vector<float> newest;
  };
  std::map<std::string, Deltas> deltas_;
  std::uint64_t bytes_up_ = 0;
  std::uint64_t bytes_down_ = 0;
  std::uint64_t update_bytes_ = 0;
};

}  // namespace

Result<History> History::open(World& world) {
  world.server_disk().kill();
  world.server_disk().space_limit(MemFiles::no_limit);
  History history;
  history.vfs = std::make_unique<SqliteFilesVfs>("sim-check", world.server_disk());
  FL_TRY(history.store,
         Store::open({.path = "/state/history.sqlite", .vfs = "sim-check", .exclusive = true}));
  FL_TRY(const auto run, history.store->runs().latest());
  if (!run) return wrong("the history has no run");
  history.run = *run;
  return history;
}

Result<void> check(World& world) {
  FL_TRY(auto history, History::open(world));
  if (world.options().is_masked()) return check_masked(world, history);
  FL_CHECK(Checker(world, history).run());
  return check_replays(world, history);
}

Result<Digest> final_digest(World& world) {
  FL_TRY(auto history, History::open(world));
  FL_TRY(const auto versions, history.store->rounds().checkpoints(history.run.id));
  if (versions.empty()) return wrong("the history has no checkpoint");
  return versions.back().digest;
}

}  // namespace fl::test
