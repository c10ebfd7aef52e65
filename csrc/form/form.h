// One instruction set's functions, written once for any vector width and compiled once per instruction set.
//
// The file that includes this says how many lanes a vector has (PC_LANES) and whether bfloat16 dot products are there
// (PC_BF16_DOT).
#ifndef PRECOLLAPSE_FORM_FORM_H
#define PRECOLLAPSE_FORM_FORM_H

#include "packing.h"
#include "vocab_chunk.h"
#include "logits_chunk.h"
#include "moments.h"

namespace {

const Form FORM = {packed_bytes, pack_hidden, scratch_bytes, vocab_chunk,    logits_chunk,
                   PANEL,        row_square,  centre_panel,  product_panels};

}  // namespace
#endif
