/* The codecs for a program in any language that can call C: libfl-codec.so, which is made beside
 * fl-client. examples/python-client/codec.py calls it from Python.
 *
 * Vectors are fp32, one value after the other in the layout's order, `elements` of them. A function
 * that fails returns NULL, 0 or -1, as it says, and flc_error() then has the reason. A coder is
 * used by one thread at a time; what it returns is valid until its next call. */
#ifndef TRIBUTARY_SHARED_CODEC_C_API_H
#define TRIBUTARY_SHARED_CODEC_C_API_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when a function below does: a caller compares it with the one that it was written for. */
#define FLC_VERSION 2
uint32_t flc_version(void);

/* Why the last call of this thread that failed did; UTF-8. */
const char* flc_error(void);

/* What flc_coder_encode() can encode, by name, with spaces between: for a client's Hello. Codecs
 * "delta+..." are not among them. */
const char* flc_names(void);

/* What a sender keeps for a codec from one vector to the next. */
enum { FLC_RESIDUAL = 1, FLC_VELOCITY = 2 };
/* Some of these, or 0; -1: there is no such codec. */
int32_t flc_keeps(const char* spec);

/* Of one layout, and with what codecs learn from one vector for the next (CodecState). `layout`: a
 * line for each tensor, its name and its sizes with spaces between, as in "fc.weight 10 784". NULL:
 * names or sizes that can't be. */
typedef struct flc_coder flc_coder;
flc_coder* flc_coder_new(const char* layout);
void flc_coder_free(flc_coder* coder); /* NULL is nothing to free. */
uint64_t flc_coder_elements(const flc_coder* coder);

/* The payload (reader.hpp) of `update`, and in `bytes` how long it is. `spec` as in `fl-server
 * codecs`, in the state that its warm-ups have in that round, from 1; the same update, seeds and
 * history give the same bytes on every machine. `shared_seed`: of all vectors that are added up
 * with this one, as an offer has it, so that their codes may be added up; or `seed` again.
 * `threads`: 0, as many as cores.
 *
 * With error feedback `residual` is what earlier payloads have lost, zeros at first: it is added to
 * the update, and becomes what this one loses. With momentum ("+dgc") so is `velocity`
 * (feedback.hpp). NULL where flc_keeps() asks for neither. A client makes both durable together
 * with the payload, as they are after the call.
 *
 * `nmse`: |x - decoded|^2 / |x|^2 of what was coded; may be NULL. NULL is returned for a wrong
 * spec, and for a value that is not finite or out of the codec's range; residual and velocity are
 * then as they were. A BatchNorm's running_mean and running_var have no momentum; whoever adds
 * vectors of another kind to a model (SCAFFOLD's control variates) codes them without feedback. */
const uint8_t* flc_coder_encode(flc_coder* coder, const char* spec, uint32_t round, uint64_t seed,
                                uint64_t shared_seed, const float* update, float* residual,
                                float* velocity, int32_t threads, uint64_t* bytes, double* nmse);

/* Fills `out`; the payload need not be trusted. 0, or -1: it is damaged, or of another layout. */
int32_t flc_coder_decode(flc_coder* coder, const uint8_t* payload, uint64_t bytes, float* out,
                         int32_t threads);

/* Gives a payload that was refused, or came too late, back to the residual. 0, or -1 as above. */
int32_t flc_coder_take_back(flc_coder* coder, const uint8_t* payload, uint64_t bytes,
                            float* residual, int32_t threads);

#ifdef __cplusplus
}
#endif

#endif
