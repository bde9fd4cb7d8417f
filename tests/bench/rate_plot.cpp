#include "tests/bench/rate_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <vector>

namespace fl::bench {

namespace {

constexpr double width = 960;
constexpr double height = 640;
constexpr double left = 70;
constexpr double right = width - 20;
constexpr double top = 50;
constexpr double bottom = height - 70;
constexpr double font = 12;
constexpr double letter = 0.6 * font;  // The width of one, monospaced.
constexpr double mark_radius = 4;

struct Point {
  double x;
  double y;
};

struct Box {
  double x;
  double y;
  double w;
  double h;

  [[nodiscard]] bool meets(const Box& other) const {
    return x < other.x + other.w && other.x < x + w && y < other.y + other.h && other.y < y + h;
  }
};

Box box_around(Point p, double radius) {
  return {p.x - radius, p.y - radius, 2 * radius, 2 * radius};
}

// The part of the plane that is shown, in powers of two to the right and of ten upwards.
struct Axes {
  double bits_log2_min = 0;
  double bits_log2_max = 1;
  double nmse_log10_min = -1;
  double nmse_log10_max = 0;

  explicit Axes(std::span<const RateMark> marks) {
    for (const RateMark& mark : marks) {
      const double bits = std::log2(mark.bits);
      const double nmse = std::log10(mark.nmse);
      bits_log2_min = std::min(bits_log2_min, std::floor(bits));
      bits_log2_max = std::max(bits_log2_max, std::ceil(bits));
      nmse_log10_min = std::min(nmse_log10_min, std::floor(nmse));
      nmse_log10_max = std::max(nmse_log10_max, std::ceil(nmse));
    }
  }
  [[nodiscard]] Point at(double bits, double nmse) const {
    return {
        left + (std::log2(bits) - bits_log2_min) / (bits_log2_max - bits_log2_min) * (right - left),
        bottom - (std::log10(nmse) - nmse_log10_min) / (nmse_log10_max - nmse_log10_min) *
                     (bottom - top)};
  }
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string text_at(Point p, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", p.x, p.y,
                     anchor, escaped(text));
}

std::string line(Point from, Point to, const char* colour) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", from.x,
      from.y, to.x, to.y, colour);
}

std::string grid(const Axes& axes) {
  std::string svg;
  for (double e = axes.bits_log2_min; e <= axes.bits_log2_max; ++e) {
    const double x = axes.at(std::exp2(e), 1).x;
    svg += line({x, top}, {x, bottom}, "#e4e4e4");
    svg += text_at({x, bottom + 18}, "middle",
                   e < 0 ? fmt::format("1/{}", std::exp2(-e)) : fmt::format("{}", std::exp2(e)));
  }
  for (double e = axes.nmse_log10_min; e <= axes.nmse_log10_max; ++e) {
    const double y = axes.at(1, std::pow(10, e)).y;
    svg += line({left, y}, {right, y}, "#e4e4e4");
    svg += text_at({left - 8, y + 4}, "end", fmt::format("1e{:.0f}", e));
  }
  svg += text_at({(left + right) / 2, bottom + 38}, "middle",
                 "bits a value on the wire, all bytes counted");
  svg += fmt::format(
      "<text transform=\"translate(18 {:.1f}) rotate(-90)\" text-anchor=\"middle\">"
      "NMSE = |x - decoded|² / |x|²</text>\n",
      (top + bottom) / 2);
  return svg;
}

// The bound where it is inside the axes, in steps of a few pixels.
std::vector<Point> bound(const Axes& axes) {
  constexpr int steps = 400;
  std::vector<Point> points;
  for (int i = 0; i <= steps; ++i) {
    const double bits =
        std::exp2(axes.bits_log2_min + (axes.bits_log2_max - axes.bits_log2_min) * i / steps);
    const Point p = axes.at(bits, std::exp2(-2 * bits));
    if (p.y <= bottom) points.push_back(p);
  }
  return points;
}

// Where the line from a mark to its label ends; there is none if they are side by side.
std::optional<Point> leader_end(Point mark, const Box& label) {
  const Point end{std::clamp(mark.x, label.x, label.x + label.w),
                  std::clamp(mark.y, label.y, label.y + label.h)};
  if (std::hypot(end.x - mark.x, end.y - mark.y) < 3 * mark_radius) return std::nullopt;
  return end;
}

