// SPDX-License-Identifier: Apache-2.0
//
// What a launch costs after a sequence of calls of CUPTI:
//
//	test/gpu/build --programs bin
//	taskset -c 3 bin/sequence /usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13 'SCPYBKI.F?k.K.F?k.T.' 30000
//
// Each letter is a call, its small one undoes it:
//
//	I     the context and the kernel are made        S     cuptiSubscribe
//	C     our clock                                  B     buffers
//	P Y   one buffer for all threads, zeroed         K k   records of kernels, e d those of the context
//	X x   of kernels, one at a time                  M m   of copies, sets, graphs, overhead
//	T t   callbacks of launches                      F     flush
//	G g   PC sampling, unless another process has it A a   SASS metrics, as windows do it
//	q r   ends sampling before g; takes samples      W     50 ms
//	u     arms sampling and disarms it, no start     j     as g, but does not stop before
//	O o   from here on one kernel at a time, or not  i     from here on without start and stop
//	p     from here on with the longest period, 2^31 cycles
//	L l   callbacks of modules and contexts          N     as a, with nothing read
//	E     an event of the context, as windows wait for the device
//	R     cuptiSassMetricsUnsetConfig                U V   a thread that flushes every 0.2 s (V: not between A and a)
//	H h   takes what is free of malloc in small pieces for the calling thread, and prints how much (D: malloc_trim)
//	Z     cuptiFinalize                              .     launches empty kernels, five times so many
//	?     how many records there were, their mean duration, and how many had no time
//
// A dot prints the least and the mean of five, in ns a launch; a call that fails its letter and
// CUPTI's result.
//
// As bin/sequence.so it is what test/gpu/deep/sequence.py calls in the process of a training.

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "counts.h"

enum { ROUNDS = 5 };
static void *function, *subscriber;
static unsigned long told, records, without;
static double duration;

static uint64_t now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t on_clock(void) { return now(CLOCK_REALTIME); }
static void on_api(void *user, uint32_t domain, uint32_t cbid, const void *data) {
  (void)user, (void)domain, (void)cbid, (void)data;
  told++;
}
static void on_record(uint32_t kind, const char *record) {
  if (!is_kernel(kind)) return;
  uint64_t start, end;
  memcpy(&start, record + 16, sizeof start);
  memcpy(&end, record + 24, sizeof end);
  records++;
  if (start == 0) without++;
  else duration += (double)(end - start);
}

// ---- windows ----

enum { MOST_PLACES = 4096, MOST_REASONS = 256 };
static gpufl_pc_data samples, rest;
static gpufl_pc_record places[MOST_PLACES], rest_places[MOST_PLACES];
static gpufl_pc_stall stalls[MOST_PLACES][MOST_REASONS], rest_stalls[MOST_PLACES][MOST_REASONS];
static unsigned long sampled, taken_windows, refused_windows;
static bool sampling; // between G and g
static uint64_t sampling_begins, sampling_ends; // ns that they took
static uint32_t sampling_period, start_stop = 1, sampling_mode = GPUFL_CUPTI_PC_SAMPLING_COLLECTION_MODE_CONTINUOUS;
// CUpti_SassMetricsUnsetConfig_Params.
typedef struct {
  size_t structSize;
  void *pPriv;
  uint32_t deviceIndex;
} unset;

static void clear(gpufl_pc_data *data, gpufl_pc_record *records, gpufl_pc_stall (*reasons)[MOST_REASONS]) {
  *data = (gpufl_pc_data){.size = sizeof *data, .collectNumPcs = MOST_PLACES, .pPcData = records};
  for (int i = 0; i < MOST_PLACES; i++) records[i] = (gpufl_pc_record){.size = sizeof *records, .stallReason = reasons[i]};
}

static gpufl_pc_context sampled_context(void) { return (gpufl_pc_context){.size = GPUFL_SIZE_TO(gpufl_pc_context, ctx), .ctx = here()}; }

