// SPDX-License-Identifier: Apache-2.0
//
// Which heap memory does a window of SASS metrics leave, and which calls allocated it? Without our
// core:
//
//	test/gpu/build --programs bin
//	bin/leaks /usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13 KERNELS WINDOWS HOW
//
// Each of WINDOWS windows launches KERNELS kernels. The program reports memory that was allocated
// in the last two thirds of them and remains after three more windows. It groups it by the
// allocating calls, with values per window. HOW is
//
//	n     as our core does it
//	u     the counts are not read
//	f     nothing is freed during the read: verifies that this program sees the leak

#include <execinfo.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "counts.h"

enum { PLACES = 1 << 22, CHAINS = 1 << 14, FRAMES = 16, TOLD = 24 };

typedef struct {
  void *frames[FRAMES];
  int n;
  size_t bytes, times;
} chain;
typedef struct {
  void *at;
  size_t size;
  uint32_t chain;
} place;

static chain chains[CHAINS];
static place places[PLACES];
static size_t taken; // of them, ever: what is freed leaves a mark
static pthread_spinlock_t lock;
static atomic_bool watching, known; // known is set as long as what is freed has to be looked up
static __thread bool inside;
static bool kept; // what is freed

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static uint64_t mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdu;
  return x ^ x >> 33;
}

static uint32_t chain_of(void *const *frames, int n) {
  uint64_t h = 0;
  for (int i = 0; i < n; i++) h = mix(h ^ (uintptr_t)frames[i]);
  uint32_t i = h % CHAINS;
  for (int tried = 0; tried < CHAINS; tried++, i = (i + 1) % CHAINS) {
    if (chains[i].n == 0) {
      memcpy(chains[i].frames, frames, (size_t)n * sizeof *frames);
      chains[i].n = n;
      return i;
    }
    if (chains[i].n == n && memcmp(chains[i].frames, frames, (size_t)n * sizeof *frames) == 0) return i;
  }
  return i; // too many: reported with another
}

// allocated records a piece and its caller.
__attribute__((noinline)) static void *allocated(void *at, size_t size) {
  if (at == NULL || inside || !atomic_load(&watching)) return at;
  inside = true;
  void *frames[FRAMES];
  int n = backtrace(frames, FRAMES);
  pthread_spin_lock(&lock);
  uint32_t of = chain_of(frames, n);
  uint64_t i = mix((uintptr_t)at) % PLACES;
  while (places[i].at != NULL && places[i].at != (void *)-1) i = (i + 1) % PLACES;
  if (places[i].at == NULL) CHECK(++taken < PLACES / 2);
  places[i] = (place){at, size, of};
  chains[of].bytes += size, chains[of].times++;
  pthread_spin_unlock(&lock);
  inside = false;
  return at;
}

static void freed(void *at) {
  if (at == NULL || inside || !atomic_load(&known)) return;
  pthread_spin_lock(&lock);
  for (uint64_t i = mix((uintptr_t)at) % PLACES; places[i].at != NULL; i = (i + 1) % PLACES) {
    if (places[i].at != at) continue;
    places[i].at = (void *)-1;
    chains[places[i].chain].bytes -= places[i].size, chains[places[i].chain].times--;
    break;
  }
  pthread_spin_unlock(&lock);
}

void *malloc(size_t size) { return allocated(__libc_malloc(size), size); }
void *calloc(size_t n, size_t size) { return allocated(__libc_calloc(n, size), n * size); }
void *memalign(size_t to, size_t size) { return allocated(__libc_memalign(to, size), size); }
void *aligned_alloc(size_t to, size_t size) { return allocated(__libc_memalign(to, size), size); }
int posix_memalign(void **at, size_t to, size_t size) {
  *at = allocated(__libc_memalign(to, size), size);
  return *at == NULL ? 12 : 0; // ENOMEM
}
void free(void *at) {
  if (kept) return;
  freed(at);
  __libc_free(at);
}
void *realloc(void *at, size_t size) {
  freed(at);
  return allocated(__libc_realloc(at, size), size);
}

static void on_record(uint32_t kind, const char *record) { (void)kind, (void)record; }
static void on_api(void *user, uint32_t domain, uint32_t cbid, const void *data) { (void)user, (void)domain, (void)cbid, (void)data; }

static int by_bytes(const void *a, const void *b) {
  const chain *x = a, *y = b;
  return x->bytes < y->bytes ? 1 : -(x->bytes > y->bytes);
}

