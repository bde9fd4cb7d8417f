// SPDX-License-Identifier: Apache-2.0
// images:DIR: a folder of JPEG and PNG files for each class. docs/guide/data.md has the options.
#include "client/learn/data/idx.hpp"
#include "client/learn/data/normal_form.hpp"
#include "client/learn/data/readers/bad_files.hpp"
#include "client/learn/data/readers/file_list.hpp"
#include "client/learn/data/readers/group_names.hpp"
#include "client/learn/data/readers/image_file.hpp"
#include "client/learn/data/readers/reader_options.hpp"
#include "client/learn/data/storage_writer.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/printable.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

namespace fl {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view images_usage = "images:DIR[,classes=A+B]";
constexpr std::uint64_t class_list_bytes_max = 16 << 20;
constexpr std::size_t shown_folders_bytes_max = 1000;

struct Size {
  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
};

/// The options of --data.
struct ImagePlan {
  fs::path folder;
  std::vector<std::string> classes;  // Empty: the folders' names are numbers.
  std::optional<Size> size;
  std::uint32_t channels = 3;
  bool by_folder = false;  // Group images by the folders in the classes' folders.
  bool skip_bad_files = false;
  bool to_predict = false;  // All images in the folder, whatever the names of folders in it.
};

/// The words of a file, one a line, without blanks around them.
Result<std::vector<std::string>> read_class_list(const std::string& path) {
  FL_TRY(std::string text, posix_files().read_all(path, class_list_bytes_max));
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff"))
    return Error(Errc::corrupt, fmt::format("{}: the file is UTF-16; save it as UTF-8", path));
  constexpr std::string_view utf8_mark = "\xef\xbb\xbf";
  if (text.starts_with(utf8_mark)) text.erase(0, utf8_mark.size());
  std::ranges::replace(text, '\r', '\n');
  std::vector<std::string> classes;
  for (std::optional<std::string_view> rest = text; rest;) {
    auto [line, next] = cut(*rest, '\n');
    rest = next;
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    line = line.substr(0, line.find_last_not_of(" \t") + 1);
    if (!line.empty()) classes.emplace_back(line);
  }
  if (classes.empty()) return Error(Errc::corrupt, fmt::format("{}: it names no class", path));
  return classes;
}

Result<ImagePlan> parse_plan(const DataRequest& request) {
  FL_TRY(ReaderOptions options, ReaderOptions::parse(request, images_usage));
  ImagePlan plan;
  plan.folder = options.path();
  plan.classes = options.words("classes");
  const std::string size = options.text("size");
  const std::string channels = options.text("channels");
  FL_CHECK(options.finish());
  if (plan.classes.size() == 1 && plan.classes.front().ends_with(".txt")) {
    FL_TRY(plan.classes, read_class_list(plan.classes.front()));
  }
  for (std::string& name : plan.classes) name = normal_form(name);
  std::vector<std::string> sorted = plan.classes;
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice != sorted.end())
    return wrong_data(request, fmt::format("the class {} is named twice", printable(*twice)));
  if (plan.classes.size() > classes_max)
    return wrong_data(request, fmt::format("more than {} classes", classes_max));
  if (!size.empty()) {
    const auto [rows, columns] = cut(size, 'x');
    const auto height = number_in<std::uint32_t>(rows);
    const auto width = number_in<std::uint32_t>(columns.value_or(""));
    if (!height || !width || *height == 0 || *width == 0 || *height > image_side_max ||
        *width > image_side_max) {
      return wrong_data(request, fmt::format("size={}: must be ROWSxCOLUMNS, each from 1 to {}",
                                             size, image_side_max));
    }
    plan.size = Size{.rows = *height, .columns = *width};
  }
  if (!channels.empty() && channels != "1" && channels != "3")
    return wrong_data(request, fmt::format("channels={}: must be 1 (grey) or 3", channels));
  if (channels == "1") plan.channels = 1;
  if (!request.group.empty() && request.group != "folder")
    return wrong_data(request, fmt::format("by:{}: images are divided by:folder", request.group));
  plan.by_folder = !request.group.empty();
  plan.skip_bad_files = request.skip_bad_files;
  plan.to_predict = request.to_predict;
  return plan;
}

/// The names of the folders in a folder, sorted; hidden ones are left out.
Result<std::vector<std::string>> list_folders(const fs::path& folder) {
  std::error_code failed;
  std::vector<std::string> names;
  fs::directory_iterator entry(folder, failed);
  for (; !failed && entry != fs::directory_iterator(); entry.increment(failed)) {
    std::string name = entry->path().filename().string();
    std::error_code lost;
    if (!name.starts_with('.') && entry->is_directory(lost)) names.push_back(std::move(name));
  }
  if (failed == std::errc::no_such_file_or_directory)
    return Error(Errc::not_found, fmt::format("no folder {}", folder.string()));
  if (failed) {
    return Error(Errc::io,
                 fmt::format("read the folder {}: {}", folder.string(), failed.message()));
  }
  std::ranges::sort(names);
  return names;
}

class ImageSet {
 public:
  ImageSet(ImagePlan plan, std::uint64_t memory_bytes)
      : plan_(std::move(plan)), writer_(memory_bytes), bad_(plan_.skip_bad_files) {
    set_.kind = DataSet::Kind::pixels;
  }