// arm_samples starts a window. If the start is rejected, mostly because another process uses the
// counters, it disarms.
static int arm_samples(bool start) {
  gpufl_pc_context c = sampled_context();
  int result = pc_enable(&c);
  if (result != 0) return result;
  clear(&rest, rest_places, rest_stalls);
  gpufl_pc_attribute a[] = {
      {.attributeType = GPUFL_CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_COLLECTION_MODE, .attributeData.number = sampling_mode},
      {.attributeType = GPUFL_CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_ENABLE_START_STOP_CONTROL, .attributeData.number = start_stop},
      {.attributeType = GPUFL_CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_OUTPUT_DATA_FORMAT, .attributeData.number = GPUFL_CUPTI_PC_SAMPLING_OUTPUT_DATA_FORMAT_PARSED},
      {.attributeType = GPUFL_CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_DATA_BUFFER, .attributeData.buffer = &rest},
      {.attributeType = GPUFL_CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD, .attributeData.number = sampling_period}, // last: it may be left out
  };
  gpufl_pc_configuration p = {.size = GPUFL_SIZE_TO(gpufl_pc_configuration, pPCSamplingConfigurationInfo), .ctx = here(), .numAttributes = sizeof a / sizeof *a - (sampling_period == 0), .pPCSamplingConfigurationInfo = a};
  size_t reasons = 0;
  gpufl_pc_num_reasons count = {.size = GPUFL_SIZE_TO(gpufl_pc_num_reasons, numStallReasons), .ctx = here(), .numStallReasons = &reasons};
  result = pc_num_reasons(&count);
  if (result == 0 && reasons == 0) result = GPUFL_CUPTI_ERROR_HARDWARE_BUSY;
  if (result == 0) result = pc_configure(&p);
  if (result == 0 && start && start_stop) result = pc_start(&c);
  sampling = result == 0;
  if (sampling) return 0;
  refused_windows++;
  int answer = pc_disable(&c);
  if (answer != 0) fprintf(stderr, " disabled=%d", answer);
  return result == GPUFL_CUPTI_ERROR_HARDWARE_BUSY ? 0 : result;
}
static int begin_samples(void) { return arm_samples(true); }
static int arm_without_start(void) { return arm_samples(false); }

static int ask_samples(void) {
  do {
    clear(&samples, places, stalls);
    gpufl_pc_get_data p = {.size = GPUFL_SIZE_TO(gpufl_pc_get_data, pcSamplingData), .ctx = here(), .pcSamplingData = &samples};
    int result = pc_get_data(&p);
    if (result != 0) return result;
    sampled += samples.totalSamples;
  } while (samples.remainingNumPcs > 0 && samples.totalNumPcs > 0);
  return 0;
}

static int timed(int (*call)(void), uint64_t *ns) {
  uint64_t began = now(CLOCK_MONOTONIC);
  int result = call();
  *ns += now(CLOCK_MONOTONIC) - began;
  return result;
}

static bool stopped; // by q
static int stop_samples(void) {
  if (!sampling || stopped || !start_stop) return 0;
  gpufl_pc_context c = sampled_context();
  stopped = true;
  return pc_stop(&c);
}

static int end_samples(void) {
  if (!sampling) {
    stopped = false;
    return 0;
  }
  gpufl_pc_context c = sampled_context();
  int result = stop_samples(), asked = ask_samples(), answer = pc_disable(&c);
  sampling = stopped = false;
  taken_windows++;
  return result != 0 ? result : asked != 0 ? asked : answer;
}

static int wait_by_event(void) {
  void *event;
  int result = event_create(&event, GPUFL_CU_EVENT_DISABLE_TIMING);
  if (result != 0) return result;
  result = record_context(here(), event);
  while (result == 0 && (result = event_query(event)) == GPUFL_CUDA_ERROR_NOT_READY) {
    result = 0;
    usleep(200);
  }
  int answer = event_destroy(event);
  return result != 0 ? result : answer;
}

