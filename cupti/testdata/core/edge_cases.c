// SPDX-License-Identifier: Apache-2.0
//
// What a program may do that is rare and allowed, argv[2]: each leaves it and us as we were.
//
//	cancel       a thread is cancelled that is blocked at the barrier
//	keys         the process has no key for a thread's values left
//	given_up     nobody waits for a window any more, while a launch is under way
//	released     the same before the GPU came to rest
//	loading      a module is loaded for long as a window closes
//	reading      one is loaded while the last samples are read, which takes long
//	flushing     CUPTI hands over records for long as one opens
//	capture      a context of another GPU ends while a graph is captured
//	unresponsive         something else has the counters when a window begins, and CUPTI takes it badly
//	unresponsive_early   the same, and it says so before sampling is started

#include "core.h"
#include "gpufl_deep_internal.h"

static int (*create_context)(void **, unsigned, int), (*destroy_context)(void *), (*begin_capture)(void *, int), (*end_capture)(void *, void **);
static uint32_t (*load_module)(const void *, size_t);
static void (*fake_busy)(int);
static int64_t (*captures_broken)(void);
static atomic_bool over, closed;
static atomic_int answer;

static void pass(void) {
  gpufl_barrier_enter(GPUFL_SET_LAUNCH, gpufl_barrier_epoch(), 7, 1);
  gpufl_barrier_exit(GPUFL_SET_LAUNCH, 1);
}

static void *passes(void *unused) {
  pass();
  return unused;
}

static void *closes(void *unused) {
  atomic_store(&answer, gpufl_deep_close((int64_t)5e9));
  atomic_store(&closed, true);
  return unused;
}

static void *launches(void *many) {
  do fake_run(1, 20, "k");
  while (many != NULL && !atomic_load(&over));
  return NULL;
}

static void *loads(void *unused) {
  load_module("an image", 8);
  return unused;
}

static pthread_t begin(void *(*run)(void *), void *with) {
  pthread_t t;
  CHECK(pthread_create(&t, NULL, run, with) == 0);
  return t;
}

static void cancel(void) {
  gpufl_barrier_close(GPUFL_SETS_ALL, 1000000);
  pthread_t waiting = begin(passes, NULL);
  usleep(100000);
  CHECK(pthread_cancel(waiting) == 0);
  usleep(100000);
  gpufl_barrier_open();
  CHECK(pthread_join(waiting, NULL) == 0);
  pass();
}

static atomic_int freed;
static pthread_key_t first;
static void free_value(void *value) {
  CHECK(value == &freed);
  atomic_fetch_add(&freed, 1);
}

static void *has_value(void *unused) {
  pthread_setspecific(first, &freed);
  pass();
  CHECK(pthread_getspecific(first) == &freed);
  return unused;
}

static void keys(void) {
  pthread_key_t more;
  CHECK(pthread_key_create(&first, free_value) == 0);
  while (pthread_key_create(&more, NULL) == 0) continue;
  pthread_join(begin(has_value, NULL), NULL);
  CHECK(atomic_load(&freed) == 1);
  CHECK(!gpufl_barrier_close(GPUFL_SETS_ALL, 1000000)); // who is inside is not known
}

static void open_window(const char *fakes) {
  open_fakes(fakes);
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  *(void **)&create_context = dlsym(cuda, "cuCtxCreate_v2");
  *(void **)&destroy_context = dlsym(cuda, "cuCtxDestroy_v2");
  *(void **)&begin_capture = dlsym(cuda, "cuStreamBeginCapture_v2");
  *(void **)&end_capture = dlsym(cuda, "cuStreamEndCapture");
  *(void **)&load_module = dlsym(cuda, "fake_module_load");
  *(void **)&fake_busy = dlsym(cuda, "fake_busy");
  *(void **)&captures_broken = dlsym(cuda, "fake_captures_broken");
  gpufl_config config = {.buffer_bytes = 1 << 18, .buffers = 16, .kinds = BASIC_KINDS, .deep = 1, .cubin_bytes = 1 << 20};
  CHECK(gpufl_open(&config) == GPUFL_OK);
  start_core();
}

static void *contexts[2];
static void window(const char *fakes) {
  static const gpufl_deep_config config = {.max_rows = 1 << 16, .limit_ns = (int64_t)5e9};
  open_window(fakes);
  for (int i = 0; i < 2; i++) CHECK(create_context(&contexts[i], 0, i) == 0);
  fake_run(1, 10, "k");
  CHECK(gpufl_deep_open(&config) == GPUFL_OK);
  fake_run(1, 10, "k");
}

static void await_close(int want) {
  while (!atomic_load(&closed)) usleep(1000);
  CHECK(atomic_load(&answer) == want);
  CHECK(fake_control("pc_raced", 0) == 0);
}

static void given_up(void) {
  fake_control("hang", 1);
  begin(closes, NULL);
  usleep(300000); // it reads what is left
  pthread_t launching = begin(launches, NULL);
  usleep(100000);
  gpufl_deep_give_up();
  fake_control("hang", 0);
  await_close(GPUFL_OK);
  pthread_join(launching, NULL);
}

static void released(void) {
  fake_control("launch_ns", 2000000);
  pthread_t launching = begin(launches, contexts);
  usleep(50000);
  fake_busy(3000);
  begin(closes, NULL);
  usleep(300000);
  gpufl_deep_give_up();
  while (!atomic_load(&closed)) usleep(1000);
  CHECK(fake_control("pc_raced", 0) == 0);
  atomic_store(&over, true);
  pthread_join(launching, NULL);
  fake_run(1, 1, "k"); // nothing blocks it
}

