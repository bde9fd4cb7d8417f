// SPDX-License-Identifier: Apache-2.0
// A client with a model of one's own in C++: linear regression on a CSV file. It is a whole
// fl-client, with all of its codecs, methods and guarantees; only the model and its data are here.
//
//   linear-client --data a.csv initial-weights linear.safetensors      at one of the sites
//   fl-server --model custom:linear --initial-weights linear.safetensors --codec ecuq:2+ef
//   linear-client --data a.csv --join TOKEN                            at each site
//
// Each line of the CSV file has numbers only: the features, and at last the value to predict.
// CMakeLists.txt beside this file shows how to build it against an installed Tributary.
#include "client/client_main.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>

namespace {

/// Rows of features, with the value to predict.
struct Table {
  std::vector<std::vector<float>> x;
  std::vector<float> y;
};

fl::Result<Table> read_csv(const std::string& path) {
  Table table;
  std::ifstream file(path);
  if (!file)
    return fl::Error(fl::Errc::not_found, "can't read '" + path + "': name a file by --data FILE");
  for (std::string line; std::getline(file, line);) {
    std::ranges::replace(line, ',', ' ');
    std::istringstream cells(line);
    std::vector<float> row;
    for (float value = 0; cells >> value;) row.push_back(value);
    const std::size_t wanted = table.x.empty() ? row.size() : table.x[0].size() + 1;
    const std::string place = path + ", line " + std::to_string(table.y.size() + 1);
    if (!cells.eof() || row.size() < 2 || row.size() != wanted)
      return fl::Error(fl::Errc::invalid_input, place + " is not as many numbers as before");
    table.y.push_back(row.back());
    row.pop_back();
    table.x.push_back(std::move(row));
  }
  if (table.y.size() < 5)
    return fl::Error(fl::Errc::invalid_input, path + " has less than five lines");
  return table;
}

class LinearTrainer final : public fl::Trainer {
 public:
  /// A fifth of the rows is held out.
  LinearTrainer(fl::Layout layout, Table table)
      : layout_(std::move(layout)), table_(std::move(table)), train_(table_.y.size() * 4 / 5) {}

  const fl::Layout& layout() const override { return layout_; }
  std::uint64_t train_examples() const override { return train_; }
  std::uint64_t holdout_examples() const override { return table_.y.size() - train_; }
  std::span<const fl::MetricKind> metrics() const override { return metrics_; }

  /// The trainer follows FedProx's pull and adds corrections. It has an optimizer of its own, plain
  /// SGD with the run's learning rate, so methods that must know the optimizer refuse it.
  Abilities abilities() const override {
    return {.proximal = true, .correction = true, .initial = true};
  }

  fl::Result<std::vector<float>> initial_weights(std::uint64_t) const override {
    return std::vector<float>(layout_.elements());  // The initial model is all zeros.
  }

  /// Mini-batch SGD on half the squared error. Draws from the round's seed only, so an update that
  /// is trained again is the same.
  fl::Result<fl::TrainReport> train(std::span<const float> global,
                                    const fl::TrainSettings& settings,
                                    std::span<const float> correction, std::span<float> update,
                                    std::stop_token stop) override {
    if (settings.local_seconds > 0)
      return fl::Error(fl::Errc::invalid_input, "linear-client does not know --local-seconds");
    const std::uint64_t epoch = (train_ + settings.batch_size - 1) / settings.batch_size;
    const std::uint64_t steps = fl::steps_max(settings, epoch);
    std::vector<std::size_t> order(train_);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::mt19937_64 random(settings.seed);
    std::vector<float> w(global.begin(), global.end());
    std::vector<double> gradient(w.size());
    fl::TrainReport report{.examples = train_};
    std::uint64_t seen = 0;
    for (; report.steps < steps; ++report.steps) {
      if (stop.stop_requested()) return fl::Error(fl::Errc::cancelled, "training was stopped");
      const std::size_t begin = report.steps % epoch * settings.batch_size;
      if (begin == 0) std::shuffle(order.begin(), order.end(), random);
      const std::size_t end = std::min<std::size_t>(begin + settings.batch_size, train_);
      std::ranges::fill(gradient, 0.0);
      for (std::size_t i = begin; i < end; ++i) {
        const double error = predict(w, order[i]) - table_.y[order[i]];
        report.loss += error * error / 2;
        gradient[0] += error;
        for (std::size_t k = 1; k < w.size(); ++k) gradient[k] += error * table_.x[order[i]][k - 1];
      }
      seen += end - begin;
      for (std::size_t k = 0; k < w.size(); ++k) {
        const double pull = settings.proximal_mu * (w[k] - global[k]);
        const double g = gradient[k] / static_cast<double>(end - begin) + pull;
        w[k] -= static_cast<float>(settings.lr * (g + (correction.empty() ? 0 : correction[k])));
      }
    }
    for (std::size_t k = 0; k < w.size(); ++k) update[k] = w[k] - global[k];
    report.loss /= static_cast<double>(seen);
    return report;
  }

  fl::Result<fl::EvalReport> evaluate(std::span<const float> weights, std::stop_token) override {
    double squares = 0, distances = 0;
    for (std::size_t i = train_; i < table_.y.size(); ++i) {
      const double error = predict(weights, i) - table_.y[i];
      squares += error * error / 2;
      distances += std::abs(error);
    }
    const auto n = static_cast<double>(holdout_examples());
    return fl::EvalReport{
        holdout_examples(), squares / n, {{.name = "mae", .value = distances / n}}};
  }

 private:
  [[nodiscard]] double predict(std::span<const float> w, std::size_t row) const {
    return std::inner_product(w.begin() + 1, w.end(), table_.x[row].begin(), double{w[0]});
  }

  fl::Layout layout_;
  Table table_;
  std::size_t train_;
  std::vector<fl::MetricKind> metrics_ = {fl::known_metric("mae")};
};

}  // namespace

int main(int argc, char** argv) {
  std::string data;
  fl::ClientProgram program{.name = "linear-client", .about = "Fits a line to tables of many."};
  program.flags = {{"--data", "The CSV file: features, then the value to predict", &data}};
  program.make_trainer = [&](const std::string&) -> fl::Result<std::unique_ptr<fl::Trainer>> {
    FL_TRY(Table table, read_csv(data));
    const auto features = static_cast<std::int64_t>(table.x[0].size());
    FL_TRY(fl::Layout layout, fl::Layout::make({{"bias", {}}, {"weight", {features}}}));
    return std::make_unique<LinearTrainer>(std::move(layout), std::move(table));
  };
  return fl::client_main(argc, argv, std::move(program));
}