static int tell_of_modules(uint32_t on) {
  const uint32_t all[] = {GPUFL_CUPTI_CBID_RESOURCE_CONTEXT_CREATED, GPUFL_CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING, GPUFL_CUPTI_CBID_RESOURCE_MODULE_LOADED,
                          GPUFL_CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING, GPUFL_CUPTI_CBID_RESOURCE_MODULE_PROFILED};
  int result = 0;
  for (size_t i = 0; i < sizeof all / sizeof *all && result == 0; i++) result = enable_callback(on, subscriber, GPUFL_CUPTI_CB_DOMAIN_RESOURCE, all[i]);
  return result;
}

// ---- a thread that flushes ----

static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER; // held while a letter runs

static void *flush_often(void *careful) {
  for (;;) {
    usleep(200000);
    pthread_mutex_lock(&asking);
    if (careful == NULL || !atomic_load(&patching)) flush_all(0);
    usleep(20000); // CUPTI processes the flush in its own thread and does not report the end
    pthread_mutex_unlock(&asking);
  }
  return NULL;
}

static int begin_flushing(bool careful) {
  pthread_t thread;
  return pthread_create(&thread, NULL, flush_often, careful ? &patching : NULL);
}

// switch_others switches everything that a recorder enables besides kernels: copies, sets, graphs
// and CUPTI's own overhead.
static int switch_others(int (*call)(uint32_t)) {
  const uint32_t kinds[] = {GPUFL_CUPTI_ACTIVITY_KIND_MEMCPY, GPUFL_CUPTI_ACTIVITY_KIND_MEMCPY2, GPUFL_CUPTI_ACTIVITY_KIND_MEMSET,
                            GPUFL_CUPTI_ACTIVITY_KIND_GRAPH_TRACE, GPUFL_CUPTI_ACTIVITY_KIND_OVERHEAD};
  int result = 0;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    int answer = call(kinds[i]);
    if (result == 0) result = answer;
  }
  return result;
}

// ---- malloc ----

enum { LARGEST = 1024, PAGE = 4096, MOST = 1 << 21 };
static _Thread_local void *taken;

// take allocates pieces of each small size until a page of them is contiguous, so that they come
// from memory that was free as a whole.
static void take(void) {
  size_t pieces = 0, bytes = 0;
  for (size_t chunk = LARGEST; chunk >= 32; chunk -= 16) {
    char *run[PAGE / 32 + 1], *before = NULL;
    size_t length = 0;
    for (int i = 0; i < MOST && length * chunk < PAGE; i++) {
      char *p = malloc(chunk - 8);
      if (p == NULL) break;
      if (p != before + chunk) {
        for (size_t k = 0; k < length; k++) {
          *(void **)run[k] = taken;
          taken = run[k];
        }
        pieces += length;
        bytes += length * chunk;
        length = 0;
      }
      run[length++] = before = p;
    }
    while (length > 0) free(run[--length]);
  }
  fprintf(stderr, " [%zu pieces, %zu KiB]", pieces, bytes >> 10);
}

static void give_back(void) {
  while (taken != NULL) {
    void *next = *(void **)taken;
    free(taken);
    taken = next;
  }
}

// ---- letters ----

