#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a trainer of a program that knows nothing of Tributary, one run of this script for each request:
#
#   fl-client --trainer-once '/path/to/once.sh /path/to/fit.py /path/to/data.csv' --join TOKEN
#
# fit.py stands for your own program; `fit.py` in this folder is an example. It is called as
#   fit.py describe DATA               prints the text of hello.json
#   fit.py train DATA WEIGHTS LR       changes the file of weights, prints the text of metrics.json
#   fit.py measure DATA WEIGHTS        prints the text of metrics.json
# docs/design/trainer-protocol.md has the messages. Needs jq.
set -eu
program=$1 data=$2
case $(jq -r .type task.json) in
  hello) "$program" describe "$data" > hello.json ;;
  train) "$program" train "$data" weights.safetensors "$(jq .settings.lr task.json)" > metrics.json ;;
  evaluate) "$program" measure "$data" weights.safetensors > metrics.json ;;
  *)
    echo "this trainer can't do that" >&2
    exit 1
    ;;
esac
