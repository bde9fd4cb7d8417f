// SPDX-License-Identifier: Apache-2.0
#include "client/site/site.hpp"

#include "client/learn/process/tcp.hpp"
#include "client/site/site_handshake.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/base/io/secret_file.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace fl::site {

using nlohmann::json;

namespace {

/// Puts a rank of this machine first, because the first rank of a group maps the agent's files.
std::vector<SiteMember> from_here(std::vector<SiteMember> members) {
  std::rotate(members.begin(), std::ranges::find_if(members, &SiteMember::is_here), members.end());
  return members;
}

/// The ranks of a site that are not among `members`: "1, 3".
std::string missing(int size, const std::vector<SiteMember>& members) {
  std::vector<int> absent;
  for (int rank = 0; rank < size; ++rank) {
    const bool is_there = std::ranges::any_of(
        members, [rank](const SiteMember& member) { return member.rank == rank; });
    if (!is_there) absent.push_back(rank);
  }
  return fmt::format("{}", fmt::join(absent, ", "));
}

bool is_same(const std::vector<SiteMember>& a, const std::vector<SiteMember>& b) {
  return std::ranges::equal(a, b, [](const SiteMember& x, const SiteMember& y) {
    return x.rank == y.rank && x.process == y.process && x.host == y.host;
  });
}

const char* name_of(Site::Kind kind) {
  switch (kind) {
    case Site::Kind::train: return "train";
    case Site::Kind::evaluate: return "evaluate";
    case Site::Kind::gradient: return "gradient";
  }
  return "";
}

/// The ranks that the agent starts itself.
std::vector<SitePlace> own_places(const SiteOptions& options,
                                  const std::optional<SitePlace>& place) {
  if (place) return {*place};
  std::vector<SitePlace> places;
  for (int rank = 0; rank < options.ranks; ++rank) {
    places.push_back({.rank = rank,
                      .size = options.ranks,
                      .local_rank = rank,
                      .local_size = options.ranks,
                      .host = "127.0.0.1",
                      .port = 0,  // LocalRanks::start_missing() learns it.
                      .launcher = {},
                      .interface = options.interface.empty() ? "lo" : options.interface});
  }
  return places;
}

/// Where the agent listens for ranks, also of other machines. Debian's /etc/hosts gives a machine's
/// own name the address 127.0.1.1, which other machines can't reach: then it listens everywhere.
std::string listening_host(const SitePlace& place) {
  if (place.local_size == place.size || !is_loopback(place.host)) return place.host;
  log_info("{} is an address of this machine alone: listening at all of its addresses", place.host);
  return "";
}

}  // namespace

Site::Site(SiteOptions options, Grid grid, LearnOptions learn, TensorFolder folder,
           KeptChoices measured, int size)
    : options_(std::move(options)),
      grid_(grid),
      learn_(std::move(learn)),
      folder_(std::move(folder)),
      measured_(std::move(measured)),
      size_(size) {}

Site::~Site() {
  if (hub_) hub_->end_ranks();
  if (local_) local_->end_all();
}