// What a label at `box` covers, and the line to its mark, from just outside the mark.
std::vector<Box> covered(Point mark, const Box& box) {
  std::vector<Box> boxes{box};
  if (const auto end = leader_end(mark, box)) {
    const double away = std::hypot(end->x - mark.x, end->y - mark.y);
    for (double at = 2 * mark_radius; at < away; at += 2) {
      const double share = at / away;
      boxes.push_back(
          box_around({mark.x + share * (end->x - mark.x), mark.y + share * (end->y - mark.y)}, 1));
    }
  }
  return boxes;
}

bool meets_any(const Box& box, std::span<const Box> others) {
  return std::ranges::any_of(others, [&](const Box& other) { return other.meets(box); });
}

// The nearest place around a mark where its label and the line to it cover nothing in `taken`, and
// the label nothing of the bound; beside the mark without one.
Box label_box(Point mark, const std::string& label, std::span<const Box> taken,
              std::span<const Box> on_bound) {
  const double w = letter * static_cast<double>(label.size());
  std::optional<Box> first;
  for (double away = 8; away < 150; away += 6) {
    for (const auto& [x, y] : {Point{1, 0},
                               {-1, 0},
                               {0.7, -0.7},
                               {0.7, 0.7},
                               {-0.7, -0.7},
                               {-0.7, 0.7},
                               {0, -1},
                               {0, 1}}) {
      const double begin = x > 0 ? 0 : (x < 0 ? -w : -w / 2);
      const Box box{mark.x + away * x + begin, mark.y + away * y - font / 2, w, font};
      if (!first) first = box;
      const bool is_inside =
          box.x > left && box.x + w < right && box.y > top && box.y + font < bottom;
      if (is_inside && !meets_any(box, on_bound) &&
          std::ranges::none_of(covered(mark, box),
                               [&](const Box& part) { return meets_any(part, taken); })) {
        return box;
      }
    }
  }
  return *first;
}

}  // namespace

std::string rate_plot(std::span<const RateMark> marks) {
  std::vector<RateMark> shown;
  std::string exact;
  for (const RateMark& mark : marks) {
    if (mark.nmse > 0) {
      shown.push_back(mark);
    } else {
      exact += fmt::format(" {} ({:.3g} bits)", mark.label, mark.bits);
    }
  }
  const Axes axes(shown);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"monospace\" font-size=\"{2}\" fill=\"#222\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      width, height, font);
  svg += grid(axes);

  std::vector<Box> on_bound;
  svg += "<polyline fill=\"none\" stroke=\"#c0392b\" stroke-width=\"1.5\" points=\"";
  for (const Point& p : bound(axes)) {
    svg += fmt::format("{:.1f},{:.1f} ", p.x, p.y);
    on_bound.push_back(box_around(p, 2));
  }
  svg += "\"/>\n";
  std::vector<Box> taken;
  for (const RateMark& mark : shown) {
    taken.push_back(box_around(axes.at(mark.bits, mark.nmse), mark_radius + 1));
  }
  std::string labels;
  for (const RateMark& mark : shown) {
    const Point p = axes.at(mark.bits, mark.nmse);
    const Box box = label_box(p, mark.label, taken, on_bound);
    std::ranges::copy(covered(p, box), std::back_inserter(taken));
    if (const auto end = leader_end(p, box)) svg += line(p, *end, "#9a9a9a");
    labels += text_at({box.x, box.y + 0.8 * font}, "start", mark.label);
    labels += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\" stroke=\"#1f5a92\"/>\n", p.x, p.y,
        mark_radius, mark.is_biased ? "#fff" : "#1f5a92");
  }
  svg += labels;
  svg += text_at({left, 22}, "start",
                 "Codecs on a Gaussian vector: filled marks are unbiased, hollow ones biased");
  svg +=
      text_at({left, 40}, "start", "Red: the rate-distortion bound 2^(-2R); no code gets below it");
  if (!exact.empty()) svg += text_at({left, height - 12}, "start", "Without any error:" + exact);
  return svg + "</svg>\n";
}

}  // namespace fl::bench
