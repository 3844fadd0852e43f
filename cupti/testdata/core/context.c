// SPDX-License-Identifier: Apache-2.0
//
// The scopes of gpufl_context.h: their events, and which scope a launch is in.

#include "core.h"
#include "gpufl_context.h"
#include "gpufl_scope.h"

static uint32_t correlation;

static uint64_t launch(void) {
  gpufl_scope_launch(++correlation);
  return gpufl_scope_of(correlation);
}

static uint64_t begin(const char *name, uint64_t parent) {
  return gpufl_recorder_begin(&(gpufl_context_scope){.name = name, .time_ns = 7, .parent = parent});
}

// A step of a coroutine on another thread.
static void *step(void *id) {
  uint64_t scope = *(uint64_t *)id;
  CHECK(launch() == 0 && gpufl_recorder_top() == 0);
  CHECK(gpufl_recorder_push(scope, 0) == 1);
  CHECK(launch() == scope && gpufl_recorder_top() == scope);
  CHECK(gpufl_recorder_pop(scope) == 1);
  CHECK(launch() == 0);
  CHECK(gpufl_recorder_pop(scope) == 0);
  return NULL;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  gpufl_scope_event e[8];
  CHECK(begin("early", 0) == 0); // before recording
  CHECK(gpufl_recorder_id(100) == 101);
  CHECK(gpufl_recorder_id(7) == 102);

  open_fakes(argv[1]);
  open_core(BASIC_KINDS & ~(1u << GPUFL_KIND_NVTX)); // these scopes are not NVTX's
  start_core();
  uint64_t outer = begin("outer", 0);
  CHECK(outer == 103);
  static const uint8_t trace[16] = {1, 2, 16}, span[8] = {3, 8};
  gpufl_context_scope request = {.id = 104, .parent = outer, .time_ns = 6, .name = "GET /", .trace = trace, .span = span, .sampled = 1};
  CHECK(gpufl_recorder_begin(&request) == 104);
  gpufl_recorder_end(104);
  gpufl_recorder_end(0);
  CHECK(gpufl_scope_events(e, 8) == 3);
  CHECK(e[0].what == GPUFL_SCOPE_BEGIN && e[0].id == outer && e[0].parent == 0 && e[0].time_ns == 7 && e[0].program && e[0].nested);
  CHECK(strcmp(e[0].name, "outer") == 0);
  CHECK(e[1].what == GPUFL_SCOPE_SPAN && e[1].id == 104 && e[1].parent == outer && e[1].sampled);
  CHECK(memcmp(e[1].trace, trace, 16) == 0 && memcmp(e[1].span, span, 8) == 0);
  CHECK(e[2].what == GPUFL_SCOPE_END && e[2].id == 104 && e[2].time_ns > 6);
  CHECK(gpufl_stop() == GPUFL_OK);
  take_all(1000000000);
  CHECK(begin("late", 0) == 0); // after recording
  CHECK(gpufl_close() == GPUFL_OK);

  open_core(BASIC_KINDS);
  start_core();
  uint64_t first = begin("first", 0), second = begin("second", 0);
  CHECK(gpufl_recorder_push(0, 0) == 0);
  CHECK(launch() == 0);
  CHECK(gpufl_recorder_push(second, 1) == 1);
  CHECK(launch() == second);
  // The thread is in a scope that began later.
  CHECK(gpufl_recorder_push(first, 1) == 0);
  CHECK(launch() == second);
  CHECK(gpufl_recorder_push(first, 0) == 1);
  CHECK(launch() == first);
  CHECK(gpufl_recorder_pop(second) == 0); // not on top
  CHECK(launch() == first);
  CHECK(gpufl_recorder_pop(first) == 1);
  CHECK(launch() == 0);

  pthread_t t;
  CHECK(pthread_create(&t, NULL, step, &first) == 0 && pthread_join(t, NULL) == 0);

  // The innermost scope of the thread precedes a parent that began earlier.
  gpufl_scope_events(e, 8);
  CHECK(gpufl_recorder_push(second, 0) == 1);
  uint64_t inner = begin("inner", first), innermost = begin("innermost", inner);
  CHECK(gpufl_scope_events(e, 8) == 2 && e[0].parent == second && e[1].parent == inner);
  gpufl_nvtx_push(NULL, "range", 0, 0);
  CHECK(gpufl_scope_events(e, 8) == 1 && e[0].id > innermost && e[0].parent == second && !e[0].program);
  CHECK(begin("in range", second) != 0);
  CHECK(gpufl_scope_events(e + 1, 7) == 1 && e[1].parent == e[0].id);

  pid_t child = fork();
  if (child == 0) {
    CHECK(gpufl_recorder_id(0) == 0 && gpufl_recorder_begin(&request) == 0 && gpufl_recorder_top() == 0);
    CHECK(gpufl_recorder_push(first, 0) == 0 && gpufl_recorder_pop(first) == 0);
    gpufl_recorder_end(first);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  return 0;
}
