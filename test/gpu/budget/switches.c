// SPDX-License-Identifier: Apache-2.0
//
// For which launches does CUPTI create records and callbacks after these were disabled and enabled
// again?
//
//	test/gpu/build --programs bin
//	bin/switches /usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13 WHAT GATE THREADS PHASES [HEAL]
//
// Threads launch all the time. In each phase something is disabled and enabled again. Then each
// thread launches 100 kernels, all of which should be seen. WHAT is
//
//	k     records of kernels                  t     callbacks of launches
//	K     the same, and callbacks stay on     b     both
//	f     records, with a flush after each
//	o     callbacks, enabled once and permanently
//	T     callbacks, and records stay on
//	p     PC sampling, enabled, started, stopped and disabled; records and callbacks stay on
//	P     the same, without records
//	a     as p, but counters are queried first; sampling is not enabled if CUPTI rejects the query
//	A     as p, but counters are queried between enable and start; it is not started if CUPTI rejects the query
//	q     as p, but after a rejected start it stays enabled, and only the start is repeated
//
// GATE says who launches meanwhile:
//
//	0     all threads
//	1     none
//	2     none, and the device is idle
//	3     none while it is disabled
//	4     as 3, for t, T, p and P; threads block in CUPTI's callback, as in our core, and t and T miss the exit callback
//	5     as 4, for p and P, but PC sampling is enabled concurrently with launches
//	6     as 4, with launches for 20 ms before the start
//	7     as 5, with launches for 20 ms before the start
//	8     as 7, and the device is then idle
//
// For each thread it prints the first phase with missing events at its end (-1 for none), and the
// number missing at the end. With callbacks it also prints the number of missing exit callbacks.
// For p and P it prints the calls that CUPTI rejected, for example because the counters are in use
// (-1: no stall reasons).
//
// With HEAL the run ends at the first rejected start that cannot be undone, because CUPTI also
// rejects the disable call. CUPTI then sends no callbacks and no records. HEAL selects the
// recovery: n none, s unsubscribe and subscribe again, f finalize, r enable records again. S, F and
// R do the same during launches. It prints how many of each thread's next 100 launches have
// callbacks and records, and again after records were disabled and enabled.

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "bare.h"

enum { MOST = 16, EACH = 100 };
static void *others_kernel, *own_kernel[MOST], *context, *subscriber;
// Writers have priority: some threads always launch.
static pthread_rwlock_t gate = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static bool gated;
static atomic_int asked, done;
static atomic_bool over;
static atomic_ulong recorded[MOST], told[MOST], others;
static int inside[MOST]; // the threads' own
static __thread int self = -1;
static __thread bool checked;
// With gate 4: who is in a call whose end will be told, whether others wait, and how often ends
// were forgotten.
static bool by_callback;
static atomic_bool closed, in_call[MOST];
static atomic_int blocked;
static int stuck[MOST]; // how often a thread seemed to stay in a call forever
static atomic_bool pause_all;
static atomic_int paused;
static atomic_uint life;

// wait_in_callback returns whether the end of the call will be told.
static bool wait_in_callback(void) {
  unsigned then = atomic_load(&life);
  for (;;) {
    atomic_store(&in_call[self], true);
    if (!atomic_load(&closed)) return true;
    atomic_store(&in_call[self], false);
    atomic_fetch_add(&blocked, 1);
    while (atomic_load(&closed) && atomic_load(&life) == then) usleep(20);
    atomic_fetch_sub(&blocked, 1);
    if (atomic_load(&life) != then) return false;
  }
}

// close_callbacks waits until no thread is in a call. Before callbacks are disabled, it waits until
// all threads are blocked. A thread at the start of its callback is not in a call yet, and would get
// no exit callback. A launch may wait for room in the device's queue, for as long as another process
// uses the device.
static void close_callbacks(int threads, bool all_blocked) {
  atomic_store(&closed, true);
  for (int waited = 0; all_blocked && atomic_load(&blocked) < threads; waited++) {
    CHECK(waited < 250000); // or CUPTI did not report the end of a call
    usleep(20);
  }
  for (int i = 0; i < threads; i++) {
    for (int waited = 0; atomic_load(&in_call[i]) && waited < 40000; waited++) usleep(20);
    if (!atomic_load(&in_call[i])) continue;
    stuck[i]++;
    atomic_store(&in_call[i], false);
  }
}

static void forget_callbacks(void) {
  atomic_fetch_add(&life, 1);
  atomic_store(&closed, false);
}

