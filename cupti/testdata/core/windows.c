// SPDX-License-Identifier: Apache-2.0
//
// Windows on a real GPU: what PC sampling and SASS metrics yield of a kernel that is known, what
// they cost, and whether it adds up. It needs gcc and a driver only:
//
//	gcc -std=c11 -O2 -D_GNU_SOURCE -Icupti -o windows cupti/testdata/core/windows.c cupti/*.c -ldl -lpthread
//	./windows /usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13 FOLDER [SECONDS [WINDOWS [QUEUE [PERIOD]]]]
//
// WINDOWS has a letter for each window: p PC sampling, P the same with kernels one by one, s SASS
// metrics, l the same with lazy patching. The default is each of them and the first again. QUEUE is
// the number of launches in flight, PERIOD that of PC sampling as a power of two. It leaves
// FOLDER/pc.txt and FOLDER/sass.txt, which the fake CUPTI can replay (fakedeep.h). It prints
// measurements, and ends with 0 and "PASS" if all is right.

#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>

#include "core.h"
#include "gpufl_deep.h"

enum { BLOCKS = 264, THREADS = 256, STEPS = 2000, BYTES = 16 << 20 };

static int (*cu_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*cu_synchronize)(void);
static int (*cu_set_current)(void *);
static int (*cu_memory)(size_t *, size_t *); // NULL if the driver does not say
static void *context, *function;
static uint64_t memory;
static double seconds = 2;
static int queue = 1;
static int failures;

