// SPDX-License-Identifier: Apache-2.0
// Places for requests, or for streams, of the admin pages by who has them: nobody takes them all,
// some are for those who have shown a token, and some for operators alone. Any thread.
#pragma once

#include "shared/base/async/mutex.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <string>

namespace fl::server {

/// The operator or the address that holds a place.
struct PlaceHolder {
  std::string who;        // The operator's name, or the address.
  bool is_known = false;  // The holder has shown a token.
  bool is_operator = false;
};

class VisitorPlaces : public std::enable_shared_from_this<VisitorPlaces> {
 public:
  struct Limits {
    std::size_t all = 0;
    std::size_t viewers = 0;  // Places for all holders that are no operators, together.
    std::size_t open = 0;     // Places for all holders without a token, together.
    std::size_t of_one = 0;   // Places for one holder.
  };
  /// One place. The destructor gives it back.
  class Place {
   public:
    Place(std::shared_ptr<VisitorPlaces> owner, PlaceHolder holder)
        : owner_(std::move(owner)), holder_(std::move(holder)) {}
    ~Place() { owner_->give_back(holder_); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

   private:
    std::shared_ptr<VisitorPlaces> owner_;  // A request may outlive the pages, as a program ends.
    PlaceHolder holder_;
  };

  explicit VisitorPlaces(const Limits& limits) : limits_(limits) {}

  /// Null: this holder, or all holders of its kind, have as many places as they may.
  [[nodiscard]] std::unique_ptr<Place> take(const PlaceHolder& holder);
  [[nodiscard]] const Limits& limits() const { return limits_; }

 private:
  void give_back(const PlaceHolder& holder);

  const Limits limits_;
  Mutex mutex_;
  std::size_t all_ FL_GUARDED_BY(mutex_) = 0;
  std::size_t viewers_ FL_GUARDED_BY(mutex_) = 0;
  std::size_t open_ FL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::size_t> of_ FL_GUARDED_BY(mutex_);  // Places taken, by holder.
};

}  // namespace fl::server