Result<std::shared_ptr<Site>> Site::start(const SiteOptions& options,
                                          const std::optional<SitePlace>& place,
                                          const LearnOptions& learn,
                                          const std::filesystem::path& state,
                                          const std::stop_token& stop) {
  FL_TRY(TensorFolder folder, TensorFolder::make(state));
  FL_TRY(KeptChoices measured, KeptChoices::open(posix_files(), state / "ranks/measured.json"));
  const int size = place ? place->size : options.ranks;
  FL_TRY(const Grid asked, grid_of(options));
  FL_TRY(const Grid grid, fill_grid(asked, size));
  LearnOptions ranks = learn;
  ranks.state = std::filesystem::absolute(state).string();
  std::shared_ptr<Site> site(
      new Site(options, grid, std::move(ranks), std::move(folder), std::move(measured), size));
  std::string secret;
  if (!options.secret_file.empty()) {
    FL_TRY(secret, read_secret_file(posix_files(), options.secret_file));
  } else {
    FL_TRY(secret, make_site_secret());
  }
  SiteHub::Options hub;
  hub.host = place ? listening_host(*place) : "127.0.0.1";
  hub.port = place ? place->port : std::uint16_t{0};
  hub.secret = secret;
  hub.size = size;
  hub.silence = std::min<Duration>(duration_of(options.timeout_s), limits::rank_silence);
  hub.collective = duration_of(options.timeout_s);
  hub.progress = std::max<Duration>(hub.collective, limits::rank_progress);
  // A rank that is stopped still has its connections to the others, which wait for it.
  site->local_ = std::make_unique<LocalRanks>(
      LocalRanks::Options{own_places(options, place), secret, options.timeout_s});
  hub.on_lost = [local = site->local_.get()](int rank) { local->end(rank); };
  auto opened = SiteHub::open(std::move(hub));
  if (!opened && place) {
    return Error(opened.error().code(),
                 fmt::format("{}; rank 0 has to listen there: if that is no address of this "
                             "machine, or the port is taken, give all ranks --site-address "
                             "HOST:PORT with an address of rank 0's machine",
                             opened.error().message()));
  }
  FL_TRY(site->hub_, std::move(opened));
  log_info("a site of {} ranks{}", size, place ? " under " + place->launcher : "");
  FL_TRY(const auto members, site->gather(stop));
  site->learn_.model.clear();
  FL_CHECK(site->load_at(members, stop));
  return site;
}

/// Waits for all ranks or, when the time is over, for enough of them.
Result<std::vector<SiteMember>> Site::gather(const std::stop_token& stop) {
  const TimePoint until = Clock::now() + duration_of(options_.timeout_s);
  std::vector<SiteMember> members;
  for (;;) {
    FL_CHECK(local_->start_missing(hub_->port()));
    const TimePoint next = std::min<TimePoint>(until, Clock::now() + limits::rank_restart_pause);
    members = hub_->wait_for(static_cast<std::size_t>(size_), next, stop);
    if (std::cmp_equal(members.size(), size_)) return from_here(std::move(members));
    if (stop.stop_requested()) return Error(Errc::cancelled, "stopped");
    if (Clock::now() >= until) break;
  }
  const int least = options_.ranks_min > 0 ? options_.ranks_min : size_;
  const std::string text = fmt::format("{} of {} ranks are there; missing: {}", members.size(),
                                       size_, missing(size_, members));
  hub_->tell(text);
  const bool is_enough = std::cmp_greater_equal(members.size(), least) &&
                         std::ranges::any_of(members, &SiteMember::is_here);
  if (!is_enough) {
    return Error(Errc::deadline,
                 fmt::format("{}, after {:g} s (--rank-timeout)", text, options_.timeout_s));
  }
  log_warn("{}; the site goes on without them", text);
  return from_here(std::move(members));
}

/// Sends these requests. Errors: the first error that says something of the work, or else the first
/// error of all.
Result<std::vector<json>> Site::ask_all(const std::vector<SiteHub::Request>& requests,
                                        const std::stop_token& stop) {
  auto answers = hub_->ask(requests, stop);
  if (stop.stop_requested()) return Error(Errc::cancelled, "stopped");
  std::optional<Error> first;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers[i]) continue;
    const bool is_loss = answers[i].error().code() == Errc::unavailable;
    if (!is_loss) return answers[i].error();
    const std::string how = local_->ending_of(requests[i].rank);
    losses_.push_back(answers[i].error().message() + (how.empty() ? "" : ": " + how));
    if (!first) first = answers[i].error();
  }
  if (first) return *first;
  std::vector<json> all;
  for (auto& answer : answers) all.push_back(std::move(*answer));
  return all;
}

