// mlx-c's public headers name 16-bit float types that only Arm compilers define. On x86-64 give them the
// compiler's own half type; bfloat16 travels as its bits, as mlx-c itself treats it.
#pragma once
#include <stdint.h>
#ifndef __aarch64__
#define HAS_FLOAT16
typedef _Float16 float16_t;
#define HAS_BFLOAT16
typedef uint16_t bfloat16_t;
#endif
