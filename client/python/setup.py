# SPDX-License-Identifier: Apache-2.0
"""Gives the wheel its name. With programs in tributary_fl/bin, where `./dev wheel` puts them, it is
for one platform and every Python 3; without them it is for all platforms."""

import pathlib

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

HAS_PROGRAMS = (pathlib.Path(__file__).parent / "tributary_fl" / "bin").is_dir()


class Package(Distribution):
    def has_ext_modules(self):
        return HAS_PROGRAMS


class Wheel(bdist_wheel):
    def get_tag(self):
        _, _, platform = super().get_tag()
        return "py3", "none", platform


setup(distclass=Package, cmdclass={"bdist_wheel": Wheel})
