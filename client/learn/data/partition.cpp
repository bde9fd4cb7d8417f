// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/partition.hpp"

#include "client/learn/data/random.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/spec/nearest_name.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>

namespace fl {

namespace {

using Indices = std::vector<std::uint32_t>;

// Random streams of the partition's seed. Stream classes_from + k shuffles class k.
constexpr std::uint64_t draw_stream = 0;
constexpr std::uint64_t classes_from = 1;

// The indices of each class, in random order.
Parts shuffled_classes(std::span<const std::uint32_t> labels, std::uint32_t classes,
                       std::uint64_t seed) {
  Parts by_class(classes);
  for (std::uint32_t i = 0; i < labels.size(); ++i) by_class[labels[i]].push_back(i);
  for (std::uint32_t k = 0; k < classes; ++k) Random(seed, classes_from + k).shuffle(by_class[k]);
  return by_class;
}

void append(Indices& part, std::span<const std::uint32_t> more) {
  part.insert(part.end(), more.begin(), more.end());
}

// Piece i of `all` cut into n pieces. The first (size % n) pieces are longer by one.
std::span<const std::uint32_t> piece(std::span<const std::uint32_t> all, std::size_t i,
                                     std::size_t n) {
  const std::size_t begin = all.size() / n * i + std::min(i, all.size() % n);
  return all.subspan(begin, all.size() / n + (i < all.size() % n ? 1 : 0));
}

Result<Parts> partition_iid(const PartitionSpec&, const PartitionInput& input,
                            std::uint32_t parties, std::uint64_t seed) {
  const Indices order = shuffled_indices(input.examples, seed, draw_stream);
  Parts parts(parties);
  for (std::uint32_t p = 0; p < parties; ++p) append(parts[p], piece(order, p, parties));
  return parts;
}

// Draws the parties' shares of a class from Dir(alpha). A party that already holds its fair part
// gets none. The shares add up to 1, or to 0 if only such parties drew something.
std::vector<double> draw_shares(Random& random, double alpha, std::span<const std::size_t> held,
                                double fair) {
  std::vector<double> shares(held.size());
  for (double& share : shares) share = random.log_gamma(alpha);
  const double largest = std::ranges::max(shares);
  // A share below e^-700 of the largest is less than one example, and out of portable_exp's range.
  for (double& share : shares) share = portable_exp(std::max(share - largest, -700.0));
  for (std::size_t p = 0; p < held.size(); ++p) {
    if (static_cast<double>(held[p]) >= fair) shares[p] = 0;
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  if (sum > 0) {
    for (double& share : shares) share /= sum;
  }
  return shares;
}

// Returns counts[k][p], the number of examples of class k for party p, or nothing if a party would
// get too few. Only numbers are drawn here, so drawing again is cheap.
std::optional<std::vector<std::vector<std::size_t>>> draw_counts(Random& random, double alpha,
                                                                 const Parts& by_class,
                                                                 std::size_t parties, double fair) {
  std::vector<std::size_t> held(parties, 0);
  std::vector<std::vector<std::size_t>> counts;
  for (const Indices& members : by_class) {
    const std::vector<double> shares = draw_shares(random, alpha, held, fair);
    std::vector<std::size_t>& count = counts.emplace_back(parties, 0);
    double cumulative = 0;
    std::size_t given = 0;
    std::size_t last = parties;
    for (std::size_t p = 0; p < parties; ++p) {
      cumulative += shares[p];
      const auto until = static_cast<std::size_t>(cumulative * static_cast<double>(members.size()));
      count[p] = std::min(until, members.size()) - given;
      given += count[p];
      if (shares[p] > 0) last = p;
    }
    if (last == parties) return std::nullopt;
    count[last] += members.size() - given;  // The remainder of rounding down.
    for (std::size_t p = 0; p < parties; ++p) held[p] += count[p];
  }
  if (std::ranges::min(held) < dirichlet_party_examples_min) return std::nullopt;
  return counts;
}

Result<Parts> partition_dirichlet(const PartitionSpec& spec, const PartitionInput& input,
                                  std::uint32_t parties, std::uint64_t seed) {
  const auto labels = input.labels;
  if (labels.size() / parties < dirichlet_party_examples_min) {
    return Error(Errc::invalid_input,
                 fmt::format("dirichlet: {} examples are too few for {} parties with at least {} "
                             "each",
                             labels.size(), parties, dirichlet_party_examples_min));
  }
  const Parts by_class = shuffled_classes(labels, input.classes, seed);
  const double fair = static_cast<double>(labels.size()) / parties;
  Random random(seed, draw_stream);
  for (int draw = 0; draw < dirichlet_draws_max; ++draw) {
    const auto counts = draw_counts(random, spec.alpha, by_class, parties, fair);
    if (!counts) continue;
    Parts parts(parties);
    for (std::uint32_t k = 0; k < input.classes; ++k) {
      std::span<const std::uint32_t> left = by_class[k];
      for (std::uint32_t p = 0; p < parties; ++p) {
        append(parts[p], left.first((*counts)[k][p]));
        left = left.subspan((*counts)[k][p]);
      }
    }
    return parts;
  }
  return Error(Errc::invalid_input,
               fmt::format("dirichlet:{}: none of {} draws gave each of {} parties {} of {} "
                           "examples; use a larger ALPHA or fewer parties",
                           spec.alpha, dirichlet_draws_max, parties, dirichlet_party_examples_min,
                           labels.size()));
}

Result<Parts> partition_labels(const PartitionSpec& spec, const PartitionInput& input,
                               std::uint32_t parties, std::uint64_t seed) {
  const std::uint32_t labels_per_party = spec.labels_per_party;
  const std::uint32_t classes = input.classes;
  if (labels_per_party > classes) {
    return Error(Errc::invalid_input,
                 fmt::format("labels:{}: the data has only {} labels", labels_per_party, classes));
  }
  Random random(seed, draw_stream);
  Parts owners(classes);  // The parties of each class, in ascending order.
  for (std::uint32_t p = 0; p < parties; ++p) {
    Indices choice(classes);
    std::iota(choice.begin(), choice.end(), 0u);
    std::swap(choice[0], choice[p % classes]);
    random.shuffle(std::span(choice).subspan(1));
    for (std::uint32_t k = 0; k < labels_per_party; ++k) owners[choice[k]].push_back(p);
  }
  const Parts by_class = shuffled_classes(input.labels, classes, seed);
  Parts parts(parties);
  for (std::uint32_t k = 0; k < classes; ++k) {
    for (std::size_t i = 0; i < owners[k].size(); ++i) {
      append(parts[owners[k][i]], piece(by_class[k], i, owners[k].size()));
    }
  }
  const auto empty = std::ranges::find_if(parts, &Indices::empty);
  if (empty != parts.end()) {
    return Error(Errc::invalid_input,
                 fmt::format("labels:{}: party {} of {} would hold no example", labels_per_party,
                             empty - parts.begin() + 1, parties));
  }
  return parts;
}

// Numbers of examples, and who has them: the smallest first.
using Load = std::pair<std::size_t, std::uint32_t>;

Result<Parts> partition_by(const PartitionSpec& spec, const PartitionInput& input,
                           std::uint32_t parties, std::uint64_t) {
  if (parties > input.group_count) {
    return Error(
        Errc::invalid_input,
        fmt::format("by:{}: {} parties can't share {} groups, because a group stays whole; "
                    "use at most {} parties",
                    spec.column, parties, input.group_count, input.group_count));
  }
  std::vector<Load> groups(input.group_count);
  for (std::uint32_t g = 0; g < groups.size(); ++g) groups[g].second = g;
  for (const std::uint32_t group : input.groups) ++groups[group].first;
  std::vector<std::uint32_t> owner(input.group_count);
  std::iota(owner.begin(), owner.end(), 0U);
  if (parties < input.group_count) {
    std::ranges::stable_sort(groups, std::ranges::greater(), &Load::first);
    std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
    for (std::uint32_t p = 0; p < parties; ++p) least.emplace(0, p);
    for (const Load& group : groups) {
      const Load party = least.top();
      least.pop();
      owner[group.second] = party.second;
      least.emplace(party.first + group.first, party.second);
    }
  }
  Parts parts(parties);
  for (std::uint32_t i = 0; i < input.groups.size(); ++i)
    parts[owner[input.groups[i]]].push_back(i);
  return parts;
}

/// Reads part `p` of a partition file. Writes each example's party to `owners`, where -1 means
/// none.
Result<Indices> read_part(const nlohmann::json& numbers, std::size_t p, std::vector<int>& owners) {
  const auto bad = [p](std::string why) {
    return Error(Errc::invalid_input, fmt::format("party {}: {}", p + 1, why));
  };
  if (!numbers.is_array() || numbers.empty())
    return bad("must be an array of example numbers that is not empty");
  Indices part;
  for (const auto& number : numbers) {
    const std::size_t index = number_in<std::size_t>(number).value_or(SIZE_MAX);
    if (index >= owners.size())
      return bad(fmt::format("{} is not an example number from 0 to {}", json_text(number),
                             owners.size() - 1));
    if (owners[index] >= 0)
      return bad(fmt::format("example {} already belongs to party {}", index, owners[index] + 1));
    owners[index] = static_cast<int>(p);
    part.push_back(static_cast<std::uint32_t>(index));
  }
  return part;
}

Result<Parts> read_parts(const PartitionSpec& spec, const PartitionInput& input,
                         std::uint32_t parties, std::uint64_t) {
  const std::string& path = spec.file;
  FL_TRY(const auto text, posix_files().read_all(path));
  // A number for each example, and the array of each party, which is not empty.
  const auto json =
      parse_json(text, std::max<std::size_t>(limits::json_values_max, 2 * input.examples + 1));
  if (!json.is_array() || json.size() != parties) {
    return Error(
        Errc::invalid_input,
        fmt::format("{}: must be a JSON array of {} arrays, one for each party", path, parties));
  }
  Parts parts(parties);
  std::vector<int> owners(input.examples, -1);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    auto part = read_part(json[p], p, owners);
    if (!part) return part.error().at(path);
    parts[p] = std::move(*part);
  }
  return parts;
}

Result<void> read_alpha(std::string_view argument, PartitionSpec& spec) {
  const auto alpha = number_in<double>(argument);
  // Written so that NaN fails too.
  if (!alpha || !(*alpha >= dirichlet_alpha_min && *alpha <= dirichlet_alpha_max)) {
    return Error(Errc::invalid_input, fmt::format("ALPHA must be a number from {} to {}",
                                                  dirichlet_alpha_min, dirichlet_alpha_max));
  }
  spec.alpha = *alpha;
  return {};
}

Result<void> read_label_count(std::string_view argument, PartitionSpec& spec) {
  const auto count = number_in<std::uint32_t>(argument);
  if (!count || *count == 0)
    return Error(Errc::invalid_input, "K must be a whole number of at least 1");
  spec.labels_per_party = *count;
  return {};
}

template <std::string PartitionSpec::*text>
Result<void> read_text(std::string_view argument, PartitionSpec& spec) {
  if (argument.empty()) return Error(Errc::invalid_input, "something must stand behind the colon");
  spec.*text = argument;
  return {};
}

constexpr PartitionRow divisions[] = {
    {.usage = "iid", .divide = partition_iid},
    {.usage = "dirichlet:ALPHA",
     .divide = partition_dirichlet,
     .read = read_alpha,
     .needs_classes = true},
    {.usage = "labels:K",
     .divide = partition_labels,
     .read = read_label_count,
     .needs_classes = true},
    {.usage = "by:COLUMN",
     .divide = partition_by,
     .read = read_text<&PartitionSpec::column>,
     .needs_groups = true},
    {.usage = "file:PARTS.json", .divide = read_parts, .read = read_text<&PartitionSpec::file>},
};

}  // namespace

std::span<const PartitionRow> partition_rows() { return divisions; }

Result<PartitionSpec> parse_partition(std::string_view text) {
  const auto [name, argument] = cut(text, ':');
  const auto* const row = std::ranges::find(divisions, name, &PartitionRow::name);
  if (row == std::end(divisions) || argument.has_value() != (row->read != nullptr)) {
    return Error(Errc::invalid_input,
                 fmt::format("unknown partition \"{}\"; use {}{}", text,
                             alternatives(divisions, &PartitionRow::usage),
                             did_you_mean(name, divisions, &PartitionRow::name)));
  }
  PartitionSpec spec{.row = row};
  if (!argument) return spec;
  if (auto right = row->read(*argument, spec); !right)
    return right.error().at(fmt::format("partition \"{}\"", text));
  return spec;
}

Result<Parts> partition(const PartitionSpec& spec, const PartitionInput& input,
                        std::uint32_t parties, std::uint64_t seed) {
  FL_ASSERT(spec.row != nullptr);
  if (parties == 0 || parties > input.examples) {
    return Error(Errc::invalid_input,
                 fmt::format("can't divide {} examples among {} parties", input.examples, parties));
  }
  if (spec.row->needs_classes && input.labels.empty()) {
    const auto usage_without = [](const PartitionRow& row) {
      return row.needs_classes ? std::string_view() : row.usage;
    };
    return Error(Errc::invalid_input,
                 fmt::format("the data have no classes to divide them by; use {}",
                             alternatives(divisions, usage_without)));
  }
  if (spec.row->needs_groups && input.groups.empty())
    return Error(Errc::invalid_input, fmt::format("by:{}: the data have no groups", spec.column));
  return spec.row->divide(spec, input, parties, seed);
}

}  // namespace fl
