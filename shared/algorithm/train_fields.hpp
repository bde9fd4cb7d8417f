// SPDX-License-Identifier: Apache-2.0
// The one list of the members of TrainSettings. Each message that has the settings is made from it:
// the Offer (shared/wire/train_messages.hpp), the requests to a trainer program
// (client/learn/process/trainer_messages.hpp) and the work of a site's ranks
// (client/site/site_messages.hpp). Pure functions; any thread.
#pragma once

#include "shared/algorithm/local_work.hpp"

#include <cstddef>
#include <tuple>
#include <type_traits>

namespace fl {

template <class Value>
struct TrainField {
  Value TrainSettings::*member;
  const char* name;        // The member's name. Messages between a site's agent and ranks have it.
  const char* in_offer;    // The field of wire::Offer. A name in _ms: in whole milliseconds.
  const char* in_program;  // The member of a trainer program's "settings". "": it has none.
};
template <class Value>
TrainField(Value TrainSettings::*, const char*, const char*, const char*) -> TrainField<Value>;

inline constexpr std::tuple train_fields{
    TrainField{&TrainSettings::round, "round", "round", ""},
    TrainField{&TrainSettings::local_epochs, "local_epochs", "local_epochs", "epochs"},
    TrainField{&TrainSettings::local_steps, "local_steps", "local_steps", "steps"},
    TrainField{&TrainSettings::local_seconds, "local_seconds", "local_seconds", "seconds"},
    TrainField{&TrainSettings::batch_size, "batch_size", "batch_size", "batch_size"},
    TrainField{&TrainSettings::accumulate, "accumulate", "accumulate", "accumulate"},
    TrainField{&TrainSettings::optimizer, "optimizer", "optimizer", "optimizer"},
    TrainField{&TrainSettings::lr, "lr", "lr", "lr"},
    TrainField{&TrainSettings::momentum, "momentum", "momentum", "momentum"},
    TrainField{&TrainSettings::weight_decay, "weight_decay", "weight_decay", "weight_decay"},
    TrainField{&TrainSettings::clip_norm, "clip_norm", "clip_norm", "clip_norm"},
    TrainField{&TrainSettings::proximal_mu, "proximal_mu", "proximal_mu", "proximal_mu"},
    TrainField{&TrainSettings::deadline_s, "deadline_s", "deadline_ms", ""},
    TrainField{&TrainSettings::seed, "seed", "seed", "seed"},
};

/// Calls visit(field) for each TrainField.
template <class Visit>
constexpr void for_each_train_field(const Visit& visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, train_fields);
}

namespace detail {

/// Stands for a value of any type when the members of a struct are counted.
struct AnyValue {
  template <class Value>
  operator Value() const;  // NOLINT(google-explicit-constructor): braces convert implicitly.
};

template <class... Values>
constexpr std::size_t count_train_members() {
  if constexpr (requires { TrainSettings{Values{}..., AnyValue{}}; }) {
    return count_train_members<Values..., AnyValue>();
  } else {
    return sizeof...(Values);
  }
}

/// Whether no two rows of the list have the same member.
constexpr bool are_distinct_members() {
  bool distinct = true;
  std::size_t at = 0;
  for_each_train_field([&](const auto& one) {
    std::size_t other_at = 0;
    for_each_train_field([&](const auto& other) {
      if constexpr (std::is_same_v<decltype(one.member), decltype(other.member)>)
        distinct = distinct && (at == other_at || one.member != other.member);
      ++other_at;
    });
    ++at;
  });
  return distinct;
}

}  // namespace detail

static_assert(detail::count_train_members<>() ==
                      std::tuple_size_v<std::remove_const_t<decltype(train_fields)>> &&
                  detail::are_distinct_members(),
              "train_fields must have one row for each member of TrainSettings");

}  // namespace fl
