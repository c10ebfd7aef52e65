#define PC_LANES 8
#include "form/form.h"

const Form *pc_form_avx2() { return &FORM; }
