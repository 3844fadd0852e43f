// SPDX-License-Identifier: Apache-2.0
//
// Can CUPTI flush its records while threads copy? Without our core:
//
//	test/gpu/build --programs bin
//	LD_PRELOAD=bin/crash.so bin/copies /usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13 HOW THREADS MICROSECONDS SECONDS
//
// Threads launch kernels and copy from and to malloc's memory, in one or several pieces, without
// pause. Every MICROSECONDS the program flushes completed records (cuptiActivityFlushAll). HOW says
// what is in flight meanwhile:
//
//	b     calls and device work
//	d     device work only
//	n     nothing
//	w     as n, and then records are disabled for a moment, as during a window
//	o     as d, and then they are disabled, whatever the device does
//	x     calls and device work, and then records are disabled, as in o
//	k     the same, but records of copies stay enabled
//	e     as o, and records are enabled again concurrently with calls
//	f     as b, and the flush is forced
//	r     as b, and every second buffer request of CUPTI is rejected
//	s     as o, with a window of SASS metrics open meanwhile
//	S     the same, and calls block in CUPTI's callback, as in our core, instead of before them
//	X     as S, and records are disabled concurrently with calls
//	z     as d, then cuptiFinalize concurrently with calls, and attach again while calls block
//	Z     as d, and cuptiFinalize while calls block
//	i     as n, and then cuptiFinalize
//
// It prints the numbers of flushes, of records of copies and launches, of patched instructions, and
// of windows that had launches and no patched instructions.

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#include "counts.h"

enum { MOST = 32, KERNELS = 8, SMALL = 4, LARGE = 6 << 20, COPY = GPUFL_CUPTI_ACTIVITY_KIND_MEMCPY };
static void *kernels[KERNELS], *subscriber;
static pthread_rwlock_t gate = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static bool gated, by_callback, copies_stay, refusing; // as HOW says
static __thread bool applications; // its calls block
static __thread int depth;
static atomic_bool over;
static __thread bool leaving; // CUPTI is finalized at the end of the call
static int left_with;
static atomic_ulong launches, copies, recorded[2];

#define COPIES(G)                                                                \
  G(allocate, cuMemAlloc_v2, (uint64_t *, size_t))                               \
  G(to_device, cuMemcpyHtoDAsync_v2, (uint64_t, const void *, size_t, void *))   \
  G(from_device, cuMemcpyDtoHAsync_v2, (void *, uint64_t, size_t, void *))       \
  G(on_device, cuMemcpyDtoDAsync_v2, (uint64_t, uint64_t, size_t, void *))       \
  G(wait_for, cuStreamSynchronize, (void *))                                     \
  G(driver_version, cuDriverGetVersion, (int *))
COPIES(BARE_FIELD)