static void loading(void) {
  fake_control("hold", 1);
  fake_busy(1500);
  begin(closes, NULL);
  usleep(100000);
  pthread_t load = begin(loads, NULL);
  usleep(1400000);
  fake_control("hold", 0);
  await_close(GPUFL_OK);
  pthread_join(load, NULL);
}

static void reading(void) {
  fake_control("data_ms", 900);
  fake_control("pc_remaining", 4);
  fake_control("launch_ns", 500000000);
  begin(closes, NULL);
  usleep(300000);
  pthread_t load = begin(loads, NULL);
  await_close(GPUFL_OK);
  pthread_join(load, NULL);
  gpufl_deep_counts counts;
  gpufl_deep_get_counts(&counts);
  CHECK(counts.barrier_timeouts == 0 && counts.longest_block_ns > 0 && counts.longest_block_ns < GPUFL_BARRIER_LIMIT_NS);
}

// Somebody else flushes for longer than a window waits: that opens later, and launches do not wait
// for it.
static void flushing(const char *fakes) {
  static const gpufl_deep_config config = {.max_rows = 1 << 16, .limit_ns = 500000000};
  open_window(fakes);
  CHECK(create_context(&contexts[0], 0, 0) == 0);
  fake_run(1, 10, "k");
  CHECK(gpufl_flush_lock(INT64_MAX));
  int64_t began = gpufl_monotonic();
  CHECK(gpufl_deep_open(&config) == GPUFL_NOT_QUIESCED);
  CHECK(gpufl_monotonic() - began < (int64_t)10e9);
  fake_run(1, 10, "k");
  gpufl_flush_end();
  CHECK(gpufl_deep_open(&config) == GPUFL_OK);
}

static void capture(void) {
  void *graph;
  CHECK(begin_capture((void *)77, 0) == 0);
  CHECK(destroy_context(contexts[1]) == 0);
  CHECK(end_capture((void *)77, &graph) == 0 && captures_broken() == 0);
}

static void unresponsive(const char *fakes, bool early) {
  static const gpufl_deep_config sampling = {.max_rows = 1 << 16, .limit_ns = (int64_t)5e9};
  open_window(fakes);
  CHECK(create_context(&contexts[0], 0, 0) == 0);
  pthread_t launching = begin(launches, contexts);
  // Often CUPTI takes it well, whatever it says.
  for (int disabling = 0; disabling <= 999; disabling += 999) {
    fake_control("refuse_disable", disabling);
    for (int i = 0; i < 2; i++) {
      const char *how = i == 0 ? "refuse_start" : "no_reasons";
      fake_control(how, GPUFL_CUPTI_ERROR_HARDWARE_BUSY);
      CHECK(gpufl_deep_open(&sampling) == GPUFL_CUPTI_ERROR_HARDWARE_BUSY && !gpufl_deep_unresponsive() && fake_control("armed", 0) == 0);
      fake_control(how, 0);
    }
  }
  fake_control("refuse_disable", 0);
  CHECK(gpufl_deep_open(&sampling) == GPUFL_OK && gpufl_deep_close((int64_t)5e9) == GPUFL_OK && gpufl_deep_end() == GPUFL_OK);
  fake_control(early ? "no_reasons" : "refuse_start", GPUFL_CUPTI_ERROR_HARDWARE_BUSY);
  fake_control("start_makes_unresponsive", 1);
  CHECK(gpufl_deep_open(&sampling) == GPUFL_UNRESPONSIVE && gpufl_deep_unresponsive());
  fake_control("refuse_start", 0);
  // Nothing more is asked of it, and calls are not delayed.
  gpufl_deep_config sass = sampling;
  sass.engine = GPUFL_DEEP_SASS;
  const char *metric = "smsp__sass_inst_executed";
  sass.names = &metric;
  sass.num_names = 1;
  CHECK(gpufl_deep_open(&sampling) == GPUFL_UNRESPONSIVE && gpufl_deep_open(&sass) == GPUFL_UNRESPONSIVE);
  uint32_t lost = 0;
  CHECK(gpufl_pause() == GPUFL_UNRESPONSIVE && gpufl_resume(&lost) == GPUFL_OK);
  CHECK(gpufl_flush() == GPUFL_OK);
  atomic_store(&over, true);
  pthread_join(launching, NULL);
  CHECK(gpufl_stop() == GPUFL_OK);
  uint32_t enabled = 0;
  int refusal = 0;
  CHECK(gpufl_start(&enabled, &refusal) == GPUFL_UNRESPONSIVE && gpufl_close() == GPUFL_OK);
  CHECK(fake_control("switched_unresponsive", 0) == 0 && fake_control("pc_raced", 0) == 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  const char *what = argv[2];
  alarm(120);
  if (strcmp(what, "cancel") == 0) cancel();
  else if (strcmp(what, "keys") == 0) keys();
  else if (strcmp(what, "flushing") == 0) flushing(argv[1]);
  else if (strcmp(what, "unresponsive") == 0) unresponsive(argv[1], false);
  else if (strcmp(what, "unresponsive_early") == 0) unresponsive(argv[1], true);
  else {
    window(argv[1]);
    if (strcmp(what, "given_up") == 0) given_up();
    else if (strcmp(what, "released") == 0) released();
    else if (strcmp(what, "loading") == 0) loading();
    else if (strcmp(what, "reading") == 0) reading();
    else if (strcmp(what, "capture") == 0) capture();
    else CHECK(!"a case");
  }
  _exit(0);
}
