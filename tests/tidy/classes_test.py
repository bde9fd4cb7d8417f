"""The rules about classes, on classes that keep and break them."""

import unittest

import classes
from source import Tree


class Classes(unittest.TestCase):
    HEADER = """\
namespace fl::server {
class Database;

/// A class { in a comment }.
template <class T>
class FL_THREAD_SAFETY(capability("x")) Store final : public Base<T> {
 public:
  struct Options {
    std::string path = "; {";
    int a = 0, b = 1;
    bool operator==(const Options&) const = default;
  };
  enum class Kind { one, two };
  using Visit = std::function<void(int)>;
  static constexpr int rows_max = 5;
  explicit Store(const Options& options, std::map<int, int> more = {})
      : options_{options}, size_(1) {}
  Store(const Store&) = delete;
  ~Store() = default;
  [[nodiscard]] Result<void> open(int x,
                                  int y = f(1)) FL_REQUIRES(mutex_);
  bool operator<(const Store& other) const { return size_ < other.size_; }
  void run() {
    struct Local {
      int z;
    };
    if (size_) use([&] { return 1; });
  }
  friend void swap(Store& a, Store& b);

 private:
  class Part {
    void act();
    int x_;
  };
  template <class F>
  void each(F use, void (*done)(int));
  const Options options_;
  std::size_t size_ FL_GUARDED_BY(mutex_) = f(2);
  std::array<int, 2> pair_ = {1, 2};
  void (*call_)(int a, int b) = nullptr;
  Visit visit_ = [](int) { return; };
};
}  // namespace fl::server
"""

    def read(self, texts):
        reader = classes.Reader()
        for path, text in texts.items():
            reader.read(path, text)
        return reader

    def test_functions_and_members_are_counted(self):
        found = self.read({"server/a.hpp": self.HEADER}).classes
        self.assertEqual(
            [(made.short, made.line, made.members, made.functions) for made in found],
            [
                ("Store", 5, 5, 5),
                ("Store::Options", 8, 3, 0),
                ("Store::Part", 32, 1, 1),
            ],
        )

    def found(self, texts, table=""):
        return [str(f) for f in classes.check(Tree(texts | {classes.TABLE: table}))]

    def test_a_large_class_needs_an_exception_in_both_numbers(self):
        body = "  int x_;\n" * 21 + "  void f();\n" * 20
        large = {"server/a.hpp": f"namespace fl {{\nclass A {{\n{body}}};\n}}\n"}
        at = "server/a.hpp:2: A has 21 members and 20 functions, more than "
        self.assertEqual(self.found(large), [at + "40"])
        self.assertEqual(self.found(large, "server/a.hpp A 21 members, 20 functions: so\n"), [])
        self.assertEqual(
            self.found(large, "server/a.hpp A 20 members, 25 functions: so\n"), [at + "20 and 25"]
        )

    def test_an_exception_has_a_reason_and_is_needed(self):
        small = {"server/a.hpp": "class A {\n  int x_;\n};\n"}
        self.assertEqual(
            self.found(
                small, "server/a.hpp A 21 members, 20 functions: so\nserver/a.hpp A 2 sources\n"
            ),
            [
                f"{classes.TABLE}:2: {classes.FORMAT}",
                f"{classes.TABLE}:1: server/a.hpp A size: is not needed any more",
            ],
        )

    SPREAD = {
        "server/a.hpp": "namespace fl {\nclass A {\n  class B;\n  void f();\n};\n}\n",
        "server/a.cpp": "namespace fl {\nvoid A::f() {}\n}\n",
        "server/b.cpp": "namespace fl {\nclass A::B {\n  void g();\n};\nvoid A::B::g() {}\n}\n",
    }

    def test_a_class_over_two_sources_is_found(self):
        expected = ["server/a.hpp:2: A lies in server/a.cpp, server/b.cpp, more than 1"]
        self.assertEqual(self.found(self.SPREAD), expected)
        self.assertEqual(self.found(self.SPREAD, "server/a.hpp A 2 sources: so\n"), [])

    def test_classes_of_one_name_in_several_namespaces_are_several(self):
        hidden = "namespace fl {\nnamespace {\nclass A {\n  void f();\n};\nvoid A::f() {}\n}\n}\n"
        other = "namespace fl::x {\nclass A {\n  void f();\n};\nvoid A::f() {}\n}\n"
        texts = {"server/b.cpp": hidden, "server/c.cpp": hidden, "server/d.cpp": other}
        self.assertEqual(self.found({**self.SPREAD, **texts}), [])

    def test_too_many_collaborators_are_found(self):
        names = "BCDEFGHIJ"
        works = "".join(f"class {name} {{\n  void f();\n}};\n" for name in names)
        plain = "struct Data {\n  int x;\n};\n"
        fields = "".join(f"    {name}& x{name};\n" for name in names)
        parts = f"class A {{\n  struct Parts {{\n{fields}  }};\n  void f();\n}};\n"
        at = "takes 9 others: B, C, D, E, F, G, H, I, J, more than 8"
        self.assertIn(at, self.found({"server/a.hpp": works + parts})[0])
        taken = "const B& b, C* c, std::shared_ptr<const D> d, E& e, F& f, G& g = {}, H& h, I& i"
        for more, is_found in (("const J& j", True), ("J j", False), ("Data& j, B& b2", False)):
            takes = f"class A {{\n  explicit A({taken}, {more});\n}};\n"
            found = self.found({"server/a.hpp": works + plain + takes})
            self.assertEqual([at in line for line in found], [True] * is_found, more)
