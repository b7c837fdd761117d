// mlx-c uses std::format. Standard libraries older than GCC 13's lack it: lend them {fmt}'s.
#pragma once
#include <version>
#if !defined(__cpp_lib_format)
#define FMT_HEADER_ONLY
#include <fmt/format.h>
namespace std {
using ::fmt::format;
}
#endif