// Each thread reads every 32nd word of 16 MiB, STEPS times: 32 sectors where 4 would do.
static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry strided(.param .u64 p, .param .u32 n) {\n"
    ".reg .pred %q<1>; .reg .b32 %r<8>; .reg .b64 %d<4>; .reg .f32 %f<2>;\n"
    "ld.param.u64 %d0, [p]; cvta.to.global.u64 %d0, %d0; ld.param.u32 %r0, [n];\n"
    "mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 256, %r1;\n"
    "mov.u32 %r4, 0; mov.f32 %f0, 0f00000000;\n"
    "again: shl.b32 %r5, %r3, 5; shl.b32 %r6, %r4, 13; add.u32 %r5, %r5, %r6; and.b32 %r5, %r5, 4194303;\n"
    "mul.wide.u32 %d1, %r5, 4; add.s64 %d2, %d0, %d1; ld.global.f32 %f1, [%d2]; add.f32 %f0, %f0, %f1;\n"
    "add.u32 %r4, %r4, 1; setp.lt.u32 %q0, %r4, %r0; @%q0 bra again;\n"
    "mul.wide.u32 %d3, %r3, 4; add.s64 %d3, %d0, %d3; st.global.f32 [%d3], %f0; ret;\n}\n";

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void wrong(const char *what) {
  printf("  FAIL: %s\n", what);
  failures++;
}

static void launch(void) {
  unsigned steps = STEPS;
  void *parameters[] = {&memory, &steps};
  CHECK(cu_launch(function, BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, parameters, NULL) == 0);
}

// ---- who hangs where ----

static atomic_int progress;

static void on_dump(int n) {
  (void)n;
  void *frames[64];
  char head[64];
  int k = snprintf(head, sizeof head, "-- thread %ld\n", (long)syscall(SYS_gettid));
  if (write(2, head, (size_t)k) < 0) _exit(4);
  backtrace_symbols_fd(frames, backtrace(frames, 64), 2);
}

static void *watchdog(void *unused) {
  (void)unused;
  int last = -1, same = 0;
  for (;;) {
    usleep(1000000);
    int p = atomic_load(&progress);
    same = p == last ? same + 1 : 0;
    last = p;
    if (same < 60) continue;
    printf("HANGS in %s\n", gpufl_deep_call());
    DIR *d = opendir("/proc/self/task");
    struct dirent *e;
    while ((e = readdir(d)) != NULL) {
      if (e->d_name[0] == '.') continue;
      char path[300], name[64] = "";
      snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
      FILE *f = fopen(path, "r");
      if (f != NULL && fgets(name, sizeof name, f) != NULL) printf("thread %s %s", e->d_name, name);
      if (f != NULL) fclose(f);
      syscall(SYS_tgkill, getpid(), atoi(e->d_name), SIGUSR2);
      usleep(100000);
    }
    closedir(d);
    _exit(3);
  }
}

static atomic_bool over;
static atomic_ulong launches;
static void *work(void *unused) {
  (void)unused;
  CHECK(cu_set_current(context) == 0);
  while (!atomic_load(&over)) {
    for (int i = 0; i < queue; i++) {
      launch();
      atomic_fetch_add(&launches, 1);
    }
    CHECK(cu_synchronize() == 0);
  }
  return NULL;
}

// What CUPTI's functions took in a window.
static struct {
  const char *function;
  int n, refused;
  int64_t longest;
} calls[64];

static void traced(const char *function, int result, int64_t ns) {
  int i = 0;
  while (i < 63 && calls[i].function != NULL && strcmp(calls[i].function, function) != 0) i++;
  calls[i].function = function;
  calls[i].n++;
  if (result != 0) calls[i].refused = result;
  if (ns > calls[i].longest) calls[i].longest = ns;
}

static void print_calls(void) {
  printf("  longest, ms:");
  for (int i = 0; i < 64 && calls[i].function != NULL; i++) {
    printf(" %s %.2f (of %d", calls[i].function, (double)calls[i].longest / 1e6, calls[i].n);
    printf(calls[i].refused != 0 ? ", refused %d)" : ")", calls[i].refused);
  }
  printf("\n");
  memset(calls, 0, sizeof calls);
}

// A window's rows, summed.
enum { MAX_ROWS = 1 << 18 };
static gpufl_deep_row rows[MAX_ROWS];
static int num_rows;

static void read_rows(void) {
  gpufl_deep_row some[512];
  int n;
  while ((n = gpufl_deep_read(some, 512)) > 0) {
    for (int i = 0; i < n; i++) {
      int k = 0;
      while (k < num_rows && !(rows[k].crc == some[i].crc && rows[k].pc == some[i].pc && rows[k].device == some[i].device && rows[k].function == some[i].function &&
                               rows[k].what == some[i].what && rows[k].correlation == some[i].correlation)) {
        k++;
      }
      if (k == num_rows) {
        CHECK(num_rows < MAX_ROWS);
        rows[num_rows++] = some[i];
      } else {
        rows[k].value += some[i].value;
      }
    }
  }
}

static void record(const char *folder, const char *file, const char *engine, const gpufl_deep_counts *c) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, file);
  FILE *f = fopen(path, "w");
  CHECK(f != NULL);
  fprintf(f, "gpuflight-deep 1 %s\n", engine);
  for (uint32_t i = 0; gpufl_deep_name(i) != NULL; i++) fprintf(f, "name %u %s\n", i, gpufl_deep_name(i));
  for (uint32_t i = 0; gpufl_deep_function(i) != NULL; i++) fprintf(f, "function %u %s\n", i, gpufl_deep_function(i));
  for (int i = 0; i < num_rows; i++) {
    fprintf(f, "row %d %llu %llu %u %u %u %llu\n", rows[i].device, (unsigned long long)rows[i].crc, (unsigned long long)rows[i].pc, rows[i].function, rows[i].what,
            rows[i].correlation, (unsigned long long)rows[i].value);
  }
  fprintf(f, "totals %llu %llu %llu\n", (unsigned long long)c->samples, (unsigned long long)c->dropped_samples, (unsigned long long)c->non_user_samples);
  CHECK(fclose(f) == 0);
}

static void images(void) {
  gpufl_cubin all[64];
  int n = gpufl_cubins(all, 64), found = 0;
  for (int i = 0; i < n && i < 64; i++) {
    for (int k = 0; k < num_rows; k++) {
      if (all[i].has_crc && (uint32_t)all[i].crc == (uint32_t)rows[k].crc) {
        found++;
        break;
      }
    }
  }
  printf("  images %d, of which rows name %d\n", n, found);
  if (n > 0 && found == 0) wrong("no row names an image that was seen");
}

