// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hub_store.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <string_view>

namespace fl::site {

namespace {

using Values = std::vector<std::uint8_t>;

std::string_view text_of(const Values& value) {
  return {reinterpret_cast<const char*>(value.data()), value.size()};
}

Values bytes_of_text(std::string_view text) { return {text.begin(), text.end()}; }

template <class T>
T value_of(Result<T> result) {
  if (!result) C10_THROW_ERROR(DistStoreError, result.error().message());
  return std::move(*result);
}

class HubStore final : public c10d::Store {
 public:
  explicit HubStore(RankLink& link) : link_(link) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    auto copy = c10::make_intrusive<HubStore>(link_);
    copy->setTimeout(timeout_);
    return copy;
  }
  void set(const std::string& key, const Values& value) override { link_.set(key, text_of(value)); }
  Values get(const std::string& key) override {
    return bytes_of_text(value_of(link_.get(key, until(timeout_))));
  }
  Values compareSet(const std::string& key, const Values& expected,
                    const Values& desired) override {
    // c10d calls it for barriers of monitored groups only, which we do not use.
    if (check({key}) && get(key) != expected) return get(key);
    set(key, desired);
    return desired;
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    return value_of(link_.add(key, value, until(timeout_)));
  }
  bool deleteKey(const std::string& key) override {
    return value_of(link_.remove(key, until(timeout_)));
  }
  bool check(const std::vector<std::string>& keys) override {
    return std::ranges::all_of(
        keys, [this](const std::string& key) { return value_of(link_.has(key, until(timeout_))); });
  }
  std::int64_t getNumKeys() override {
    C10_THROW_ERROR(NotImplementedError, "the site's store does not count its keys");
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    const TimePoint end = until(timeout);
    for (const std::string& key : keys) value_of(link_.get(key, end));
  }

 private:
  [[nodiscard]] static TimePoint until(std::chrono::milliseconds wait) {
    return wait.count() <= 0 ? never : Clock::now() + wait;
  }

  RankLink& link_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> make_hub_store(RankLink& link) {
  return c10::make_intrusive<HubStore>(link);
}

}  // namespace fl::site