/// Has these ranks load data and, if there is one, the model.
Result<RankLoaded> Site::load_at(const std::vector<SiteMember>& members,
                                 const std::stop_token& stop) {
  const ParallelSettings parallel{.hook = options_.hook,
                                  .topology = options_.topology,
                                  .unused_parameters = options_.unused_parameters,
                                  .bucket_mb = options_.bucket_mb,
                                  .zero = options_.zero,
                                  .tp = grid_.tp,
                                  .sequence_parallel = options_.sequence_parallel,
                                  .cp = grid_.cp,
                                  .context_parallel = options_.context_parallel,
                                  .ep = grid_.ep,
                                  .expert_parallel = options_.expert_parallel,
                                  .pp = grid_.pp,
                                  .pipeline = options_.pipeline};
  std::vector<SiteHub::Request> requests;
  for (const SiteMember& member : members)
    requests.push_back({member.rank,
                        {{"type", "load"},
                         {"learn", to_json_of(learn_)},
                         {"parallel", to_json_of(parallel)},
                         {"backend", options_.backend}}});
  FL_TRY(const auto answers, ask_all(requests, stop));
  RankLoaded first;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    FL_TRY(RankLoaded loaded, parse_as<RankLoaded>(answers[i]));
    if (i == 0) {
      first = std::move(loaded);
      continue;
    }
    const bool is_same = loaded.layout == first.layout && loaded.train == first.train &&
                         loaded.holdout == first.holdout;
    if (!is_same) {
      return Error(Errc::conflict,
                   fmt::format("{} has {} training examples, {} held out and model {}; {} has {}, "
                               "{} and {}: all ranks need the same --data",
                               to_string(members[0]), first.train, first.holdout, first.layout,
                               to_string(members[i]), loaded.train, loaded.holdout, loaded.layout));
    }
  }
  return first;
}

Result<RankLoaded> Site::load(const std::string& model, const Layout& layout,
                              const std::stop_token& stop) {
  learn_.model = model;
  if (layout.elements() != elements_) {
    elements_ = layout.elements();
    for (SharedValues* values : {&weights_, &correction_, &result_}) *values = SharedValues();
    FL_CHECK(folder_.make_room(3 * elements_ * sizeof(float)));
  }
  RankLoaded loaded;
  for (int attempt = 1;; ++attempt) {
    FL_TRY(const auto members, gather(stop));
    auto told = load_at(members, stop);
    const bool may_pass = !told && told.error().code() == Errc::unavailable;
    if (may_pass && attempt < limits::site_attempts_max) continue;
    FL_TRY(loaded, std::move(told));
    break;
  }
  if (loaded.layout != layout.digest().hex()) {
    return Error(Errc::internal,
                 fmt::format("the ranks have another layout of model {}: {}, not {}", model,
                             loaded.layout, layout.digest().hex()));
  }
  return loaded;
}

/// Makes a group of the ranks that are there, unless there is one already.
Result<void> Site::make_group(const std::stop_token& stop) {
  FL_TRY(auto members, gather(stop));
  members.erase(members.begin() + static_cast<std::ptrdiff_t>(usable_ranks(grid_, members.size())),
                members.end());
  if (is_same(members, group_) && group_model_ == learn_.model) return {};
  group_.clear();
  FL_CHECK(load_at(members, stop));
  hub_->clear_store();
  ++generation_;
  std::vector<SiteHub::Request> requests;
  const auto away =
      std::ranges::find_if_not(members, &std::string::empty, &SiteMember::agent_address);
  for (const SiteMember& member : members) {
    GroupOptions group;
    if (away != members.end()) group.agent_address = away->agent_address;
    group.generation = generation_;
    group.rank = static_cast<int>(requests.size());
    group.size = static_cast<int>(members.size());
    group.backend = options_.backend;
    group.hook = options_.hook;
    group.topology = options_.topology;
    group.bucket_mb = options_.bucket_mb;
    group.unused_parameters = options_.unused_parameters;
    group.measured = measured_.all();
    group.timeout_s = options_.timeout_s;
    group.check_calls = options_.check_calls;
    requests.push_back({member.rank, {{"type", "group"}, {"group", to_json_of(group)}}, true});
  }
  FL_TRY(const auto answers, ask_all(requests, stop));
  FL_TRY(const MeasuredChoices choices, parse_measured(answers[0]));
  if (!learn_.model.empty())
    FL_CHECK(measured_.add(choices));  // Without a model there is no state.
  group_ = std::move(members);
  group_model_ = learn_.model;
  return {};
}

