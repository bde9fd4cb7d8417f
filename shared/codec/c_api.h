// SPDX-License-Identifier: Apache-2.0
/* A C interface to the codecs, for programs in any language that can call C. It is built as
 * libfl-codec.so beside fl-client. client/python/tributary_fl/codec.py calls it from Python.
 *
 * A vector has flc_coder_elements() fp32 values, in the layout's order. A function that fails
 * returns NULL or -1; flc_error() then gives the reason. Only one thread at a time may use a coder.
 * What a coder returns is valid until the next call with it. */
#ifndef TRIBUTARY_SHARED_CODEC_C_API_H
#define TRIBUTARY_SHARED_CODEC_C_API_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version changes when a function below changes. A caller checks that flc_version() returns the
 * version that it was written for. */
#define FLC_VERSION 3
uint32_t flc_version(void);

/* Why this thread's last failed call failed; UTF-8. */
const char* flc_error(void);

/* The names of the codecs that flc_coder_encode() can encode, separated by spaces: for a client's
 * Hello. "delta" is not among them, because the C interface cannot encode "delta+" codecs. */
const char* flc_names(void);

/* The vectors that a sender must keep from one update to the next. */
enum { FLC_RESIDUAL = 1, FLC_VELOCITY = 2 };
/* Returns the vectors that the codec `spec` keeps, as a bit mask. -1: the spec is wrong. */
int32_t flc_keeps(const char* spec);

/* A coder encodes and decodes vectors of one layout. It also holds what codecs learn from one
 * vector for the next (CodecState). `layout` has one line per tensor: its name and its sizes,
 * separated by spaces, as in "fc.weight 10 784". In a name `\s` is a space, `\n` a line break
 * and `\\` a backslash. NULL: a name or a size is invalid, or a limit is exceeded. */
typedef struct flc_coder flc_coder;
flc_coder* flc_coder_new(const char* layout);
void flc_coder_free(flc_coder* coder); /* NULL is allowed. */
uint64_t flc_coder_elements(const flc_coder* coder);

/* Encodes `update`. Returns the payload (reader.hpp) and writes its length to `bytes`. The same
 * update, seeds and history give the same bytes on every machine.
 *
 * `spec`: as `fl-server codecs` explains it. `round`: counted from 1; it selects the state of the
 * spec's warm-ups. `shared_seed`: the seed that all updates of the round have in common, from the
 * offer, so that the server can add up their codes; for a vector alone, `seed` again. `threads`: 0
 * means one per core.
 *
 * `residual`: for a codec with error feedback, what earlier payloads lost; zeros at first. It is
 * added to the update and then replaced by what this payload loses. `velocity`: for a codec with
 * momentum ("+dgc"), likewise zeros at first and then updated (feedback.hpp). Each may be NULL if
 * flc_keeps() does not ask for it. A client makes both durable together with the payload, as they
 * are after the call.
 *
 * `nmse`: receives |x - decoded|^2 / |x|^2 of the vector x that was coded; may be NULL.
 *
 * NULL is returned for a wrong or a "delta+" spec, for a value that is not finite or out of the
 * codec's range, and if a residual or velocity that the codec needs is NULL. Residual and velocity
 * are then unchanged. Momentum does not apply to a BatchNorm's running_mean and running_var. If a
 * method adds vectors of another kind to a model (SCAFFOLD's control variates), code those without
 * feedback. */
const uint8_t* flc_coder_encode(flc_coder* coder, const char* spec, uint32_t round, uint64_t seed,
                                uint64_t shared_seed, const float* update, float* residual,
                                float* velocity, int32_t threads, uint64_t* bytes, double* nmse);

/* Decodes a payload into `out`. The payload need not be trusted. Returns 0; -1: the payload is
 * damaged or has another layout. */
int32_t flc_coder_decode(flc_coder* coder, const uint8_t* payload, uint64_t bytes, float* out,
                         int32_t threads);

/* Adds a payload that was refused or came too late back to the residual. A BatchNorm's
 * running_mean and running_var are left out. Returns 0; -1 as above, and the residual is then
 * unchanged. */
int32_t flc_coder_take_back(flc_coder* coder, const uint8_t* payload, uint64_t bytes,
                            float* residual, int32_t threads);

#ifdef __cplusplus
}
#endif

#endif
