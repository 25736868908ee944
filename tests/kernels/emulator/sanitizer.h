// What ThreadSanitizer is told of fibers; nothing in a usual build.
//
// Each CUDA thread is a thread to it, so it finds what __syncthreads or __syncwarp should have kept apart. Only those
// order memory: shuffles, votes, ldmatrix, mma and atomics do not. The emulator's own memory is none of its business.
// The blocks of a launch run one after the other, also to it: what two of them do to the same memory it does not see.
#pragma once

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>

extern "C" {
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
#endif

namespace emulator {

#ifdef __SANITIZE_THREAD__
typedef void* Watched;  // a fiber as ThreadSanitizer knows it

static inline Watched watch_this() { return __tsan_get_current_fiber(); }
static inline Watched watch_new() { return __tsan_create_fiber(0); }
static inline void forget(Watched fiber) { __tsan_destroy_fiber(fiber); }
// Not instrumented: it would be entered as one thread and left as another.
__attribute__((noinline, no_sanitize("thread"))) static void goes_on(Watched fiber) {
  __tsan_switch_to_fiber(fiber, 1 /* which orders nothing */);
}
// By its address: whoever acquires comes after all who have released.
struct Order {
  char byte;
};

static inline void releases(Order* order) { __tsan_release(order); }
static inline void acquires(Order* order) { __tsan_acquire(order); }

// While one of these lives, what the fiber reads and writes is the emulator's.
struct Unwatched {
  Unwatched() {
    AnnotateIgnoreReadsBegin("", 0);
    AnnotateIgnoreWritesBegin("", 0);
  }
  ~Unwatched() {
    AnnotateIgnoreReadsEnd("", 0);
    AnnotateIgnoreWritesEnd("", 0);
  }
};
#else
struct Watched {};

static inline Watched watch_this() { return {}; }
static inline Watched watch_new() { return {}; }
static inline void forget(Watched) {}
static inline void goes_on(Watched) {}

struct Order {};

static inline void releases(Order*) {}
static inline void acquires(Order*) {}

struct Unwatched {
  Unwatched() {}
};
#endif

}  // namespace emulator