static void window(const gpufl_deep_config *config, const char *folder, const char *file, const char *engine) {
  num_rows = 0;
  uint64_t before = atomic_load(&launches);
  double begin = now();
  int result = gpufl_deep_open(config);
  double opened = now();
  printf("%s: open answers %d after %.1f ms %s %s\n", engine, result, (opened - begin) * 1e3, result > 0 ? gpufl_result_string(result) : gpufl_deep_obstacle(),
         result > 0 ? gpufl_deep_last_failed_call() : "");
  if (result != GPUFL_OK) {
    wrong("the window does not open");
    print_calls();
    return;
  }
  double slowest = 0;
  uint64_t first = atomic_load(&launches);
  while (now() - opened < seconds || (atomic_load(&launches) < first + 2 && now() - opened < 60)) {
    usleep(50000);
    double from = now();
    int more = 0;
    int collected = gpufl_deep_collect(&more);
    atomic_fetch_add(&progress, 1);
    if (now() - from > slowest) slowest = now() - from;
    if (collected != GPUFL_OK) wrong("collect");
    read_rows();
  }
  double closing = now();
  result = gpufl_deep_close((int64_t)5e9);
  double closed = now();
  read_rows();
  gpufl_deep_counts c;
  gpufl_deep_get_counts(&c);
  uint64_t sum = 0, not_issued = 0, threads = 0, instructions = 0, sectors = 0, ideal = 0, largest = 0;
  for (int i = 0; i < num_rows; i++) {
    const char *name = gpufl_deep_name(rows[i].what);
    CHECK(name != NULL && gpufl_deep_function(rows[i].function) != NULL);
    sum += rows[i].value;
    if (strstr(name, "_not_issued") != NULL) not_issued += rows[i].value;
    if (strcmp(name, "smsp__sass_inst_executed") == 0) instructions += rows[i].value;
    if (strcmp(name, "smsp__sass_thread_inst_executed") == 0) threads += rows[i].value;
    if (strcmp(name, "smsp__sass_sectors_mem_global") == 0) sectors += rows[i].value;
    if (strcmp(name, "smsp__sass_sectors_mem_global_ideal") == 0) ideal += rows[i].value;
    if (rows[i].pc > largest) largest = rows[i].pc;
  }
  printf("  close answers %d after %.1f ms; slowest collect %.1f ms; launches in the window %llu\n", result, (closed - closing) * 1e3, slowest * 1e3,
         (unsigned long long)(atomic_load(&launches) - before));
  printf("  rows %d, largest pc %#llx, sum %llu (%llu of them not issued); samples %llu, dropped %llu, of no user's kernel %llu, buffer full %llu\n", num_rows,
         (unsigned long long)largest, (unsigned long long)sum, (unsigned long long)not_issued, (unsigned long long)c.samples, (unsigned long long)c.dropped_samples,
         (unsigned long long)c.non_user_samples, (unsigned long long)c.hardware_full);
  printf("  instructions %llu, by threads %llu, sectors %llu, ideal %llu; dropped records %llu\n", (unsigned long long)instructions, (unsigned long long)threads,
         (unsigned long long)sectors, (unsigned long long)ideal, (unsigned long long)c.dropped_records);
  printf("  lost rows %llu, names %llu, broken %llu; contexts %llu, skipped %llu, lost %llu; deferred %llu, not idle %llu, gated %llu, gate timeouts %llu; names kept %llu\n",
         (unsigned long long)c.lost_rows, (unsigned long long)c.lost_names, (unsigned long long)c.broken, (unsigned long long)c.contexts, (unsigned long long)c.skipped_contexts,
         (unsigned long long)c.lost_contexts, (unsigned long long)c.deferred, (unsigned long long)c.not_idle, (unsigned long long)c.blocked_calls, (unsigned long long)c.barrier_timeouts, (unsigned long long)c.names_kept);
  for (uint32_t i = 0; gpufl_deep_name(i) != NULL; i++) {
    uint64_t n = 0;
    for (int k = 0; k < num_rows; k++) n += rows[k].what == i ? rows[k].value : 0;
    printf("  %-64s %llu%s\n", gpufl_deep_name(i), (unsigned long long)n, gpufl_deep_missing(i) ? " (not known here)" : "");
  }
  print_calls();
  size_t unused = 0, all = 0;
  if (cu_memory != NULL && cu_set_current(context) == 0 && cu_memory(&unused, &all) == 0) printf("  memory of the device in use: %.1f MiB\n", (double)(all - unused) / (1 << 20));
  if (result != GPUFL_OK) wrong("close");
  if (num_rows == 0) wrong("no rows");
  if (c.broken > 0 || c.lost_rows > 0 || c.lost_contexts > 0) wrong("something is broken or lost");
  if (config->engine == GPUFL_DEEP_PC && sum - not_issued + c.dropped_samples + c.non_user_samples > c.samples) wrong("more samples in rows than in all");
  // All of this kernel's warps are whole.
  if (config->engine == GPUFL_DEEP_SASS && threads != 32 * instructions) wrong("threads are not 32 times the instructions");
  images();
  record(folder, file, engine, &c);
  CHECK(gpufl_deep_end() == GPUFL_OK);
}

