#define PC_LANES 16
#include "form/form.h"

const Form *pc_form_avx512() { return &FORM; }