// answer does what a letter says; CUPTI's result.
static int answer(char letter) {
  void *module;
  switch (letter) {
    case 'I': CHECK(cu_retain(&context, 0) == 0 && cu_current(context) == 0 && cu_load(&module, PTX EMPTY_KERNEL("nothing")) == 0 && cu_function(&function, module, "nothing") == 0); return 0;
    case 'S': return subscribe(&subscriber, on_api, NULL);
    case 's': return unsubscribe(subscriber);
    case 'C': return register_clock(on_clock);
    case 'B': return register_callbacks(on_request, on_complete);
    case 'P': return set_byte(GPUFL_CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER, 0);
    case 'Y': zeroed_buffers = 1; return set_byte(GPUFL_CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, 1);
    case 'K': return activity_enable(CONCURRENT_KERNEL);
    case 'k': return activity_disable(CONCURRENT_KERNEL);
    case 'e': return enable_context(here(), CONCURRENT_KERNEL);
    case 'd': return disable_context(here(), CONCURRENT_KERNEL);
    case 'X': return activity_enable(KERNEL);
    case 'x': return activity_disable(KERNEL);
    case 'M': return switch_others(activity_enable);
    case 'm': return switch_others(activity_disable);
    case 'T': tell_of_launches(subscriber, 1); return 0;
    case 't': tell_of_launches(subscriber, 0); return 0;
    case 'L': return tell_of_modules(1);
    case 'l': return tell_of_modules(0);
    case 'F': return flush_all(0);
    case 'U': return begin_flushing(false);
    case 'V': return begin_flushing(true);
    case 'G': return timed(begin_samples, &sampling_begins);
    case 'g': return timed(end_samples, &sampling_ends);
    case 'q': return stop_samples();
    case 'j': stopped = true; return end_samples();
    case 'u': {
      int result = arm_without_start();
      stopped = true;
      int ended = end_samples();
      return result != 0 ? result : ended;
    }
    case 'i': start_stop = 0; return 0;
    case 'p': sampling_period = 31; return 0;
    case 'o': sampling_mode = GPUFL_CUPTI_PC_SAMPLING_COLLECTION_MODE_CONTINUOUS; return 0;
    case 'r': return sampling ? ask_samples() : 0;
    case 'O': sampling_mode = GPUFL_CUPTI_PC_SAMPLING_COLLECTION_MODE_KERNEL_SERIALIZED; return 0;
    case 'W': usleep(50000); return 0;
    case 'A': return begin_counts();
    case 'a': return end_counts();
    case 'N': return leave_counts();
    case 'E': return wait_by_event();
    case 'R': {
      unset p = {.structSize = GPUFL_SIZE_TO(unset, deviceIndex)};
      configured = false;
      return sass_unset_config(&p);
    }
    case 'H': take(); return 0;
    case 'h': give_back(); return 0;
    case 'D': malloc_trim(0); return 0;
    case 'Z': configured = false; return finalize();
    case '?':
      printf(" {%lu records, %.0f ns, %lu without, %lu patched", records, records > without ? duration / (double)(records - without) : 0, without, counted);
      if (taken_windows + refused_windows > 0) printf(", %lu samples in %lu windows, %lu refused, %lu ms to begin and %lu to end", sampled, taken_windows, refused_windows, sampling_begins / 1000000, sampling_ends / 1000000);
      printf("}");
      records = without = sampled = taken_windows = refused_windows = counted = sampling_begins = sampling_ends = 0;
      duration = 0;
      fflush(stdout);
      return 0;
  }
  fprintf(stderr, "%c is no letter\n", letter);
  exit(1);
}

// act is answer without company.
int act(char letter);
int act(char letter) {
  pthread_mutex_lock(&asking);
  int result = answer(letter);
  pthread_mutex_unlock(&asking);
  return result;
}

#ifdef LIBRARY
// load opens CUPTI and the driver.
void load(const char *cupti);
void load(const char *cupti) { load_bare(cupti); }
#else
static void launch(int n) {
  double least = 1e18, sum = 0;
  for (int r = 0; r < ROUNDS; r++) {
    uint64_t begin = now(CLOCK_MONOTONIC);
    for (int i = 0; i < n; i++) CHECK(cu_launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) == 0);
    CHECK(cu_synchronize() == 0);
    double one = (double)(now(CLOCK_MONOTONIC) - begin) / n;
    sum += one;
    if (one < least) least = one;
  }
  printf(" %.0f(%.0f)", least, sum / ROUNDS);
}

int main(int argc, char **argv) {
  CHECK(argc == 4);
  int launches = atoi(argv[3]);
  CHECK(launches > 0);
  load_bare(argv[1]);
  CHECK(cu_init(0) == 0);
  printf("%s:", argv[2]);
  for (const char *p = argv[2]; *p != 0; p++) {
    if (*p == '.') {
      CHECK(function != NULL);
      launch(launches);
      continue;
    }
    int result = act(*p);
    if (result != 0) printf(" %c=%d", *p, result);
  }
  printf(" told of %lu\n", told);
  return 0;
}
#endif
