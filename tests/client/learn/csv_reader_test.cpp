// SPDX-License-Identifier: Apache-2.0
#include "tests/client/learn/csv_table.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

namespace {

using namespace fl::test;
using fl::Errc;
using Labels = std::vector<std::uint32_t>;

// Every text must make this table of two rows: 1.5 and 2 for y = 0, -3 and 40 for y = 1.
void expect_same_table(std::string_view text, std::string_view options) {
  CAPTURE(text);
  const fl::DataSet set = Table(text).read(options);
  CHECK(values_of(set) == Values{1.5, 2, -3, 40});
  CHECK(set.shape == std::vector<std::int64_t>{2});
  CHECK(set.labels == Labels{0, 1});
  CHECK(set.classes == 2);
  CHECK(set.targets == Values{0, 1});
  CHECK(set.outputs == 1);
  CHECK(set.groups.empty());
}

}  // namespace

TEST_CASE("csv: line ends, quotes, spaces, a byte order mark and separators make no difference") {
  const std::vector<std::string> same = {
      "a,b,y\n1.5,2,0\n-3,40,1\n",
      "a,b,y\n1.5,2,0\n-3,40,1",
      "a,b,y\r\n1.5,2,0\r\n-3,40,1\r\n",
      "a,b,y\r1.5,2,0\r-3,40,1\r",
      "\xef\xbb\xbf"
      "a,b,y\n1.5,2,0\n-3,40,1\n",
      "\"a\",\"b\",\"y\"\n\"1.5\",\"2\",\"0\"\n\"-3\",\"40\",\"1\"\n",
      " a , b , y \n 1.5 ,\t2 , 0\n-3,  40,1  \n",
      "\na,b,y\n\n1.5,2,0\n\n\n-3,40,1\n\n",
      "a,b,y\n+1.5,2.0,0.0\n-3e0,4e+1,1\n",
  };
  for (const std::string& text : same) expect_same_table(text, "target=y");
  expect_same_table("a;b;y\n1.5;2;0\n-3;40;1\n", "target=y,sep=semicolon");
  expect_same_table("a\tb\ty\n1.5\t2\t0\n-3\t40\t1\n", "sep=tab,target=y");
  // The target and what is ignored may stand anywhere.
  expect_same_table("y,id,a,b\n0,x1,1.5,2\n1,x2,-3,40\n", "target=y,ignore=id");
  expect_same_table("id,a,when,b,y\nx,1.5,9:00,2,0\nz,-3,,40,1\n", "target=y,ignore=id+when");
}

TEST_CASE("csv: a gzipped file, and names with separators, quotes and line ends in them") {
  const Table table("");
  write_gzipped(table.file, "\"a, \"\"first\"\"\",\"b\nc\",y\n1.5,2,0\n-3,40,1\n");
  const fl::DataSet set = table.read("target=y");
  CHECK(values_of(set) == Values{1.5, 2, -3, 40});
}

TEST_CASE("csv: missing values are NaN, however they are written") {
  const Table table("a,b,y\n,1,0\nNA,1,0\nNaN,1,0\n?,1,0\nnull,1,0\nNULL,1,0\n\"\",1,0\nna,1,0\n");
  const fl::DataSet set = table.read("target=y");
  REQUIRE(set.size() == 8);
  const Values values = values_of(set);
  for (std::size_t i = 0; i < values.size(); i += 2) {
    CHECK(is_missing_all({values[i]}));
    CHECK(values[i + 1] == 1);
  }
  // In the target column these fields are an error.
  for (const std::string field : {"", "NA", "?", "nan", "null"})
    Table("a,y\n1,2\n1," + field + "\n").expect("target=y", 3, {"column \"y\"", "is missing"});
}

TEST_CASE("csv: only small whole numbers are classes, and all targets are values") {
  const fl::DataSet whole = Table("a,y\n1,3\n1,0\n").read("target=y");
  CHECK(whole.labels == Labels{3, 0});
  CHECK(whole.classes == 4);
  for (const std::string other : {"0.5", "-1", "65536", "1e30"}) {
    CAPTURE(other);
    const fl::DataSet set = Table("a,y\n1,3\n1," + other + "\n").read("target=y");
    CHECK(set.labels.empty());
    CHECK(set.classes == 0);
    CHECK(set.targets == Values{3, std::stof(other)});
  }
  // Several targets, in the order of the option.
  const fl::DataSet several = Table("p,a,q\n1,9,2\n3,9,4\n").read("target=q+p");
  CHECK(several.outputs == 2);
  CHECK(several.targets == Values{2, 1, 4, 3});
  CHECK(several.labels.empty());
  CHECK(values_of(several) == Values{9, 9});
}