static void *discard(void *unused) {
  (void)unused;
  take_all(100000000);
  while (gpufl_wait(100000000) != GPUFL_END) take_all(0);
  return NULL;
}

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  if (argc >= 4) seconds = atof(argv[3]);
  const char *sequence = argc >= 5 ? argv[4] : "pPsp";
  if (argc >= 6) queue = atoi(argv[5]);
  uint32_t period = argc >= 7 ? (uint32_t)atoi(argv[6]) : 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  void *warm[4];
  backtrace(warm, 4);
  signal(SIGUSR2, on_dump);
  pthread_t dog;
  CHECK(pthread_create(&dog, NULL, watchdog, NULL) == 0);
  char words[GPUFL_ERROR_SIZE];
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(cuda != NULL && gpufl_driver_load(words) == GPUFL_OK);
  CHECK(gpufl_load(argv[1], 0, words) == GPUFL_OK);
  int (*retain)(void **, int), (*load)(void **, const void *), (*get)(void **, void *, const char *), (*allocate)(uint64_t *, size_t);
  *(void **)&retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
  *(void **)&load = dlsym(cuda, "cuModuleLoadData");
  *(void **)&get = dlsym(cuda, "cuModuleGetFunction");
  *(void **)&allocate = dlsym(cuda, "cuMemAlloc_v2");
  *(void **)&cu_set_current = dlsym(cuda, "cuCtxSetCurrent");
  *(void **)&cu_launch = dlsym(cuda, "cuLaunchKernel");
  *(void **)&cu_memory = dlsym(cuda, "cuMemGetInfo_v2");
  *(void **)&cu_synchronize = dlsym(cuda, "cuCtxSynchronize");
  CHECK(gpufl_driver_init() == 0);
  printf("CUPTI %u, driver %d; PC sampling %d, SASS metrics %d\n", gpufl_version(), gpufl_driver_version(), gpufl_deep_supported(GPUFL_DEEP_PC), gpufl_deep_supported(GPUFL_DEEP_SASS));
  gpufl_config open = {.buffer_bytes = 8 << 20, .buffers = 32, .kinds = BASIC_KINDS, .deep = 1, .cubin_bytes = 256 << 20};
  CHECK(gpufl_open(&open) == GPUFL_OK);
  void *module;
  CHECK(retain(&context, 0) == 0 && cu_set_current(context) == 0);
  // Before the module: of those that were loaded before kernels were recorded PC sampling knows
  // nothing after a pause.
  start_core();
  CHECK(load(&module, ptx) == 0 && get(&function, module, "strided") == 0 && allocate(&memory, BYTES) == 0);
  pthread_t worker, taker;
  CHECK(pthread_create(&taker, NULL, discard, NULL) == 0 && pthread_create(&worker, NULL, work, NULL) == 0);
  usleep(100000);

  gpufl_deep_traces = traced;
  static const char *const metrics[] = {"smsp__sass_inst_executed", "smsp__sass_thread_inst_executed", "smsp__sass_sectors_mem_global", "smsp__sass_sectors_mem_global_ideal"};
  for (const char *next = sequence; *next != 0; next++) {
    gpufl_deep_config pc = {.engine = GPUFL_DEEP_PC, .period = period, .max_rows = MAX_ROWS, .limit_ns = (int64_t)5e9};
    gpufl_deep_config sass = {.engine = GPUFL_DEEP_SASS, .names = metrics, .num_names = 4, .max_rows = MAX_ROWS, .limit_ns = (int64_t)5e9};
    if (*next == 'p') {
      window(&pc, argv[2], "pc.txt", "pc_sampling");
    } else if (*next == 'P') {
      pc.serialize = 1;
      window(&pc, argv[2], "pc-serialized.txt", "pc_sampling");
    } else {
      CHECK(*next == 's');
      CHECK(gpufl_deep_open(&sass) == GPUFL_ACTIVITY);
      CHECK(gpufl_pause() == GPUFL_OK);
      window(&sass, argv[2], "sass.txt", "sass_metrics");
      uint32_t lost = 0;
      CHECK(gpufl_resume(&lost) == GPUFL_OK && lost == 0);
    }
    usleep(100000);
  }

  atomic_store(&over, true);
  pthread_join(worker, NULL);
  CHECK(gpufl_stop() == GPUFL_OK);
  pthread_join(taker, NULL);
  CHECK(gpufl_finalize() == GPUFL_OK);
  CHECK(gpufl_close() == GPUFL_OK);
  printf(failures == 0 ? "PASS\n" : "FAIL: %d\n", failures);
  return failures != 0;
}
