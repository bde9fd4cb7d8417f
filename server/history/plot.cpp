// SPDX-License-Identifier: Apache-2.0
#include "server/history/plot.hpp"

#include "server/history/cells.hpp"
#include "server/history/run_name.hpp"
#include "shared/base/printable.hpp"
#include "shared/params/metric.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace fl::server {

namespace {

// Sizes in the picture's own units; a browser scales it.
constexpr double picture_width = 1080;
constexpr double margin_left = 76;
constexpr double panel_width = 290;
constexpr double panel_height = 190;
constexpr double panel_gap = 44;
constexpr double head_height = 84;
constexpr double row_height = panel_height + 58;
constexpr double foot_height = 34;
/// More points than this are no wider than the pixels of a panel.
constexpr std::size_t line_points_max = 600;

/// Without CSS variables: programs other than browsers do not know them.
constexpr const char* picture_style = R"(<style>
  text { fill: #52606d; font: 13px system-ui, sans-serif; }
  .head { fill: #1f2933; font-size: 20px; font-weight: 600; }
  .row { fill: #1f2933; font-size: 15px; font-weight: 600; }
  .right { text-anchor: end; }
  .middle { text-anchor: middle; }
  .paper { fill: #ffffff; }
  .grid { stroke: #e4e7eb; fill: none; }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
  .line.one { stroke: #1f5fa8; }
  .line.two { stroke: #a8540a; stroke-dasharray: 6 4; }
  circle.one { fill: #1f5fa8; }
  circle.two { fill: #a8540a; }
  @media (prefers-color-scheme: dark) {
    text { fill: #a3afbb; }
    .head, .row { fill: #e8ecf0; }
    .paper { fill: #14181d; }
    .grid { stroke: #2c343d; }
    .line.one { stroke: #7cb7ff; }
    .line.two { stroke: #f0a964; }
    circle.one { fill: #7cb7ff; }
    circle.two { fill: #f0a964; }
  }
</style>
)";

struct Point {
  double x = 0;
  double y = 0;
};

/// From the first mark to the last one, with a mark at each multiple of `step`.
struct Scale {
  double low = 0;
  double high = 1;
  double step = 1;

  [[nodiscard]] double part(double value) const { return (value - low) / (high - low); }
  [[nodiscard]] int marks() const { return static_cast<int>(std::lround((high - low) / step)) + 1; }
  [[nodiscard]] double mark(int index) const { return low + index * step; }
  [[nodiscard]] std::string text(double value) const {
    if (step >= 1e7 || step < 1e-7) return fmt::format("{:.4g}", value);
    const int digits = std::max(-static_cast<int>(std::floor(std::log10(step) + 1e-9)), 0);
    const double shown = std::abs(value) < step / 2 ? 0 : value;  // Never "-0".
    return fmt::format("{:.{}f}", shown, digits);
  }
};

/// Steps of 1, 2 or 5 times a power of ten, so that there are about `marks` of them.
Scale scale_of(double low, double high, int marks) {
  if (!(high - low > std::abs(high) * 1e-9)) {
    const double room = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= room;
    high += room;
  }
  const double rough = (high - low) / marks;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = power * 10;
  for (const double times : {5.0, 2.0, 1.0})
    if (power * times >= rough) step = power * times;
  return {std::floor(low / step + 1e-9) * step, std::ceil(high / step - 1e-9) * step, step};
}

/// One of the picture's columns: what stands on its horizontal axis.
struct HorizontalAxis {
  std::string name;        // With its unit.
  std::vector<double> at;  // One for each round.
};

/// One line of a row: what it shows, and its value in each round.
struct Curve {
  std::string name;
  const char* look = "one";
  std::vector<std::optional<double>> values;

  [[nodiscard]] bool has_any() const {
    return std::ranges::any_of(values, [](const auto& value) { return value.has_value(); });
  }
};

struct PanelRow {
  std::string name;
  const char* unit = "";
  std::vector<Curve> curves;
};

std::string xml(std::string_view text) {
  std::string escaped;
  for (const char c : printable(text)) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

/// A value that can be drawn: finite, and so that sums of a few are finite too.
std::optional<double> drawable(std::optional<double> value, double times = 1) {
  constexpr double most = 1e300;
  return value && std::abs(*value) < most ? std::optional(*value * times) : std::nullopt;
}

template <class Get>
std::vector<std::optional<double>> values_of(const std::vector<RoundSummary>& rounds, Get get) {
  std::vector<std::optional<double>> values;
  for (const RoundSummary& round : rounds) values.push_back(get(round));
  return values;
}

struct Unit {
  const char* name;
  double size;
};

/// The largest unit that `most` reaches.
Unit unit_for(double most, std::span<const Unit> units) {
  Unit chosen = units.front();
  for (const Unit& unit : units)
    if (most >= unit.size) chosen = unit;
  return chosen;
}

std::vector<HorizontalAxis> columns_of(const std::vector<RoundSummary>& rounds) {
  constexpr std::array<Unit, 3> times{Unit{"seconds", 1}, {"minutes", 60}, {"hours", 3600}};
  constexpr std::array<Unit, 5> sizes{
      Unit{"B", 1}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
  HorizontalAxis by_round{"rounds", {}};
  HorizontalAxis by_time{"", {}};
  HorizontalAxis by_bytes{"", {}};
  double seconds = 0;
  double bytes = 0;
  for (const RoundSummary& round : rounds) {
    seconds += round.seconds;
    bytes += static_cast<double>(round.bytes_up + round.bytes_down);
    by_round.at.push_back(round.round);
    by_time.at.push_back(seconds);
    by_bytes.at.push_back(bytes);
  }
  const Unit time = unit_for(seconds, times);
  const Unit size = unit_for(bytes, sizes);
  for (double& at : by_time.at) at /= time.size;
  for (double& at : by_bytes.at) at /= size.size;
  by_time.name = fmt::format("{} of rounds", time.name);
  by_bytes.name = fmt::format("{} sent, up and down", size.name);
  return {by_round, by_time, by_bytes};
}

/// A row for the main metric, unless that is the loss, and one for the losses.
std::vector<PanelRow> rows_of(const std::vector<RoundSummary>& rounds) {
  const std::string& name = rounds.back().metric;
  const KnownMetric* const known = find_known_metric(name);
  const bool is_percent = known != nullptr && known->is_fraction;
  const double times = is_percent ? 100 : 1;
  PanelRow metric{name, is_percent ? " %" : "", {}};
  metric.curves = {
      {"of the global model", "one",
       values_of(
           rounds,
           [times](const RoundSummary& round) { return drawable(round.eval_metric, times); })},
      {"of the clients' own models", "two", values_of(rounds, [times](const RoundSummary& round) {
         return drawable(round.own_metric, times);
       })}};
  PanelRow loss{std::string(loss_name), "", {}};
  loss.curves = {
      {"measured of the model", "one",
       values_of(rounds, [](const RoundSummary& round) { return drawable(round.eval_loss); })},
      {"in training", "two",
       values_of(rounds, [](const RoundSummary& round) { return drawable(round.train_loss); })}};
  std::vector<PanelRow> rows;
  if (name != loss_name) rows.push_back(std::move(metric));
  rows.push_back(std::move(loss));
  for (PanelRow& row : rows)
    std::erase_if(row.curves, [](const Curve& curve) { return !curve.has_any(); });
  std::erase_if(rows, [](const PanelRow& row) { return row.curves.empty(); });
  return rows;
}

/// Keeps the lowest and the highest point of each stretch, and the ends.
std::vector<Point> thin_out(std::vector<Point> points) {
  if (points.size() <= line_points_max) return points;
  const std::size_t stretches = line_points_max / 2;
  std::vector<Point> kept{points.front()};
  const auto is_lower = [](const Point& a, const Point& b) { return a.y < b.y; };
  for (std::size_t i = 0; i < stretches; ++i) {
    const auto from = points.begin() + static_cast<std::ptrdiff_t>(i * points.size() / stretches);
    const auto to =
        points.begin() + static_cast<std::ptrdiff_t>((i + 1) * points.size() / stretches);
    auto first = std::min_element(from, to, is_lower);
    auto second = std::max_element(from, to, is_lower);
    if (second < first) std::swap(first, second);
    kept.push_back(*first);
    kept.push_back(*second);
  }
  kept.push_back(points.back());
  return kept;
}

class Picture {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  void add_text(double x, double y, std::string_view kind, std::string_view text) {
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>\n", x, y, kind, xml(text));
  }
  void add_grid(double x1, double y1, double x2, double y2) {
    add("<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", x1, y1,
        x2, y2);
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

Scale vertical_scale(const PanelRow& row) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const Curve& curve : row.curves) {
    for (const auto& value : curve.values) {
      if (!value) continue;
      low = std::min(low, *value);
      high = std::max(high, *value);
    }
  }
  return scale_of(low, high, 4);
}

void draw_curve(Picture& picture, const Curve& curve, const HorizontalAxis& column,
                const Scale& across, const Scale& up, double left, double top) {
  std::vector<Point> points;
  for (std::size_t i = 0; i < curve.values.size(); ++i) {
    if (!curve.values[i]) continue;
    points.push_back({left + panel_width * across.part(column.at[i]),
                      top + panel_height * (1 - up.part(*curve.values[i]))});
  }
  if (points.empty()) return;
  std::string path;
  for (const Point& point : thin_out(points)) {
    fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", path.empty() ? "M" : " L", point.x,
                   point.y);
  }
  picture.add("<path class=\"line {}\" d=\"{}\"/>\n", curve.look, path);
  picture.add("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>\n", curve.look,
              points.back().x, points.back().y);
}

/// The row's name and, where it has several lines, which is which.
void draw_row_head(Picture& picture, const PanelRow& row, double top) {
  picture.add_text(margin_left, top - 14, "row", row.name);
  double x = margin_left + 24 + 9.0 * static_cast<double>(row.name.size());
  if (row.curves.size() < 2) return;
  for (const Curve& curve : row.curves) {
    picture.add("<path class=\"line {}\" d=\"M{:.1f} {:.1f} h28\"/>\n", curve.look, x, top - 19);
    picture.add_text(x + 36, top - 14, "", curve.name);
    x += 60 + 7.0 * static_cast<double>(curve.name.size());
  }
}

void draw_row(Picture& picture, const PanelRow& row, const std::vector<HorizontalAxis>& columns,
              double top, bool is_last) {
  draw_row_head(picture, row, top);
  const Scale up = vertical_scale(row);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const HorizontalAxis& column = columns[i];
    const double left = margin_left + static_cast<double>(i) * (panel_width + panel_gap);
    for (int mark = 0; mark < up.marks(); ++mark) {
      const double y = top + panel_height * (1 - up.part(up.mark(mark)));
      picture.add_grid(left, y, left + panel_width, y);
      if (i == 0) picture.add_text(left - 10, y + 4.5, "right", up.text(up.mark(mark)) + row.unit);
    }
    const Scale across = scale_of(0, column.at.back(), 5);
    for (int mark = 0; mark < across.marks(); ++mark) {
      const double x = left + panel_width * across.part(across.mark(mark));
      picture.add_grid(x, top, x, top + panel_height);
      picture.add_text(x, top + panel_height + 18, "middle", across.text(across.mark(mark)));
    }
    for (const Curve& curve : row.curves) draw_curve(picture, curve, column, across, up, left, top);
    if (is_last)
      picture.add_text(left + panel_width / 2, top + panel_height + 42, "middle", column.name);
  }
}

/// The picture in words: who can't see it hears this.
std::string description_of(const std::vector<RoundSummary>& rounds) {
  double seconds = 0;
  std::uint64_t bytes = 0;
  const RoundSummary* measured = nullptr;
  const RoundSummary* with_loss = nullptr;
  for (const RoundSummary& round : rounds) {
    seconds += round.seconds;
    bytes += round.bytes_up + round.bytes_down;
    if (round.eval_metric) measured = &round;
    if (round.train_loss) with_loss = &round;
  }
  std::string text = fmt::format("{} round{}, {}, {}", rounds.size(), rounds.size() == 1 ? "" : "s",
                                 human_seconds(seconds), human_bytes(bytes));
  if (measured != nullptr) {
    text += fmt::format("; {} {} in round {}", measured->metric,
                        figure_text(measured->metric, measured->eval_metric, measured->is_exact),
                        measured->round);
  }
  if (with_loss != nullptr)
    text += fmt::format("; training loss {}", loss_text(with_loss->train_loss));
  return text;
}

}  // namespace

Result<std::string> plot_svg(const RunRecord& run, const std::vector<RoundSummary>& rounds) {
  if (rounds.empty()) {
    return Error(Errc::not_found,
                 fmt::format("run {} has no finished round yet: there is nothing to plot", run.id));
  }
  const auto rows = rows_of(rounds);
  if (rows.empty()) {
    return Error(Errc::not_found,
                 fmt::format("run {} has no loss and no {} yet: there is nothing to plot", run.id,
                             rounds.back().metric));
  }
  const auto columns = columns_of(rounds);
  const double height = head_height + static_cast<double>(rows.size()) * row_height + foot_height;
  std::string title = to_text(name_of(run));
  title.front() = 'R';
  const std::string description = description_of(rounds);
  Picture picture;
  picture.add(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" "
      "role=\"img\" aria-labelledby=\"title description\">\n"
      "<title id=\"title\">{}</title>\n<desc id=\"description\">{}. From left to right: "
      "over rounds, over time, over bytes.</desc>\n{}"
      "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n",
      picture_width, height, xml(title), xml(description), picture_style);
  picture.add_text(margin_left, 30, "head", title);
  picture.add_text(margin_left, 50, "", description);
  double top = head_height;
  for (const PanelRow& row : rows) {
    draw_row(picture, row, columns, top + 10, &row == &rows.back());
    top += row_height;
  }
  picture.add("</svg>\n");
  return picture.take();
}

}  // namespace fl::server