static size_t resident(void) {
  unsigned long pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  CHECK(f != NULL && fscanf(f, "%*u %lu", &pages) == 1);
  fclose(f);
  return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static int (*device_memory)(size_t *, size_t *);

static void tell(const char *when, int windows) {
  inside = true; // printf's buffer is ours
  struct mallinfo2 m = mallinfo2();
  size_t free_bytes = 0, all = 0;
  CHECK(device_memory(&free_bytes, &all) == 0);
  printf("%s %d windows: %.1f KiB allocated, %.1f KiB mapped, %.1f KiB resident, %.1f MiB of the device\n", when, windows, (double)m.uordblks / 1024,
         (double)m.hblkhd / 1024, (double)resident() / 1024, (double)(all - free_bytes) / (1 << 20));
  inside = false;
}

int main(int argc, char **argv) {
  CHECK(argc == 5);
  char how = *argv[4];
  CHECK(strchr("nuf", how) != NULL);
  int kernels = atoi(argv[2]), windows = atoi(argv[3]);
  CHECK(kernels > 0 && windows >= 6);
  pthread_spin_init(&lock, PTHREAD_PROCESS_PRIVATE);
  mallopt(M_ARENA_MAX, 1); // one arena, so that heap statistics include everything
  void *first[4];
  backtrace(first, 4); // it allocates the first time
  load_bare(argv[1]);
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *subscriber, *module, **functions = calloc((size_t)kernels, sizeof *functions);
  *(void **)&device_memory = dlsym(cuda, "cuMemGetInfo_v2");
  CHECK(device_memory != NULL && functions != NULL && cu_init(0) == 0 && subscribe(&subscriber, on_api, NULL) == 0);
  CHECK(register_callbacks(on_request, on_complete) == 0);
  char *ptx = calloc(1, 512 * ((size_t)kernels + 1));
  CHECK(ptx != NULL);
  char *to = ptx + sprintf(ptx, PTX);
  for (int i = 0; i < kernels; i++) to += sprintf(to, ADDING_KERNEL("adds%d"), i);
  CHECK(cu_retain(&context, 0) == 0 && cu_current(context) == 0 && cu_load(&module, ptx) == 0);
  for (int i = 0; i < kernels; i++) {
    char name[16];
    sprintf(name, "adds%d", i);
    CHECK(cu_function(&functions[i], module, name) == 0);
  }
  int (*allocate)(uint64_t *, size_t) = NULL;
  *(void **)&allocate = dlsym(cuda, "cuMemAlloc_v2");
  uint64_t memory;
  CHECK(allocate != NULL && allocate(&memory, 4096) == 0);
  void *values[] = {&memory};
  int from = windows / 3;
  for (int w = 0; w < windows + 3; w++) {
    if (w == from || w == windows) {
      atomic_store(&known, true);
      atomic_store(&watching, w == from);
      tell(w == from ? "after" : "and after", w);
    }
    // Where records were never on, CUPTI patches nothing.
    CHECK(activity_enable(CONCURRENT_KERNEL) == 0);
    CHECK(cu_launch(functions[0], 1, 1, 1, 32, 1, 1, 0, NULL, values, NULL) == 0 && cu_synchronize() == 0);
    CHECK(activity_disable(CONCURRENT_KERNEL) == 0 && flush_all(0) == 0 && begin_counts() == 0);
    for (int i = 0; i < 2 * kernels; i++) CHECK(cu_launch(functions[i % kernels], 1, 1, 1, 32, 1, 1, 0, NULL, values, NULL) == 0);
    CHECK(cu_synchronize() == 0);
    kept = how == 'f';
    CHECK((how == 'u' ? leave_counts() : end_counts()) == 0);
    kept = false;
  }
  atomic_store(&known, false);
  inside = true;
  int of = windows - from;
  size_t bytes = 0, times = 0;
  for (int i = 0; i < CHAINS; i++) bytes += chains[i].bytes, times += chains[i].times;
  printf("%lu instructions patched in all; of a window %.1f KiB in %.1f pieces are left\n", counted, (double)bytes / of / 1024, (double)times / of);
  Dl_info self = {0};
  dladdr((void *)main, &self);
  qsort(chains, CHAINS, sizeof *chains, by_bytes);
  for (int i = 0; i < TOLD && chains[i].bytes > 0; i++) {
    printf("%.1f KiB in %.1f pieces:", (double)chains[i].bytes / of / 1024, (double)chains[i].times / of);
    for (int k = 0; k < chains[i].n; k++) {
      Dl_info file = {0};
      if (dladdr(chains[i].frames[k], &file) == 0 || file.dli_fbase == self.dli_fbase) continue;
      const char *base = strrchr(file.dli_fname, '/');
      printf(" %s+%lx%s%s", base != NULL ? base + 1 : file.dli_fname, (unsigned long)((uintptr_t)chains[i].frames[k] - (uintptr_t)file.dli_fbase),
             file.dli_sname != NULL ? "=" : "", file.dli_sname != NULL ? file.dli_sname : "");
    }
    printf("\n");
  }
  fflush(stdout);
  _exit(0);
}