TEST_CASE("csv: a schema turns words into inputs and classes, in its own order") {
  const Table table("sex,risk,age\nmale,yes,31\nfemale,no,NA\n,no,5\n?,yes,6\n");
  table.with_schema(
      R"({"columns": {"age": "number", "sex": ["female", "male"]}, "target": ["no", "yes"]})");
  const fl::DataSet set = table.read("target=risk,schema=" + table.schema);
  CHECK(set.shape == std::vector<std::int64_t>{3});
  Values values = values_of(set);
  CHECK(is_missing_all({values[3]}));
  values[3] = -1;
  // age, female, male. A missing word is no word.
  CHECK(values == Values{31, 0, 1, -1, 1, 0, 5, 0, 0, 6, 0, 0});
  CHECK(set.labels == Labels{1, 0, 0, 1});
  CHECK(set.classes == 2);
  CHECK(set.targets.empty());
  CHECK(set.outputs == 0);
}

TEST_CASE("csv: the words of a schema may be numbers, and words that elsewhere mean missing") {
  const Table table("grade,y\nNA,2\n1,0\n");
  table.with_schema(R"({"columns": {"grade": ["1", "NA"]}, "target": ["0", "1", "2"]})");
  const fl::DataSet set = table.read("target=y,schema=" + table.schema);
  CHECK(values_of(set) == Values{0, 1, 1, 0});
  CHECK(set.labels == Labels{2, 0});
  CHECK(set.classes == 3);
  table.with_schema(R"({"columns": {"grade": ["1", "NA"]}, "target": "number"})");
  CHECK(table.read("target=y,schema=" + table.schema).targets == Values{2, 0});
}

TEST_CASE("csv: a schema of very many columns takes time in proportion to them") {
  constexpr std::size_t columns = 100'000;
  std::string names = "y";
  std::string row = "1";
  std::string schema;
  for (std::size_t i = 0; i < columns; ++i) {  // The file's order is not the schema's.
    names += fmt::format(",gene {}", i);
    row += fmt::format(",{}", i);
    schema += fmt::format("{}\"gene {}\": \"number\"", i == 0 ? "" : ", ", columns - 1 - i);
  }
  const Table table(names + "\n" + row + "\n");
  table.with_schema("{\"columns\": {" + schema + "}}");
  const std::clock_t begin = std::clock();
  const Values values = values_of(table.read("target=y,schema=" + table.schema));
  // A square of the columns would take minutes.
  CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < 30);
  REQUIRE(values.size() == columns);
  for (const std::size_t i : {0, 1, 70'000, 99'999})
    CHECK(values[i] == static_cast<float>(columns - 1 - i));
}

TEST_CASE("csv: names and words are the same in every form of Unicode") {
  const std::string one =
      "m\xc3\xbc"
      "de";
  const std::string two =
      "mu\xcc\x88"
      "de";
  const Table table(one + ",y,site\n" + one + ",1," + one + "\n" + two + ",0," + two + "\n");
  table.with_schema(R"({"columns": {")" + two + R"(": [")" + two + R"(", "wach"]}})");
  const fl::DataSet set = table.read("target=y,schema=" + table.schema, "site");
  CHECK(values_of(set) == Values{1, 0, 1, 0});
  CHECK(set.group_names == std::vector<std::string>{one});
  CHECK(Table(two + ",a\n1,2\n").read("target=" + one).targets == Values{1});
  table.with_schema(R"({"columns": {"a": [")" + two + R"(", ")" + one + R"("]}})");
  expect_no_data(table.data("target=y,schema=" + table.schema), Errc::invalid_input,
                 {"stands in it twice"});
  table.with_schema(R"({"columns": {")" + two + R"(": "number", ")" + one + R"(": "number"}})");
  expect_no_data(table.data("target=y,schema=" + table.schema), Errc::invalid_input,
                 {"has a column twice"});
}