static void on_api(void *user, uint32_t domain, uint32_t cbid, const void *data) {
  (void)user, (void)domain, (void)cbid;
  const gpufl_callback_data *call = data;
  if (call->callbackSite == 0 && checked) atomic_fetch_add(&told[self], 1);
  if (self < 0) return;
  if (call->callbackSite == 0) {
    if (!by_callback || wait_in_callback()) inside[self]++;
  } else if (inside[self] > 0) { // or it began before it was told
    inside[self]--;
    atomic_store(&in_call[self], false);
  }
}
static void on_record(uint32_t kind, const char *record) {
  if (!is_kernel(kind)) return;
  const char *name;
  memcpy(&name, record + 104, sizeof name);
  if (name == NULL || strncmp(name, "own", 3) != 0) return;
  int i = atoi(name + 3);
  if (i < MOST) atomic_fetch_add(&recorded[i], 1);
}

static void launch(void *function, void *stream) {
  if (gated) pthread_rwlock_rdlock(&gate);
  CHECK(cu_launch(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL) == 0);
  if (gated) pthread_rwlock_unlock(&gate);
}

static void *run(void *arg) {
  self = (int)(intptr_t)arg;
  void *stream;
  CHECK(cu_current(context) == 0 && cu_stream(&stream, 1) == 0);
  int phase = 0;
  while (!atomic_load(&over)) {
    if (atomic_load(&asked) > phase) {
      phase = atomic_load(&asked);
      checked = true;
      for (int i = 0; i < EACH; i++) launch(own_kernel[self], stream);
      checked = false;
      atomic_fetch_add(&done, 1);
    }
    launch(others_kernel, stream);
    atomic_fetch_add(&others, 1);
    if (!atomic_load(&pause_all)) continue;
    atomic_fetch_add(&paused, 1);
    while (atomic_load(&pause_all)) usleep(200);
  }
  return NULL;
}

// ---- PC sampling ----

enum { PLACES = 512, REASONS = 128 };
static gpufl_pc_data rest;
static gpufl_pc_record places[PLACES];
static gpufl_pc_stall stalls[PLACES][REASONS];
enum { AVAILABILITY, COUNTERS, ENABLE, NUM_REASONS, CONFIGURE, START, STOP, DISABLE, ANSWERS };
static int refused[ANSWERS], last_refusal[ANSWERS];
static bool enabled, configured, started;
static int started_ever;
static unsigned long between; // launches

static bool answered(int what, int result) {
  if (result == 0) return true;
  refused[what]++;
  last_refusal[what] = result;
  return false;
}

static gpufl_pc_context sampled(void) { return (gpufl_pc_context){.size = GPUFL_SIZE_TO(gpufl_pc_context, ctx), .ctx = context}; }

static struct {
  int n;
  double first, longest; // of the others; in ms
} asking;

static double ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

// available asks what NVIDIA says may fail where the device is profiled or sampled: how large the
// list of counters would be, and for the list.
static bool available(void) {
  double began = ms();
  gpufl_profiler_life life_of = {.structSize = sizeof life_of};
  gpufl_profiler_available p = {.structSize = sizeof p, .ctx = context};
  CHECK(profiler_available != NULL && profiler_begin(&life_of) == 0);
  bool all = answered(AVAILABILITY, profiler_available(&p));
  if (all) {
    p.pCounterAvailabilityImage = calloc(1, p.counterAvailabilityImageSize + 1);
    CHECK(p.pCounterAvailabilityImage != NULL);
    all = answered(COUNTERS, profiler_available(&p));
    free(p.pCounterAvailabilityImage);
  }
  CHECK(profiler_end(&life_of) == 0);
  double took = ms() - began;
  if (asking.n++ == 0) asking.first = took;
  else if (took > asking.longest) asking.longest = took;
  return all;
}

static bool asks_first, asks_last;

static void arm(void) {
  gpufl_pc_context c = sampled();
  if (enabled && configured) return; // it is to be started again
  configured = started = false;
  enabled = false;
  if (asks_first && !available()) return;
  enabled = answered(ENABLE, pc_enable(&c));
  if (!enabled) return;
  size_t reasons = 0;
  gpufl_pc_num_reasons count = {.size = GPUFL_SIZE_TO(gpufl_pc_num_reasons, numStallReasons), .ctx = context, .numStallReasons = &reasons};
  if (!answered(NUM_REASONS, pc_num_reasons(&count)) || !answered(NUM_REASONS, reasons > 0 && reasons <= REASONS ? 0 : -1)) return;
  rest = (gpufl_pc_data){.size = sizeof rest, .collectNumPcs = PLACES, .pPcData = places};
  for (int i = 0; i < PLACES; i++) places[i] = (gpufl_pc_record){.size = sizeof *places, .stallReason = stalls[i]};
  gpufl_pc_attribute a[] = {
      {.attributeType = GPUFL_CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_COLLECTION_MODE, .attributeData.number = GPUFL_CUPTI_PC_SAMPLING_COLLECTION_MODE_CONTINUOUS},
      {.attributeType = GPUFL_CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_ENABLE_START_STOP_CONTROL, .attributeData.number = 1},
      {.attributeType = GPUFL_CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_OUTPUT_DATA_FORMAT, .attributeData.number = GPUFL_CUPTI_PC_SAMPLING_OUTPUT_DATA_FORMAT_PARSED},
      {.attributeType = GPUFL_CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_DATA_BUFFER, .attributeData.buffer = &rest},
  };
  gpufl_pc_configuration p = {.size = GPUFL_SIZE_TO(gpufl_pc_configuration, pPCSamplingConfigurationInfo), .ctx = context, .numAttributes = sizeof a / sizeof *a, .pPCSamplingConfigurationInfo = a};
  configured = answered(CONFIGURE, pc_configure(&p));
}

