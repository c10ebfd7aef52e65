#define PC_LANES 16
#define PC_BF16_DOT
#include "form/form.h"

const Form *pc_form_avx512_bf16() { return &FORM; }
