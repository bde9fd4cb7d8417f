// SPDX-License-Identifier: Apache-2.0
// Lets doctest print a Result in a failed CHECK: the error's code and message.
#pragma once

#include "shared/base/error.hpp"

#include <doctest/doctest.h>

namespace doctest {

template <class T>
struct StringMaker<boost::system::result<T, fl::Error>> {
  static String convert(const boost::system::result<T, fl::Error>& result) {
    if (result) return "a value";
    const std::string code(fl::to_string(result.error().code()));
    return (code + ": " + result.error().message()).c_str();
  }
};

}  // namespace doctest
