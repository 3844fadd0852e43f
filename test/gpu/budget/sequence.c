// SPDX-License-Identifier: Apache-2.0
//
// What a launch costs after a sequence of calls of CUPTI:
//
//	gcc -std=gnu11 -O2 -Icupti -o sequence test/gpu/budget/sequence.c -ldl
//	taskset -c 3 ./sequence /usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13 'SCPYBKI.F?k.K.F?k.T.' 30000
//
// Each letter is a call, its small one undoes it:
//
//	I     the context and the kernel are made        S     cuptiSubscribe
//	C     our clock                                  B     buffers
//	P Y   one buffer for all threads, zeroed         K k   records of kernels, e d those of the context
//	X x   of kernels, one at a time                  M m   of copies
//	T t   callbacks of launches                      F     flush
//	Z     cuptiFinalize                              .     launches empty kernels, five times so many
//	?     how many records there were, their mean duration, and how many had no time
//
// A dot prints the least and the mean of five, in ns a launch; a call that fails its letter and CUPTI's result.

#include <time.h>

#include "bare.h"

enum { ROUNDS = 5 };
static void *function, *subscriber, *context;
static int launches;
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
static void on_kernel(const char *record) {
  uint64_t start, end;
  memcpy(&start, record + 16, sizeof start);
  memcpy(&end, record + 24, sizeof end);
  records++;
  if (start == 0) without++;
  else duration += (double)(end - start);
}

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
  launches = atoi(argv[3]);
  CHECK(launches > 0);
  load_bare(argv[1]);
  CHECK(cu_init(0) == 0);
  printf("%s:", argv[2]);
  for (const char *p = argv[2]; *p != 0; p++) {
    int result = 0;
    void *module;
    switch (*p) {
      case 'I': CHECK(cu_retain(&context, 0) == 0 && cu_current(context) == 0 && cu_load(&module, PTX EMPTY_KERNEL("nothing")) == 0 && cu_function(&function, module, "nothing") == 0); break;
      case 'S': result = subscribe(&subscriber, on_api, NULL); break;
      case 's': result = unsubscribe(subscriber); break;
      case 'C': result = register_clock(on_clock); break;
      case 'B': result = register_callbacks(on_request, on_complete); break;
      case 'P': result = set_byte(PER_THREAD_BUFFERS, 0); break;
      case 'Y': result = set_byte(ZEROED_BUFFERS, 1), zeroed_buffers = 1; break;
      case 'K': result = activity_enable(CONCURRENT_KERNEL); break;
      case 'k': result = activity_disable(CONCURRENT_KERNEL); break;
      case 'e': result = enable_context(context, CONCURRENT_KERNEL); break;
      case 'd': result = disable_context(context, CONCURRENT_KERNEL); break;
      case 'X': result = activity_enable(KERNEL); break;
      case 'x': result = activity_disable(KERNEL); break;
      case 'M': result = activity_enable(MEMCPY); break;
      case 'm': result = activity_disable(MEMCPY); break;
      case 'T': tell_of_launches(subscriber, 1); break;
      case 't': tell_of_launches(subscriber, 0); break;
      case 'F': result = flush_all(0); break;
      case 'Z': result = finalize(); break;
      case '.': CHECK(function != NULL); launch(launches); break;
      case '?':
        printf(" {%lu records, %.0f ns, %lu without}", records, records > without ? duration / (double)(records - without) : 0, without);
        records = without = 0;
        duration = 0;
        break;
      default: CHECK(!"a letter");
    }
    if (result != 0) printf(" %c=%d", *p, result);
  }
  printf(" told of %lu\n", told);
  return 0;
}
