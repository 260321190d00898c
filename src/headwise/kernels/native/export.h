// A function of the library's C ABI.
#pragma once
#if defined(_WIN32)
#define HW_EXPORT extern "C" __declspec(dllexport)
#else
#define HW_EXPORT extern "C" __attribute__((visibility("default")))
#endif
