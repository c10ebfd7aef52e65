#define PC_LANES 4
#include "form/form.h"

const Form *pc_form_portable() { return &FORM; }