TEST_CASE("csv: words that no schema names are refused, with line, column and word") {
  const Table table("age,sex,y\n3,female,0\n4,\"divers\nx\",1\n");
  table.expect("target=y", 2,
               {"column \"sex\"", "\"female\" is not a number", "schema=FILE", "ignore=sex"});
  table.with_schema(R"({"columns": {"age": "number", "sex": ["female", "male"]}})");
  table.expect("target=y,schema=" + table.schema, 3,
               {"column \"sex\"", "\"divers?x\" is not one of the 2 words"});
  const Table classes("age,y\n3,no\n4,maybe\n");
  classes.expect("target=y", 2, {"column \"y\"", "\"no\" is not a number", "\"target\": ["});
  classes.with_schema(R"({"columns": {"age": "number"}, "target": ["no", "yes"]})");
  classes.expect("target=y,schema=" + classes.schema, 3, {"\"maybe\" is not one of the 2 words"});
  write_plain(classes.file, "age,y\n3,no\n4,\n");
  classes.expect("target=y,schema=" + classes.schema, 3, {"the target is missing"});
}

TEST_CASE("csv: the column of by: makes groups and no input") {
  const Table table("hospital,a,y\nOslo,1,0\nBern,2,1\nOslo,3,0\n\"Aa, south\",4,1\n");
  const fl::DataSet set = table.read("target=y", "hospital");
  CHECK(values_of(set) == Values{1, 2, 3, 4});
  CHECK(set.group_names == std::vector<std::string>{"Aa, south", "Bern", "Oslo"});
  CHECK(set.groups == Labels{2, 1, 2, 0});
  table.expect("target=y", 2, {"\"Oslo\" is not a number"});
  table.expect("target=y", 1, {"no column \"clinic\"", "hospital, a, y"}, "clinic");
  write_plain(table.file, "hospital,a,y\nOslo,1,0\n,2,1\n");
  table.expect("target=y", 3, {"column \"hospital\"", "empty"}, "hospital");
}

TEST_CASE("csv: errors in the file name the line, also behind quoted line ends and blank lines") {
  Table("").expect("target=y", 1, {"empty"});
  Table("a,y\n").expect("target=y", 2, {"no line behind"});
  Table("a,y,a\n1,2,3\n").expect("target=y", 1, {"columns 1 and 3 are both called \"a\""});
  Table("y\n1\n").expect("target=y", 1, {"no column is left"});
  Table("a,y\n1,2\n1,2,3\n").expect("target=y", 3, {"3 fields", "the first line has 2"});
  Table("a,y\n1,2\n1\n").expect("target=y", 3, {"1 fields"});
  Table("a,y\r\n1,2\r\n1\r\n").expect("target=y", 3, {"1 fields"});
  Table("a,y\r1,2\r1\r").expect("target=y", 3, {"1 fields"});
  Table("a,y\n\n1,2\n \n\nx,2\n").expect("target=y", 6, {"column \"a\"", "\"x\""});
  Table("a,id,y\n1,\"two\n\nlines\",2\nx,1,2\n").expect("target=y,ignore=id", 5, {"\"x\""});
  Table("a,y\n1,2\n1,\"2\n").expect("target=y", 3, {"a quoted field does not end"});
  Table("a,y\n1,2\n1\",2\n").expect("target=y", 3, {"a quote stands where none may"});
  Table("a,y\ninf,2\n").expect("target=y", 2, {"\"inf\" is no finite number"});
  Table("a,y\n1e39,2\n").expect("target=y", 2, {"is too large: a value is at most 3.4e38"});
  Table("a,y\n1,1e999\n").expect("target=y", 2, {"column \"y\""});
  Table(std::string("\xff\xfe"
                    "a\0",
                    4))
      .expect("target=y", 1, {"UTF-16"});
  Table("a,y\n1,\x1b[31m\n").expect("target=y", 2, {"\"?[31m\""});
}

TEST_CASE("csv: columns that the command line or the schema names must be there, for one use") {
  const Table table("a,b,y\n1,2,3\n");
  table.expect("target=z", 1, {"no column \"z\"", "a, b, y"});
  table.expect("target=y,ignore=c", 1, {"no column \"c\""});
  table.expect("target=y,ignore=y", 1, {"\"y\" has two uses"});
  table.expect("target=y", 1, {"\"y\" has two uses"}, "y");
  table.expect("target=y+y", 1, {"\"y\" has two uses"});
  const std::string options = "target=y,schema=" + table.schema;
  table.with_schema(R"({"columns": {"a": "number"}})");
  table.expect(options, 1, {"\"b\" is not in the schema", "ignore=b"});
  table.with_schema(R"({"columns": {"a": "number", "c": "number"}})");
  table.expect(options + ",ignore=b", 1, {"no column \"c\""});
  table.with_schema(R"({"columns": {"a": "number", "b": "number", "y": "number"}})");
  table.expect(options, 1, {"\"y\" stands in the schema as an input"});
  table.with_schema(R"({"columns": {"a": "number"}, "target": ["1", "2"]})");
  table.expect("target=y+b,schema=" + table.schema, 1, {"several targets must be numbers"});
}