static void start_and_stop(void) {
  gpufl_pc_context c = sampled();
  started = configured && (!asks_last || available()) && answered(START, pc_start(&c));
  if (started) answered(STOP, pc_stop(&c));
  started_ever += started;
}

static void disarm(void) {
  gpufl_pc_context c = sampled();
  if (enabled) answered(DISABLE, pc_disable(&c));
  enabled = false;
}

static int again;

// told_again has each thread launch and says how many of its launches came, before and after
// something is done while nobody launches.
static void told_again(const char *what, int threads, void (*something)(void)) {
  if (something != NULL) {
    atomic_store(&paused, 0);
    atomic_store(&pause_all, true);
    while (atomic_load(&paused) < threads) usleep(200);
    CHECK(cu_synchronize() == 0);
    something();
    atomic_store(&pause_all, false);
  }
  unsigned long before[MOST], made[MOST];
  for (int i = 0; i < threads; i++) {
    before[i] = atomic_load(&told[i]);
    made[i] = atomic_load(&recorded[i]);
  }
  atomic_store(&done, 0);
  atomic_fetch_add(&asked, 1);
  while (atomic_load(&done) < threads) usleep(200);
  CHECK(cu_synchronize() == 0);
  for (int i = 0; i < 3; i++) {
    flush_all(1);
    usleep(50000);
  }
  again++;
  printf("%s:", what);
  for (int i = 0; i < threads; i++) printf(" %lu/%lu", atomic_load(&told[i]) - before[i], atomic_load(&recorded[i]) - made[i]);
  printf("; ");
  fflush(stdout);
}

static void records_anew(void) {
  activity_disable(CONCURRENT_KERNEL);
  CHECK(activity_enable(CONCURRENT_KERNEL) == 0);
}