  Result<DataSet> read() {
    FL_TRY(const auto folders, list_folders(plan_.folder));
    if (plan_.to_predict) {
      FL_CHECK(read_files(plan_.folder, std::nullopt));
    } else {
      FL_TRY(const auto numbers, numbers_of(folders));
      for (std::size_t i = 0; i < folders.size(); ++i)
        FL_CHECK(read_files(plan_.folder / folders[i], numbers[i]));
    }
    FL_CHECK(bad_.finish(plan_.folder, images_ + bad_.count()));
    if (images_ == 0) {
      return Error(Errc::corrupt,
                   fmt::format("{}: there are no images{}", plan_.folder.string(),
                               plan_.to_predict ? "" : "; put them into a folder for each class"));
    }
    const auto size = *plan_.size;
    set_.shape = {plan_.channels, size.rows, size.columns};
    set_.classes = static_cast<std::uint32_t>(plan_.classes.size());
    if (set_.classes == 0 && !set_.labels.empty()) set_.classes = std::ranges::max(set_.labels) + 1;
    set_.class_names = plan_.classes;
    FL_TRY(set_.inputs, writer_.finish());
    groups_.finish(set_);
    return std::move(set_);
  }

 private:
  /// The class of a folder; none if its name does not say it. A class has the same number at every
  /// client, whichever classes a client has.
  [[nodiscard]] std::optional<std::uint32_t> class_of(const std::string& name) const {
    if (!plan_.classes.empty()) {
      const auto found = std::ranges::find(plan_.classes, normal_form(name));
      if (found == plan_.classes.end()) return std::nullopt;
      return static_cast<std::uint32_t>(found - plan_.classes.begin());
    }
    const auto number = number_in<std::uint32_t>(name);
    if (!number || *number >= classes_max || std::to_string(*number) != name) return std::nullopt;
    return number;
  }

  /// The classes of all folders, or an error that names those without one.
  Result<std::vector<std::uint32_t>> numbers_of(const std::vector<std::string>& folders) const {
    std::vector<std::uint32_t> numbers;
    std::string unknown;
    for (const std::string& name : folders) {
      const auto number = class_of(name);
      if (number) numbers.push_back(*number);
      if (!number) unknown += (unknown.empty() ? "" : ", ") + (plan_.folder / name).string();
    }
    if (unknown.empty()) return numbers;
    return Error(Errc::invalid_input,
                 fmt::format("{}: {}", printable(unknown, shown_folders_bytes_max),
                             plan_.classes.empty()
                                 ? "a folder's name must be the number of its class; or name the "
                                   "classes, at all clients in the same order: classes=A+B, or "
                                   "classes=FILE.txt with one a line"
                                 : "not in classes=; each folder must have the name of a class"));
  }

  /// `number`: the class of all images in the folder; none if it is not known.
  Result<void> read_files(const fs::path& folder, std::optional<std::uint32_t> number) {
    FL_TRY(const auto files, list_files(folder));
    for (const ListedFile& file : files) {
      auto image = decode(file);
      if (!image) {
        bad_.add(image.error().at(file.path.string()));
      } else if (const auto added = add(file, *image, number); !added) {
        return added.error().at(file.path.string());
      }
    }
    return {};
  }

  Result<Image> decode(const ListedFile& file) const {
    FL_TRY(const std::string bytes, posix_files().read_all(file.path, image_file_bytes_max));
    return decode_image(std::as_bytes(std::span(bytes)), plan_.channels);
  }

  Result<void> add(const ListedFile& file, Image& image, std::optional<std::uint32_t> number) {
    if (images_ == examples_max)
      return Error(Errc::too_large, fmt::format("more than {} images", examples_max));
    FL_CHECK(fit(image));
    ++images_;
    if (number) set_.labels.push_back(*number);
    if (!number) set_.example_names.push_back(file.name);
    if (!number) set_.example_heading = "file";
    if (plan_.by_folder) FL_CHECK(groups_.add(normal_form(folder_of(file))));
    // From pixels with channels side by side to one channel behind the other.
    planes_.resize(image.pixels.size());
    const std::size_t area = image.pixels.size() / plan_.channels;
    for (std::size_t i = 0; i < image.pixels.size(); ++i)
      planes_[i % plan_.channels * area + i / plan_.channels] = image.pixels[i];
    return writer_.append(std::span<const std::uint8_t>(planes_));
  }

  /// Gives the image the size of all.
  Result<void> fit(Image& image) {
    if (!plan_.size) {
      if (image.rows > image_side_max || image.columns > image_side_max) {
        return Error(Errc::too_large,
                     fmt::format("it has {} x {} pixels; the limit is {} pixels per side: resize "
                                 "all images with size=ROWSxCOLUMNS",
                                 image.rows, image.columns, image_side_max));
      }
      plan_.size = Size{.rows = image.rows, .columns = image.columns};
      is_from_first_ = true;
    }
    if (image.rows == plan_.size->rows && image.columns == plan_.size->columns) return {};
    if (is_from_first_) {
      return Error(Errc::invalid_input,
                   fmt::format("it has {} x {} pixels, the first image has {} x {}; resize all "
                               "images with size=ROWSxCOLUMNS",
                               image.rows, image.columns, plan_.size->rows, plan_.size->columns));
    }
    image = resize_image(image, plan_.size->rows, plan_.size->columns);
    return {};
  }

  ImagePlan plan_;
  StorageWriter writer_;
  BadFiles bad_;
  GroupNames groups_;
  DataSet set_;
  std::uint64_t images_ = 0;
  std::vector<std::uint8_t> planes_;
  bool is_from_first_ = false;  // The size is that of the first image, not of the command line.
};

}  // namespace

Result<DataSet> read_images(const DataRequest& request) {
  FL_TRY(ImagePlan plan, parse_plan(request));
  return ImageSet(std::move(plan), request.memory_bytes).read();
}

}  // namespace fl
