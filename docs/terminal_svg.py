#!/usr/bin/env python3
"""Draws terminal output as an SVG picture: ./dev demo | docs/terminal_svg.py > docs/run.svg"""
import html
import sys

lines = [line.rstrip("\n") for line in sys.stdin]
width = 20 + 8.4 * max(len(line) for line in lines)
height = 24 + 18 * len(lines)
print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
      f'font-family="monospace" font-size="14">')
print('<rect width="100%" height="100%" rx="8" fill="#14181d"/>')
for number, line in enumerate(lines):
    print(f'<text x="12" y="{28 + 18 * number}" fill="#d7dde4" xml:space="preserve">{html.escape(line)}</text>')
print("</svg>")