static uint64_t on_clock(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
static void on_api(void *user, uint32_t domain, uint32_t cbid, const void *data) {
  (void)user, (void)domain, (void)cbid;
  const gpufl_callback_data *call = data;
  if (leaving && call->callbackSite == 1) {
    leaving = false;
    left_with = finalize();
  }
  if (!applications) return;
  if (call->callbackSite == 0) {
    if (depth++ == 0) pthread_rwlock_rdlock(&gate);
  } else if (--depth == 0) {
    pthread_rwlock_unlock(&gate);
  }
}
static void on_record(uint32_t kind, const char *record) {
  (void)record;
  if (kind == CONCURRENT_KERNEL) atomic_fetch_add(&recorded[0], 1);
  if (kind == COPY) atomic_fetch_add(&recorded[1], 1);
}

#define CALL(what)                                 \
  do {                                             \
    if (gated) pthread_rwlock_rdlock(&gate);       \
    CHECK((what) == 0);                            \
    if (gated) pthread_rwlock_unlock(&gate);       \
  } while (0)

static void *run(void *arg) {
  applications = by_callback;
  unsigned seed = (unsigned)(intptr_t)arg * 7919 + 1;
  void *stream;
  uint64_t one, other, scratch;
  CHECK(cu_current(context) == 0 && cu_stream(&stream, 1) == 0 && allocate(&one, LARGE) == 0 && allocate(&other, LARGE) == 0 && allocate(&scratch, 4096) == 0);
  void *values[] = {&scratch};
  unsigned *out = malloc(LARGE), *in = malloc(LARGE);
  CHECK(out != NULL && in != NULL);
  while (!atomic_load(&over)) {
    size_t bytes = rand_r(&seed) % 16 == 0 ? LARGE : SMALL << rand_r(&seed) % 14;
    size_t words = bytes / sizeof *out;
    out[0] = out[words - 1] = (unsigned)rand_r(&seed);
    for (int i = rand_r(&seed) % 8; i > 0; i--) {
      CALL(cu_launch(kernels[rand_r(&seed) % KERNELS], 1, 1, 1, 32, 1, 1, 0, stream, values, NULL));
      atomic_fetch_add(&launches, 1);
    }
    CALL(to_device(one, out, bytes, stream));
    CALL(on_device(other, one, bytes, stream));
    CALL(from_device(in, other, bytes, stream));
    CALL(wait_for(stream));
    atomic_fetch_add(&copies, 3);
    CHECK(in[0] == out[0] && in[words - 1] == out[words - 1]);
    // The free memory of the heap changes, as in any program.
    void *some[16];
    for (int i = 0; i < 16; i++) {
      some[i] = malloc(16 + 16 * (size_t)(rand_r(&seed) % 8));
      CHECK(some[i] != NULL);
      memset(some[i], 0x5a, 16);
    }
    for (int i = 0; i < 16; i++) free(some[i]);
  }
  return NULL;
}

static void close_gate(void) {
  if (gated || by_callback) pthread_rwlock_wrlock(&gate);
}

static void open_gate(void) {
  if (gated || by_callback) pthread_rwlock_unlock(&gate);
}

static void switch_records(int (*call)(uint32_t)) { CHECK(call(CONCURRENT_KERNEL) == 0 && (copies_stay || call(COPY) == 0)); }

static void on_request_or_refuse(uint8_t **buffer, size_t *size, size_t *most) {
  static atomic_uint asked;
  *buffer = NULL;
  *size = *most = 0;
  if (!refusing || atomic_fetch_add(&asked, 1) % 2 == 0) on_request(buffer, size, most);
}

static void enter_cupti(void) {
  CHECK(subscribe(&subscriber, on_api, NULL) == 0 && register_clock(on_clock) == 0 && register_callbacks(on_request_or_refuse, on_complete) == 0);
  set_byte(GPUFL_CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER, 0);
}

static void leave_cupti(void) {
  int version;
  tell_of(subscriber, 1, "cuDriverGetVersion");
  leaving = true;
  CHECK(driver_version(&version) == 0 && !leaving && left_with == 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 6);
  char how = *argv[2];
  int threads = atoi(argv[3]), pause = atoi(argv[4]);
  CHECK(strchr("bdnwoxkefrsSXzZi", how) != NULL && threads > 0 && threads <= MOST && pause > 0);
  by_callback = how == 'S' || how == 'X';
  bool left = strchr("zZi", how) != NULL;
  bool windows = how == 's' || by_callback, off = windows || strchr("woxke", how) != NULL;
  gated = strchr("bxkfr", how) == NULL && !by_callback;
  refusing = how == 'r';
  copies_stay = how == 'k';
  load_bare(argv[1]);
  void *from = dlopen("libcuda.so.1", RTLD_NOW);
  COPIES(BARE_LOOK_UP)
  CHECK(cu_init(0) == 0);
  enter_cupti();
  char ptx[8192] = PTX;
  for (int i = 0; i < KERNELS; i++) sprintf(ptx + strlen(ptx), ADDING_KERNEL("adds%d"), i);
  void *module;
  CHECK(cu_retain(&context, 0) == 0 && cu_current(context) == 0 && cu_load(&module, ptx) == 0);
  for (int i = 0; i < KERNELS; i++) {
    char name[16];
    sprintf(name, "adds%d", i);
    CHECK(cu_function(&kernels[i], module, name) == 0);
  }
  CHECK(activity_enable(CONCURRENT_KERNEL) == 0 && activity_enable(COPY) == 0);
  if (by_callback) tell_of(subscriber, 1, "cuLaunchKernel"), tell_of(subscriber, 1, "cuMemcpy");
  pthread_t all[MOST];
  for (int i = 0; i < threads; i++) CHECK(pthread_create(&all[i], NULL, run, (void *)(intptr_t)i) == 0);
  unsigned long asked = 0, empty = 0;
  uint64_t until = on_clock() + (uint64_t)(atof(argv[5]) * 1e9);
  while (on_clock() < until) {
    usleep((unsigned)pause);
    close_gate();
    if (strchr("nwi", how) != NULL) CHECK(cu_synchronize() == 0);
    CHECK(flush_all(how == 'f') == 0);
    asked++;
    if (left) {
      if (how != 'z') leave_cupti();
      open_gate();
      if (how == 'z') leave_cupti();
      usleep((unsigned)pause);
      close_gate();
      enter_cupti();
      CHECK(activity_enable(CONCURRENT_KERNEL) == 0 && activity_enable(COPY) == 0);
    }
    if (off) {
      if (how == 'X') open_gate();
      switch_records(activity_disable);
      if (how == 'X') close_gate();
      if (windows) {
        open_gate();
        CHECK(flush_all(0) == 0);
        close_gate();
        CHECK(cu_synchronize() == 0 && flush_all(0) == 0 && begin_counts() == 0);
      }
      unsigned long launched = atomic_load(&launches), patched = counted;
      open_gate();
      usleep((unsigned)pause);
      close_gate();
      if (windows) {
        CHECK(cu_synchronize() == 0 && end_counts() == 0);
        // One call may have been in flight at each end.
        if (atomic_load(&launches) > launched + 2 * (unsigned)threads && counted == patched) empty++;
        open_gate();
        close_gate();
      } else {
        CHECK(flush_all(0) == 0);
      }
      if (how == 'e') open_gate();
      switch_records(activity_enable);
      if (how == 'e') close_gate();
    }
    open_gate();
  }
  atomic_store(&over, true);
  for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
  CHECK(cu_synchronize() == 0);
  for (int i = 0; i < 3; i++) { // the next flush includes what CUPTI's own thread still processes
    flush_all(1);
    usleep(100000);
  }
  printf("%c %d threads: asked %lu times, %lu records of %lu launches, %lu of %lu copies, %lu patched, %lu windows empty\n", how, threads, asked, atomic_load(&recorded[0]), atomic_load(&launches),
         atomic_load(&recorded[1]), atomic_load(&copies), counted, empty);
  fflush(stdout);
  _exit(0);
}
