# SPDX-License-Identifier: Apache-2.0
"""A small model with a prediction for each token, for tests of masked targets."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.embed = nn.Embedding(9, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.embed(x)).movedim(-1, 1)  # Classes along dimension 1.
