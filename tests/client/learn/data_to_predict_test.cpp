// SPDX-License-Identifier: Apache-2.0
// Every reader also reads examples that lack what is to be predicted.
#include "client/learn/data/data.hpp"
#include "client/learn/data/fit.hpp"
#include "tests/client/learn/csv_table.hpp"
#include "tests/client/learn/image_files.hpp"
#include "tests/client/learn/npz_files.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace fl::test {
namespace {

using Names = std::vector<std::string>;

DataSet read_to_predict(const std::string& data, bool skip_bad_files = false) {
  const auto set = read_data({.text = data, .skip_bad_files = skip_bad_files, .to_predict = true});
  CAPTURE(data);
  INFO((set ? std::string() : set.error().message()));
  REQUIRE(set.has_value());
  CHECK(set->labels.empty());
  CHECK(set->targets.empty());
  return *set;
}

}  // namespace

TEST_CASE("a table to predict may lack its target, and a target that is there is not read") {
  for (const std::string_view text :
       {"age,y,dose\n1,7,2\n3,,4\n", "age,dose\n1,2\n3,4\n", "age,y,dose\n1,no,2\n3,?,4\n"}) {
    const Table table(text);
    const DataSet set = read_to_predict(table.data("target=y"));
    CHECK(values_of(set) == Values{1, 2, 3, 4});
    CHECK(set.input_names == Names{"age", "dose"});
    CHECK(set.target_names == Names{"y"});
  }
  const Table without("age,dose\n1,2\n");
  CHECK(values_of(read_to_predict("csv:" + without.file)) == Values{1, 2});
  // Other columns that are named must be there.
  without.expect("target=y", 1, {"there is no column \"y\""});
  const std::string data = without.data("ignore=name");
  CHECK(read_data({.text = data, .to_predict = true}).error().code() == Errc::corrupt);
}

TEST_CASE("a table to predict knows the names of its rows, where it has them") {
  struct Named {
    std::string text;
    std::string options;
    std::string heading;
  };
  for (const Named& named : std::vector<Named>{{"\"\",\"a\"\n\"x, y\",1\n\"z\",2\n", "", "name"},
                                               {"a\n\"x, y\",1\nz,2\n", "", "name"},
                                               {"a,id\n1,\"x, y\"\n2,z\n", "name=id", "id"},
                                               {",id,a\n1,\"x, y\",1\n2,z,2\n", "name=id", "id"}}) {
    CAPTURE(named.text);
    const Table table(named.text);
    const DataSet set =
        read_to_predict(named.options.empty() ? "csv:" + table.file : table.data(named.options));
    CHECK(values_of(set) == Values{1, 2});
    CHECK(set.example_names == Names{"x, y", "z"});
    CHECK(set.example_heading == named.heading);
  }
  // In training the names are no input, and nobody needs them.
  const DataSet trained = Table("id,a,y\nx,1,0\nz,2,1\n").read("target=y,name=id");
  CHECK(values_of(trained) == Values{1, 2});
  CHECK(trained.example_names.empty());
  Table("id,a,y\nx,1,0\n").expect("target=y,name=key", 1, {"no column \"key\""});
  Table("id,a,y\nx,1,0\n").expect("target=y,name=id,ignore=id", 1, {"has two uses", "name="});
}

TEST_CASE("the classes of a table to predict are those of its schema") {
  const Table table("sex,age\nmale,30\n,40\n");
  table.with_schema(
      R"({"columns": {"age": "number", "sex": ["female", "male"]}, "target": ["no", "yes"]})");
  const DataSet set = read_to_predict(table.data("schema=" + table.schema));
  CHECK(values_of(set) == Values{30, 0, 1, 40, 0, 0});
  CHECK(set.classes == 2);
  CHECK(set.class_names == Names{"no", "yes"});
}

TEST_CASE("arrays and digits to predict may lack their labels") {
  const TemporaryFolder folder;
  const auto x = array<float>("x", "<f4", "(2, 3)", {1, 2, 3, 4, 5, 6});
  write_npz(folder / "data.npz", {x}, false);
  CHECK(values_of(read_to_predict("npz:" + (folder / "data.npz").string())) ==
        Values{1, 2, 3, 4, 5, 6});
  write_npz(folder / "data.npz", {x, array<std::int64_t>("y", "<i8", "(3,)", {1, 0, 0})}, false);
  CHECK(read_to_predict("npz:" + (folder / "data.npz").string()).size() == 2);
  write_plain(folder / "t10k-images-idx3-ubyte", idx_images(2, 1, 2, "abcd"));
  const DataSet digits = read_to_predict("idx:" + folder.path().string() + ":test");
  CHECK(digits.size() == 2);
  CHECK(digits.shape == std::vector<std::int64_t>{1, 1, 2});
}

TEST_CASE("images to predict lie in any folders, and each example knows its file") {
  const TemporaryFolder folder;
  const auto add = [&folder](const std::string& name, std::uint8_t shade) {
    std::filesystem::create_directories((folder / name).parent_path());
    const std::vector<std::uint8_t> rgb(3, shade);
    write_plain(folder / name, png_bytes(1, 1, PNG_FORMAT_RGB, rgb.data()));
  };
  add("new.png", 1);
  add("monday/b.png", 2);
  add("monday/a.png", 3);
  const std::string data = "images:" + folder.path().string();
  const DataSet set = read_to_predict(data + ",classes=ill+healthy,channels=1");
  CHECK(set.example_names == Names{"monday/a.png", "monday/b.png", "new.png"});
  CHECK(set.class_names == Names{"ill", "healthy"});
  CHECK(set.classes == 2);
  const std::vector<std::uint32_t> last{2};
  CHECK(set.select(last).example_names == Names{"new.png"});
  CHECK(set.select(last).example_heading == "file");
  CHECK(read_to_predict(data).classes == 0);
  write_plain(folder / "notes.txt", "no image");
  CHECK(read_data({.text = data, .to_predict = true}).has_error());
  CHECK(read_to_predict(data, true).size() == 3);
}

TEST_CASE("data to predict must fit the model in their inputs and classes only") {
  const Table table("a,b\n1,2\n3,\n");
  table.with_schema(R"({"columns": {"a": "number", "b": "number"}, "target": ["x", "y", "z"]})");
  LearnOptions options;
  options.data = table.data("schema=" + table.schema);
  const LocalData data = load_data_to_predict(options).value();
  CHECK(data.train.empty());
  CHECK(data.holdout == std::vector<std::uint32_t>{0, 1});
  const auto fit = [&data](std::string_view model) {
    const auto fits = check_fit_to_predict(parse_model(model).value(), model, data);
    return fits ? "" : fits.error().message();
  };
  CHECK(fit("logistic:2-3").empty());
  CHECK(fit("linear:2-1").empty());
  CHECK(fit("logistic:3-3").find("takes 3 values an example") != std::string::npos);
  CHECK(fit("logistic:3-3").find("target=") != std::string::npos);
  CHECK(fit("logistic:2-2").find("takes 2 classes, but") != std::string::npos);
  CHECK(fit("logistic:2-3,scale=none").find("no missing values") != std::string::npos);
  const auto trains = check_fit(parse_model("logistic:2-3").value(), "logistic:2-3", data);
  REQUIRE(trains.has_error());
  CHECK(trains.error().message().find("labels from 0 to 2") != std::string::npos);
}

}  // namespace fl::test
