// SPDX-License-Identifier: Apache-2.0
// What a rank takes of memory, as the kernel counts it, at the moments of a step. A process for
// each rank (rank_processes.hpp).
#pragma once

#include "client/learn/torch/held_parameters.hpp"
#include "client/learn/torch/step_sync.hpp"

#include <algorithm>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace fl::test {

/// A line of this process's /proc/self/status, in MB: "RssAnon:" is memory that is no file's,
/// "VmHWM:" the most that was there since begin_peak(), files' pages too.
inline float status_megabytes(std::string_view name) {
  std::ifstream file("/proc/self/status");
  std::string word;
  float kilobytes = 0;
  while (file >> word)
    if (word == name) file >> kilobytes;
  return kilobytes / 1000;
}

inline float own_megabytes() { return status_megabytes("RssAnon:"); }

inline void begin_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

/// The largest memory at some moments, above what was there at first.
class MemoryNotes {
 public:
  MemoryNotes() : before_(own_megabytes()) {}
  /// Any thread.
  void note() {
    const std::lock_guard lock(mutex_);
    most_ = std::max(most_, own_megabytes() - before_);
  }
  [[nodiscard]] float most() const {
    const std::lock_guard lock(mutex_);
    return most_;
  }

 private:
  const float before_;
  mutable std::mutex mutex_;
  float most_ = 0;
};

/// Notes the memory where the forward pass has ended and the backward pass begins.
class WatchedSync final : public StepSync {
 public:
  WatchedSync(StepSync& own, MemoryNotes& after_forward)
      : own_(own), after_forward_(after_forward) {}
  std::unique_ptr<HeldParameters> hold(const Module& module, const Layout& layout,
                                       torch::Device device, Units& units) override {
    return own_.hold(module, layout, device, units);
  }
  std::int64_t rank() const override { return own_.rank(); }
  std::int64_t size() const override { return own_.size(); }
  std::int64_t member() const override { return own_.member(); }
  std::int64_t members() const override { return own_.members(); }
  PassGroups groups() override { return own_.groups(); }
  void before_forward(const std::vector<torch::Tensor>& parameters, bool is_last) override {
    own_.before_forward(parameters, is_last);
  }
  void advance() override { own_.advance(); }
  bool passes_are_joint() const override { return own_.passes_are_joint(); }
  void backward(const torch::Tensor& loss, bool is_last) override {
    after_forward_.note();
    own_.backward(loss, is_last);
  }
  void backward_stage(const std::vector<std::size_t>& units,
                      const std::function<void()>& work) override {
    after_forward_.note();
    own_.backward_stage(units, work);
  }
  void reduce_stages(const std::vector<torch::Tensor>& parameters) override {
    own_.reduce_stages(parameters);
  }
  void after_step(const std::vector<torch::Tensor>& parameters, bool is_last) override {
    own_.after_step(parameters, is_last);
  }
  void broadcast(torch::Tensor& values) override { own_.broadcast(values); }
  void sum(torch::Tensor& values) override { own_.sum(values); }
  void sum_of_all(torch::Tensor& values) override { own_.sum_of_all(values); }
  bool on_any(bool here) override { return own_.on_any(here); }

 private:
  StepSync& own_;
  MemoryNotes& after_forward_;
};

}  // namespace fl::test
