#!/usr/bin/env Rscript
# SPDX-License-Identifier: Apache-2.0
# Federated linear regression in R, one run of this script for each request:
#
#   fl-client --trainer-once 'Rscript /path/to/linear.R /path/to/data.csv' --join TOKEN
#
# The last column of data.csv is the target; every tenth row is held out. The model is `weight`, one
# number for each other column, and `bias`. docs/design/trainer-protocol.md has the messages. Needs the
# package jsonlite.
library(jsonlite)

read_tensors <- function(path) {
  file <- file(path, "rb")
  on.exit(close(file))
  size <- sum(as.integer(readBin(file, "raw", 8)) * 256^(0:7))
  header <- fromJSON(rawToChar(readBin(file, "raw", size)), simplifyVector = FALSE)
  header[["__metadata__"]] <- NULL
  offsets <- sapply(header, function(tensor) tensor$data_offsets[[1]])
  lapply(header[order(offsets)], function(tensor) {
    bytes <- tensor$data_offsets[[2]] - tensor$data_offsets[[1]]
    readBin(file, "numeric", bytes / 4, size = 4, endian = "little")
  })
}

# All tensors are vectors of float32.
write_tensors <- function(tensors, path) {
  ends <- cumsum(4 * lengths(tensors))
  header <- Map(function(tensor, end) {
    list(dtype = "F32", shape = I(length(tensor)), data_offsets = c(end - 4 * length(tensor), end))
  }, tensors, ends)
  text <- charToRaw(toJSON(header, auto_unbox = TRUE, digits = 0))
  file <- file(path, "wb")
  on.exit(close(file))
  writeBin(c(length(text), 0L), file, endian = "little")
  writeBin(text, file)
  for (tensor in tensors) writeBin(tensor, file, size = 4, endian = "little")
}

answer <- function(values, path) write(toJSON(values, auto_unbox = TRUE, digits = NA), path)

data <- as.matrix(read.csv(commandArgs(trailingOnly = TRUE)[1]))
held_out <- seq_len(nrow(data)) %% 10 == 0
inputs <- ncol(data) - 1
task <- fromJSON("task.json")

residuals <- function(model, rows) {
  drop(data[rows, 1:inputs, drop = FALSE] %*% model$weight) + model$bias - data[rows, inputs + 1]
}

if (task$type == "hello") {
  tensors <- list(list(name = "weight", shape = I(inputs)), list(name = "bias", shape = I(1)))
  answer(list(protocol = 1, tensors = tensors, train_examples = sum(!held_out),
              holdout_examples = sum(held_out), metrics = I("mae"),
              supports = I("initial")), "hello.json")
} else if (task$type == "initial") {
  write_tensors(list(weight = numeric(inputs), bias = 0), "initial.safetensors")
} else if (task$type == "train") {
  model <- read_tensors("weights.safetensors")
  steps <- if (task$settings$steps > 0) task$settings$steps else 10 * task$settings$epochs
  for (step in seq_len(steps)) {
    error <- residuals(model, !held_out)
    slope <- drop(crossprod(data[!held_out, 1:inputs, drop = FALSE], error)) / sum(!held_out)
    model$weight <- model$weight - task$settings$lr * slope
    model$bias <- model$bias - task$settings$lr * mean(error)
  }
  write_tensors(model, "weights.safetensors")
  answer(list(steps = steps, loss = mean(error^2)), "metrics.json")
} else if (task$type == "evaluate") {
  error <- residuals(read_tensors("weights.safetensors"), held_out)
  answer(list(examples = sum(held_out), loss = mean(error^2),
              metrics = list(mae = mean(abs(error)))), "metrics.json")
} else {
  stop("unknown request: ", task$type)
}
