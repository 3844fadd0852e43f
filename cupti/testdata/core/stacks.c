// SPDX-License-Identifier: Apache-2.0
//
// Stacks of threads of an interpreter that this program pretends to be. Its frames have no lock but
// the GIL, so the thread sanitizer reports a read of a frame that can change. Each reference that is
// returned must be released, and nothing may be called without the GIL or after the end.

#include "core.h"
#include "gpufl_stacks.h"

enum { THREADS = 4, LAUNCHES = 3000, DEPTH = 3, MAX_CORRELATION = THREADS * (LAUNCHES + 2) + 1 };

typedef enum { MODULE, CALLABLE, TRUE_VALUE, NONE, DICT, KEY, FRAME, CODE, TEXT } what;
typedef struct {
  what what;
  int thread, depth;
  const char *text;
} object;

static struct {
  pthread_t ident;
  bool known;
  long line; // of the innermost frame
} threads[THREADS];
static object keys[THREADS], frames[THREADS][DEPTH], codes[THREADS][DEPTH];
static object module = {.what = MODULE}, truth = {.what = TRUE_VALUE}, none = {.what = NONE}, dict = {.what = DICT};
static object callables[16];
static _Atomic long references;
static atomic_bool ended;
static object *(*ends)(object *, object *);
static bool collects = true; // changes with the GIL only

static pthread_mutex_t gil = PTHREAD_MUTEX_INITIALIZER;
static __thread bool has_gil;

static void take_gil(void) {
  pthread_mutex_lock(&gil);
  has_gil = true;
}
static void drop_gil(void) {
  CHECK(has_gil);
  has_gil = false;
  pthread_mutex_unlock(&gil);
}
static object *new_reference(object *o) {
  CHECK(has_gil && !atomic_load(&ended));
  atomic_fetch_add(&references, 1);
  return o;
}

int Py_IsInitialized(void) { return !atomic_load(&ended); }
const char *Py_GetVersion(void) { return "3.12.1 (pretended)"; }
int PyGILState_Ensure(void) {
  CHECK(!atomic_load(&ended));
  take_gil();
  return 7;
}
void PyGILState_Release(int state) {
  CHECK(state == 7);
  CHECK(collects);
  drop_gil();
}
void *PyEval_SaveThread(void) {
  drop_gil();
  return &gil;
}
void PyEval_RestoreThread(void *state) {
  CHECK(state == &gil);
  take_gil();
}
object *PyImport_ImportModule(const char *name) {
  (void)name;
  return new_reference(&module);
}
object *PyObject_GetAttrString(object *o, const char *name) {
  if (o->what == CODE) {
    static object function = {.what = TEXT, .text = "f"}, file = {.what = TEXT, .text = "a\nb.py"};
    return new_reference(strcmp(name, "co_filename") == 0 ? &file : &function);
  }
  if (strcmp(name, "_is_gil_enabled") == 0) return NULL;
  for (int i = 0; i < 16; i++) {
    if (callables[i].text == NULL) callables[i] = (object){.what = CALLABLE, .text = strdup(name)};
    if (strcmp(callables[i].text, name) == 0) return new_reference(&callables[i]);
  }
  return NULL;
}
object *PyObject_CallObject(object *o, object *arguments) {
  CHECK(arguments == NULL && o->what == CALLABLE && has_gil);
  if (strcmp(o->text, "_current_frames") == 0) return new_reference(&dict);
  if (strcmp(o->text, "isenabled") == 0) return new_reference(collects ? &truth : &none);
  CHECK(strcmp(o->text, "disable") == 0 || strcmp(o->text, "enable") == 0);
  collects = strcmp(o->text, "enable") == 0;
  return new_reference(&none);
}
object *PyObject_CallFunctionObjArgs(object *o, ...) {
  CHECK(strcmp(o->text, "register") == 0);
  return new_reference(&none);
}
int PyObject_IsTrue(object *o) { return o->what == TRUE_VALUE; }
void PyErr_Clear(void) { CHECK(has_gil); }
void Py_DecRef(object *o) {
  CHECK(o != NULL && has_gil);
  atomic_fetch_sub(&references, 1);
}
object *Py_BuildValue(const char *format, ...) {
  CHECK(format[0] == 0);
  return new_reference(&none);
}
object *PyCFunction_NewEx(void *definition, object *self, object *name) {
  CHECK(self == NULL && name == NULL);
  ends = ((struct {
           const char *name;
           object *(*function)(object *, object *);
         } *)definition)
             ->function;
  static object function = {.what = CALLABLE, .text = "ends"};
  return new_reference(&function);
}
int PyDict_Next(object *o, ptrdiff_t *position, object **key, object **value) {
  CHECK(o == &dict && has_gil);
  for (; *position < THREADS; ++*position) {
    if (!threads[*position].known) continue;
    *key = &keys[*position];
    *value = &frames[*position][0];
    ++*position;
    return 1;
  }
  return 0;
}
unsigned long PyLong_AsUnsignedLong(object *o) { return (unsigned long)threads[o->thread].ident; }
const char *PyUnicode_AsUTF8AndSize(object *o, ptrdiff_t *length) {
  *length = (ptrdiff_t)strlen(o->text);
  return o->text;
}
object *PyFrame_GetBack(object *o) {
  return o->depth + 1 < DEPTH ? new_reference(&frames[o->thread][o->depth + 1]) : NULL;
}
object *PyFrame_GetCode(object *o) { return new_reference(&codes[o->thread][o->depth]); }
int PyFrame_GetLineNumber(object *o) {
  CHECK(has_gil);
  return (int)threads[o->thread].line + o->depth;
}

