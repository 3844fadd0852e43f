// SPDX-License-Identifier: Apache-2.0
//
// Of which launches does CUPTI make records, and of which does it tell, after these were switched off and on again?
//
//	test/gpu/build --programs bin
//	bin/switches /usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13 WHAT GATE THREADS PHASES
//
// Threads launch all the time. In each phase something is switched off and on again, and then each thread launches 100 kernels of its
// own, of which all should be seen. WHAT is
//
//	k     records of kernels                  t     callbacks of launches
//	K     the same, and callbacks stay on     b     both
//	f     records, with a flush after each
//	o     callbacks, on once and for good
//	T     callbacks, and records stay on
//
// and GATE who launches meanwhile: 0 everybody, 1 nobody, 2 nobody and the device has nothing to do, 3 nobody while it is
// switched off, 4 the same, of t and T, but who comes waits in CUPTI's callback, as our core has it, and its end is not told. It prints
// for each thread the first phase in which something had not come by its end, -1 for none, and what had not come by
// the end of all. With callbacks also how many calls a thread seems to be in when it is in none: their ends were not told.

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#include "bare.h"

enum { MOST = 16, EACH = 100 };
static void *others_kernel, *own_kernel[MOST], *context, *subscriber;
// Whoever switches goes first: there are always some who launch.
static pthread_rwlock_t gate = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static bool gated;
static atomic_int asked, done;
static atomic_bool over;
static atomic_ulong recorded[MOST], told[MOST], others;
static int inside[MOST]; // the threads' own
static __thread int self = -1;
static __thread bool checked;
// With gate 4: who is in a call whose end will be told, whether others wait, and how often ends were forgotten.
static bool by_callback;
static atomic_bool closed, in_call[MOST];
static atomic_uint life;

// wait_in_callback returns whether the end of the call will be told.
static bool wait_in_callback(void) {
  unsigned then = atomic_load(&life);
  for (;;) {
    atomic_store(&in_call[self], true);
    if (!atomic_load(&closed)) return true;
    atomic_store(&in_call[self], false);
    while (atomic_load(&closed) && atomic_load(&life) == then) usleep(20);
    if (atomic_load(&life) != then) return false;
  }
}

static void close_callbacks(int threads) {
  atomic_store(&closed, true);
  for (int i = 0; i < threads; i++) {
    int waited = 0;
    for (; atomic_load(&in_call[i]) && waited < 250000; waited++) usleep(20);
    CHECK(waited < 250000); // or the end of a call was not told
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
  }
  return NULL;
}

int main(int argc, char **argv) {
  CHECK(argc == 6);
  char what = *argv[2];
  int level = atoi(argv[3]), threads = atoi(argv[4]), phases = atoi(argv[5]);
  CHECK(strchr("kKtbfoT", what) != NULL && threads > 0 && threads <= MOST && (level < 4 || strchr("tT", what) != NULL));
  by_callback = level == 4;
  gated = level > 0 && !by_callback;
  load_bare(argv[1]);
  CHECK(cu_init(0) == 0 && subscribe(&subscriber, on_api, NULL) == 0 && register_callbacks(on_request, on_complete) == 0);
  set_byte(GPUFL_CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER, 0);
  bool records = what != 't' && what != 'o', callbacks = strchr("tbKoT", what) != NULL, switched = strchr("tbT", what) != NULL;
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
      if (by_callback && !on) close_callbacks(threads);
      if (records && what != 'T') CHECK((on ? activity_enable(CONCURRENT_KERNEL) : activity_disable(CONCURRENT_KERNEL)) == 0);
      if (switched) tell_of_launches(subscriber, (uint32_t)on);
      if (by_callback && !on) forget_callbacks();
      if (what == 'o' && on && phase == 0) tell_of_launches(subscriber, 1);
      if (what == 'f') flush_all(0);
      if (alone) pthread_rwlock_unlock(&gate);
      usleep(3000);
    }
    atomic_store(&done, 0);
    atomic_fetch_add(&asked, 1);
    while (atomic_load(&done) < threads) usleep(200);
    if (gated) pthread_rwlock_wrlock(&gate);
    CHECK(cu_synchronize() == 0);
    if (gated) pthread_rwlock_unlock(&gate);
    if (records) flush_all(1);
    unsigned long want = (unsigned long)(phase + 1) * EACH;
    for (int i = 0; i < threads; i++) {
      if (first[i] < 0 && ((records && atomic_load(&recorded[i]) < want) || (callbacks && atomic_load(&told[i]) < want))) first[i] = phase;
    }
  }
  atomic_store(&over, true);
  for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
  CHECK(cu_synchronize() == 0);
  for (int i = 0; i < 3 && records; i++) { // what CUPTI's own thread still works at comes with the next
    flush_all(1);
    usleep(100000);
  }
  printf("%c gate %d, %d threads, %d phases, %lu other launches:", what, level, threads, phases, atomic_load(&others));
  unsigned long want = (unsigned long)phases * EACH;
  for (int i = 0; i < threads; i++) {
    printf(" [%d] first %d, without record %lu, not told %lu of %lu, inside %d;", i, first[i], records ? want - atomic_load(&recorded[i]) : 0,
           callbacks ? want - atomic_load(&told[i]) : 0, want, inside[i]);
  }
  printf("\n");
  fflush(stdout);
  _exit(0);
}
