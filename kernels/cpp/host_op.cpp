#include "mlx/array.h"