static _Atomic long lines[MAX_CORRELATION]; // of launches
static _Atomic uint32_t correlation;

// launch launches without the GIL, as an operator of PyTorch does.
static void launch(int thread, long line) {
  uint32_t c = atomic_fetch_add(&correlation, 1) + 1;
  take_gil();
  threads[thread].line = line;
  drop_gil();
  atomic_store(&lines[c], line);
  gpufl_stacks_launch(c, c % 100 == 0 ? (const char *)(uintptr_t)(c * 64) : NULL);
}

static void *work(void *at) {
  int thread = (int)(intptr_t)at;
  take_gil();
  threads[thread].ident = pthread_self();
  threads[thread].known = true;
  drop_gil();
  for (long i = 0; i < LAUNCHES; i++) {
    launch(thread, 1000000 * (thread + 1) + 10 * i);
    usleep(20);
  }
  take_gil();
  threads[thread].known = false;
  drop_gil();
  return NULL;
}

int main(void) {
  for (int t = 0; t < THREADS; t++) {
    keys[t] = (object){KEY, t, 0, NULL};
    for (int d = 0; d < DEPTH; d++) {
      frames[t][d] = (object){FRAME, t, d, NULL};
      codes[t][d] = (object){CODE, t, d, NULL};
    }
  }
  gpufl_stacks_start();
  CHECK(gpufl_stacks_reason() == NULL && gpufl_stacks_on());
  pthread_t all[THREADS - 1];
  for (int t = 0; t < THREADS - 1; t++) {
    CHECK(pthread_create(&all[t], NULL, work, (void *)(intptr_t)t) == 0);
  }
  long exact = 0;
  gpufl_stack_event e[64];
  for (int round = 0; round < 100; round++) {
    usleep(5000);
    for (int n; (n = gpufl_stack_events(e, 64)) > 0;) {
      for (int i = 0; i < n; i++) {
        if (e[i].samples > 0) continue;
        long line = atomic_load(&lines[e[i].correlation]);
        char want[100];
        snprintf(want, sizeof want, "f (a?b.py:%ld)\nf (a?b.py:%ld)\nf (a?b.py:%ld)", line, line + 1, line + 2);
        CHECK(strcmp(want, e[i].text) == 0);
        exact++;
      }
    }
  }
  for (int t = 0; t < THREADS - 1; t++) CHECK(pthread_join(all[t], NULL) == 0);
  CHECK(exact > 0);

  // A launch after a pause, with the line of the pause.
  take_gil();
  threads[THREADS - 1].ident = pthread_self();
  threads[THREADS - 1].known = true;
  drop_gil();
  bool late = false;
  for (int tries = 0; tries < 50 && !late; tries++) {
    launch(THREADS - 1, 1);
    take_gil();
    threads[THREADS - 1].line = 5;
    drop_gil();
    usleep(60000);
    launch(THREADS - 1, 9);
    usleep(5000);
    for (int n; (n = gpufl_stack_events(e, 64)) > 0;) {
      for (int i = 0; i < n; i++) late = late || (e[i].samples > 0 && strncmp(e[i].text, "f (a?b.py:5)\n", 13) == 0);
    }
  }
  CHECK(late);

  // The interpreter ends, and nothing is called any more.
  take_gil();
  object *result = ends(NULL, NULL);
  CHECK(result == &none);
  Py_DecRef(result);
  long kept = atomic_load(&references);
  CHECK(kept == 4); // _current_frames and those of gc
  atomic_store(&ended, true);
  drop_gil();
  CHECK(!gpufl_stacks_on());
  launch(THREADS - 1, 11);
  gpufl_stacks_stop();
  gpufl_stacks_start();
  CHECK(!gpufl_stacks_on() && gpufl_stacks_reason() != NULL);
  printf("%ld stacks\n", exact);
  return 0;
}