Result<std::vector<RankFacts>> Site::ask_facts(const std::stop_token& stop) {
  FL_TRY(const auto members, gather(stop));
  FL_CHECK(load_at(members, stop));
  std::vector<SiteHub::Request> requests;
  for (const SiteMember& member : members) requests.push_back({member.rank, {{"type", "facts"}}});
  const double asked_s = Clock::unix_seconds();
  FL_TRY(const auto answers, ask_all(requests, stop));
  std::vector<RankFacts> all;
  for (const json& answer : answers) {
    FL_TRY(RankFacts facts, parse_facts(answer.value("facts", json())));
    facts.asked_s = asked_s;
    all.push_back(std::move(facts));
  }
  return all;
}

Result<SiteMeasurement> Site::measure(const std::stop_token& stop) {
  FL_CHECK(make_group(stop));
  std::vector<SiteHub::Request> requests;
  for (const SiteMember& member : group_)
    requests.push_back({member.rank, {{"type", "measure"}}, true});
  FL_TRY(const auto answers, ask_all(requests, stop));
  return parse_measurement(answers[0].value("measured", json()));
}

Result<json> Site::try_work(Kind kind, const RankWork& work, const std::stop_token& stop) {
  FL_CHECK(make_group(stop));
  std::vector<SiteHub::Request> requests;
  RankWork for_all = work;
  for (std::size_t i = 0; i < group_.size(); ++i)
    if (!group_[i].is_here) for_all.away.push_back(static_cast<int>(i));
  for_all.has_trace = trace_ != nullptr && kind == Kind::train;
  for (const SiteMember& member : group_) {
    RankWork mine = for_all;
    if (!member.is_here) mine.files = {};
    requests.push_back({member.rank, {{"type", name_of(kind)}, {"work", to_json_of(mine)}}, true});
  }
  auto answers = ask_all(requests, stop);
  if (!answers) {
    // Ranks that waited for the one that failed have no group any more.
    group_.clear();
    return answers.error();
  }
  if (trace_) FL_CHECK(write_trace(*answers));
  return std::move(answers->front());
}

/// The answers are those of the group's ranks, in their order.
Result<void> Site::write_trace(const std::vector<json>& answers) {
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i].contains("spans")) continue;
    FL_TRY(const auto spans, parse_spans(answers[i]["spans"]));
    const int process = group_[i].rank + 1;  // 0 is the client.
    if (traced_.insert(group_[i].rank).second)
      trace_->name_process(process, fmt::format("rank {}", group_[i].rank));
    trace_->write(process, spans);
  }
  return {};
}

Result<void> Site::make_files(bool has_correction) {
  const auto& folder = folder_.tensors();
  if (weights_.values().size() != elements_) {
    FL_TRY(weights_, SharedValues::make(folder / "weights.f32", elements_));
    FL_TRY(result_, SharedValues::make(folder / "result.f32", elements_));
  }
  if (has_correction && correction_.values().size() != elements_) {
    FL_TRY(correction_, SharedValues::make(folder / "correction.f32", elements_));
  }
  return {};
}

Result<json> Site::work(Kind kind, RankWork work, std::span<const float> weights,
                        std::span<const float> correction, std::span<float> result,
                        const std::stop_token& stop) {
  FL_CHECK(make_files(!correction.empty()));
  const auto& folder = folder_.tensors();
  copy_span(weights, weights_.values());
  work.files.weights = (folder / "weights.f32").string();
  if (!correction.empty()) {
    copy_span(correction, correction_.values());
    work.has_correction = true;
    work.files.correction = (folder / "correction.f32").string();
  }
  work.has_result = !result.empty();
  if (work.has_result) work.files.result = (folder / "result.f32").string();
  for (int attempt = 1;; ++attempt) {
    auto answer = try_work(kind, work, stop);
    if (answer) {
      copy_span(std::span<const float>(result_.values()).first(result.size()), result);
      return answer;
    }
    // Too few ranks are there. They may come later: this piece of work fails, the client stays.
    if (answer.error().code() == Errc::deadline)
      return Error(Errc::invalid_input, answer.error().message());
    if (answer.error().code() != Errc::unavailable) return answer.error();
    if (attempt == limits::site_attempts_max) {
      return Error(Errc::invalid_input,
                   fmt::format("the site lost ranks {} times in a row, the last time: {}", attempt,
                               answer.error().message()));
    }
    log_warn("{}; '{}' begins again with a new group", answer.error().message(), name_of(kind));
  }
}

}  // namespace fl::site
