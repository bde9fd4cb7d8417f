// SPDX-License-Identifier: Apache-2.0
#include "client/site/measured_choices.hpp"

#include "client/site/value_as.hpp"
#include "shared/base/json.hpp"

#include <fmt/format.h>

#include <utility>

namespace fl::site {

Error no_choice(const MeasuredChoices::value_type& choice) {
  return {Errc::corrupt,
          fmt::format("ranks/measured.json of the client's state has '{}' for '{}': remove the "
                      "file, and the ranks measure again",
                      choice.second, choice.first)};
}

Result<KeptChoices> KeptChoices::open(Files& files, std::filesystem::path file) {
  KeptChoices kept(files, std::move(file));
  if (!files.exists(kept.file_)) return kept;
  FL_TRY(const std::string text, files.read_all(kept.file_));
  auto choices = value_as<MeasuredChoices>(parse_json(text));
  if (!choices) {
    return Error(Errc::corrupt, "the file is damaged: remove it, and the ranks measure again")
        .at(kept.file_.string());
  }
  kept.choices_ = std::move(*choices);
  return kept;
}

Result<void> KeptChoices::add(const MeasuredChoices& choices) {
  MeasuredChoices all = choices_;
  all.insert(choices.begin(), choices.end());
  if (all == choices_) return {};
  FL_CHECK(files_->make_folder(file_.parent_path()));
  const std::string text = json_text(nlohmann::json(all), 2) + "\n";
  FL_CHECK(files_->write_atomically(file_, bytes_of(std::string_view(text))));
  choices_ = std::move(all);
  return {};
}

}  // namespace fl::site
