// Runs CUDA C++ on the processor: what a kernel's file is compiled after, in place of NVIDIA's compiler.
//
// It finds what a processor would hide: data that is used before its cp.async was waited for, shared memory that nobody
// wrote (it is poisoned), results that depend on the order of threads (it is forward, backward or random), barriers
// that not all threads come to, collectives that lanes disagree about, misaligned addresses, conflicts between banks.
// It knows nothing of time, of caches, or of how many registers a thread has.
#pragma once
#define SIMT_EMULATOR 1

#include "tests/kernels/emulator/cuda.h"
#include "tests/kernels/emulator/intrinsics.h"
#include "tests/kernels/emulator/launch.h"
#include "tests/kernels/emulator/matrix.h"
#include "tests/kernels/emulator/warp.h"
