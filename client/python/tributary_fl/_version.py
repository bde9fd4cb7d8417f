# SPDX-License-Identifier: Apache-2.0
"""The version of the package, which is that of the programs in it."""

__version__ = "0.2.0.dev0"