TEST_CASE("csv: a schema that is wrong is refused, and the error names it") {
  const Table table("a,y\n1,2\n");
  const std::string data = table.data("target=y,schema=" + table.schema);
  expect_no_data(data, Errc::not_found, {table.schema});
  struct Refused {
    std::string text;
    std::string why;
  };
  for (const Refused& refused : std::vector<Refused>{
           {"", "must be JSON like {\"columns\""},
           {"[]", "must be JSON like"},
           {"{}", "must be JSON like"},
           {R"({"columns": {}})", "must be JSON like"},
           {R"({"columns": {"a": "number"}, "classes": 2})", "\"classes\" is unknown"},
           {R"({"columns": {"a": "word"}})", "column \"a\": must be \"number\" or an array"},
           {R"({"columns": {"a": []}})", "column \"a\": must be"},
           {R"({"columns": {"a": ["x", 1]}})", "column \"a\": 1 is not a word"},
           {R"({"columns": {"a": ["x", ""]}})", "column \"a\": \"\" is not a word"},
           {R"({"columns": {"a": ["x", "x"]}})", "\"x\" stands in it twice"},
           {R"({"columns": {"a": "number", "a": ["x"]}})", "\"columns\" has a column twice"},
           {R"({"columns": {"a": "number"}, "columns": {"a": "number"}})", "stands in it twice"},
           {R"({"columns": {"a": "number"}, "target": 3})", "\"target\": must be"}}) {
    CAPTURE(refused.text);
    table.with_schema(refused.text);
    expect_no_data(data, Errc::invalid_input, {table.schema, refused.why});
  }
}

TEST_CASE("csv: options that are wrong are refused, and the error says what would be right") {
  struct Refused {
    std::string options;
    std::string why;
  };
  for (const Refused& refused : std::vector<Refused>{
           {"csv", "say csv:FILE,target=COLUMN"},
           {"csv:", "say csv:FILE,target=COLUMN"},
           {"csv:,target=y", "say csv:FILE,target=COLUMN"},
           {"csv:x.csv", "target=COLUMN"},
           {"csv:x.csv,target=", "target= has no value"},
           {"csv:x.csv,target=a++b", "empty name"},
           {"csv:x.csv,target=a,target=b", "target is given twice"},
           {"csv:x,2.csv,target=a", "\"2.csv\" is not KEY=VALUE"},
           {"csv:x.csv,target=a,label=b",
            "unknown option label; known are: target, ignore, name, schema"},
           {"csv:x.csv,target=a,sep=pipe", "sep=pipe: must be comma, semicolon or tab"}}) {
    expect_no_data(refused.options, Errc::invalid_input, {refused.why, refused.options});
  }
  expect_no_data("csv:/nonesuch.csv,target=y", Errc::not_found, {"/nonesuch.csv"});
}

TEST_CASE("csv: a row without an end is refused before it fills the memory") {
  const Table table("");
  write_gzipped(table.file, "a,y\n1,\"" + std::string(17 << 20, 'x'));
  expect_no_data(table.data("target=y"), Errc::too_large, {table.file, "line 2", "quote"});
  write_gzipped(table.file, "a,y\n1" + std::string(17 << 20, ',') + "\n");
  expect_no_data(table.data("target=y"), Errc::too_large, {table.file, "line 2"});
}

TEST_CASE("csv: cut anywhere, a file is read or refused, and never read wrongly") {
  const std::string text = "a,\"b\",y\n1,\"2\",0\r\n3,4,1\n";
  for (std::size_t n = 0; n < text.size(); ++n) {
    const Table table(text.substr(0, n));
    const std::string data = table.data("target=y");
    const auto set = fl::read_data({.text = data});
    if (!set) {
      CHECK(set.error().message().find(table.file + ", line ") != std::string::npos);
      continue;
    }
    CHECK(values_of(*set).size() == std::size_t{2} * set->size());
    CHECK(values_of(*set)[0] == 1);
    CHECK(set->labels[0] == 0);
  }
}