static void heal(char how) {
  if (strchr("sSfF", how) != NULL) CHECK(unsubscribe(subscriber) == 0);
  if (strchr("fF", how) != NULL) CHECK(finalize() == 0);
  if (strchr("sSfF", how) != NULL) {
    CHECK(subscribe(&subscriber, on_api, NULL) == 0);
    tell_of_launches(subscriber, 1);
  }
  if (strchr("fF", how) != NULL) CHECK(register_callbacks(on_request, on_complete) == 0);
  if (strchr("rRfF", how) != NULL) CHECK(activity_enable(CONCURRENT_KERNEL) == 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 6 || argc == 7);
  char how = argc == 7 ? *argv[6] : 0;
  bool hurt = false;
  char what = *argv[2];
  int level = atoi(argv[3]), threads = atoi(argv[4]), phases = atoi(argv[5]);
  bool samples = strchr("pPqaA", what) != NULL;
  asks_first = what == 'a';
  asks_last = what == 'A';
  CHECK(strchr("kKtbfoTpPqaA", what) != NULL && threads > 0 && threads <= MOST && (level < 4 || samples || (level == 4 && strchr("tT", what) != NULL)));
  by_callback = level >= 4;
  gated = level > 0 && !by_callback;
  load_bare(argv[1]);
  CHECK(cu_init(0) == 0 && subscribe(&subscriber, on_api, NULL) == 0 && register_callbacks(on_request, on_complete) == 0);
  set_byte(GPUFL_CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER, 0);
  bool records = what != 't' && what != 'o' && what != 'P', callbacks = strchr("tbKoTpPqaA", what) != NULL, switched = strchr("tbT", what) != NULL;
  if (records) CHECK(activity_enable(CONCURRENT_KERNEL) == 0);
  if (callbacks && what != 'o') tell_of_launches(subscriber, 1);
  char ptx[8192] = PTX EMPTY_KERNEL("others");
  for (int i = 0; i < threads; i++) sprintf(ptx + strlen(ptx), EMPTY_KERNEL("own%d"), i);
  void *module;
  CHECK(cu_retain(&context, 0) == 0 && cu_current(context) == 0 && cu_load(&module, ptx) == 0 && cu_function(&others_kernel, module, "others") == 0);
  for (int i = 0; i < threads; i++) {
    char name[16];
    sprintf(name, "own%d", i);
    CHECK(cu_function(&own_kernel[i], module, name) == 0);
  }
  pthread_t all[MOST];
  for (int i = 0; i < threads; i++) CHECK(pthread_create(&all[i], NULL, run, (void *)(intptr_t)i) == 0);
  usleep(50000);
  int first[MOST];
  for (int i = 0; i < MOST; i++) first[i] = -1;
  for (int phase = 0; phase < phases; phase++) {
    for (int on = 0; on < 2; on++) {
      bool alone = gated && !(level == 3 && on);
      if (alone) pthread_rwlock_wrlock(&gate);
      if (level == 2) CHECK(cu_synchronize() == 0);
      if (samples && !on) {
        unsigned long then = atomic_load(&others);
        if (level == 6) close_callbacks(threads, false);
        if (level >= 5) arm();
        atomic_store(&closed, false);
        if (level >= 6) usleep(20000);
        between += atomic_load(&others) - then;
      }
      if (by_callback && !on) close_callbacks(threads, !samples);
      if (samples && !on) {
        if (level < 5) arm();
        if (level == 8) CHECK(cu_synchronize() == 0);
        start_and_stop();
        if (what != 'q' || started || !configured) disarm();
        hurt = how != 0 && refused[START] > 0 && (what == 'q' || refused[DISABLE] > 0);
        bool beside = strchr("SFR", how) != NULL;
        if (hurt && !beside) heal(how);
        if (hurt && by_callback) forget_callbacks();
        atomic_store(&closed, false);
        if (hurt && beside) {
          usleep(20000);
          heal(how);
        }
      }
      if (records && what != 'T' && !samples) CHECK((on ? activity_enable(CONCURRENT_KERNEL) : activity_disable(CONCURRENT_KERNEL)) == 0);
      if (switched) tell_of_launches(subscriber, (uint32_t)on);
      if (by_callback && !on && !samples) forget_callbacks();
      if (what == 'o' && on && phase == 0) tell_of_launches(subscriber, 1);
      if (what == 'f') flush_all(0);
      if (alone) pthread_rwlock_unlock(&gate);
      usleep(3000);
    }
    if (hurt) break;
    atomic_store(&done, 0);
    atomic_fetch_add(&asked, 1);
    while (atomic_load(&done) < threads) usleep(200);
    if (gated) pthread_rwlock_wrlock(&gate);
    CHECK(cu_synchronize() == 0);
    if (gated) pthread_rwlock_unlock(&gate);
    if (records) flush_all(1);
    unsigned long want = (unsigned long)(phase + 1) * EACH;
    for (int i = 0; i < threads; i++) {
      if (first[i] < 0 && ((records && !samples && atomic_load(&recorded[i]) < want) || (callbacks && atomic_load(&told[i]) < want))) first[i] = phase;
    }
  }
  if (hurt) {
    if (!by_callback) gated = false;
    usleep(100000);
    told_again("told of/recorded of 100", threads, NULL);
    told_again("records off and on", threads, records_anew);
    printf("\n");
    phases = 0;
  }
  atomic_store(&over, true);
  for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
  CHECK(cu_synchronize() == 0);
  for (int i = 0; i < 3 && records; i++) { // what CUPTI's own thread still works at comes with the next
    flush_all(1);
    usleep(100000);
  }
  printf("%c gate %d, %d threads, %d phases, %lu other launches:", what, level, threads, phases, atomic_load(&others));
  unsigned long want = (unsigned long)(phases + again) * EACH;
  for (int i = 0; i < threads; i++) {
    printf(" [%d] first %d, without record %lu, not told %lu of %lu, inside %d;", i, first[i], records ? want - atomic_load(&recorded[i]) : 0,
           callbacks ? want - atomic_load(&told[i]) : 0, want, inside[i]);
    if (samples) printf(" stuck %d;", stuck[i]);
  }
  static const char *const answers[ANSWERS] = {"availability", "counters", "enable", "reasons", "configure", "start", "stop", "disable"};
  if (samples) printf(" started %d times, %lu launches since it was enabled;", started_ever, between);
  for (int i = 0; i < ANSWERS && samples; i++) {
    if (refused[i] > 0) printf(" %s refused %d times, last with %d;", answers[i], refused[i], last_refusal[i]);
  }
  if (asking.n > 0) printf(" asking took %.1f ms and up to %.1f ms;", asking.first, asking.longest);
  printf("\n");
  fflush(stdout);
  _exit(0);
}
