/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the C core share for windows.
 *
 *   modules.c     images of modules, contexts, captures: what the callbacks tell
 *   gate.c        keeps the application's calls out while CUPTI rearranges things
 *   threads.c     whose threads there are; waits for calls that were under way before anybody looked
 *   deep.c        the window: its rows, texts and counts, and who may do what
 *   claims.c      of which context of which process PC samples are taken
 *   pcsampling.c  one engine
 *   sass.c        the other
 */
#ifndef GPUFL_DEEP_INTERNAL_H
#define GPUFL_DEEP_INTERNAL_H

#include "gpufl_deep.h"
#include "gpufl_deep_abi.h"
#include "gpufl_internal.h"

#define GPUFL_FIELD(field, symbol, parameters) int (*field) parameters;
typedef struct {
  GPUFL_DEEP_SHARED(GPUFL_FIELD)
  GPUFL_DEEP_PC(GPUFL_FIELD)
  GPUFL_DEEP_SASS(GPUFL_FIELD)
} gpufl_deep_calls;
typedef struct {
  GPUFL_DEEP_DRIVER(GPUFL_FIELD)
} gpufl_deep_driver_calls;
#undef GPUFL_FIELD

/* In deep.c. Entries are NULL where the library lacks them. */
extern gpufl_deep_calls gpufl_deep;
extern gpufl_deep_driver_calls gpufl_deep_driver;

/* GPUFL_DEEP_CALL calls one of gpufl_deep's functions, and leaves word of it in case it never returns or refuses. */
#define GPUFL_DEEP_CALL(field, p) (gpufl_deep_calling(#field), gpufl_deep_returned(#field, gpufl_deep.field(p)))
void gpufl_deep_calling(const char *function);
int gpufl_deep_returned(const char *function, int result);

/* gpufl_deep_load looks the functions up in a library that gpufl_load has taken. */
void gpufl_deep_load(void *library);
void gpufl_deep_load_driver(void *library);

/* gpufl_deep_armed: a window is open, or was given up. */
bool gpufl_deep_armed(void);
/* gpufl_deep_patches: kernels are patched as they are launched, in a window that was not given up. */
bool gpufl_deep_patches(void);
bool gpufl_deep_is_given_up(void);

/* ---- callbacks (cupti.c) ---- */

/* Sets of the driver's functions. Calls about modules and captures are rare and always watched, where windows may
 * come; launches, copies among them, from the first window on, or from the beginning where gpufl_config asks for it. */
enum { GPUFL_SET_LAUNCH = 1, GPUFL_SET_MODULE = 2, GPUFL_SET_CAPTURE = 4, GPUFL_SETS_ALWAYS = GPUFL_SET_MODULE | GPUFL_SET_CAPTURE, GPUFL_SETS_ALL = GPUFL_SETS_ALWAYS | GPUFL_SET_LAUNCH };

/* gpufl_watch has CUPTI tell of the functions in these sets too, until the subscription ends: switched off and on again
 * beside launches, CUPTI 13.0 was seen to tell some threads no more (H200). True if it told of some of them not yet. */
bool gpufl_watch(uint32_t sets);

/* What is switched beside launches, kinds of activity or callbacks, may be lost to some threads for good: CUPTI 13.0 then makes no
 * records of their launches, or tells of none (H200, driver 580, test/gpu/budget/switches.c: no records of 5 of 20 threads, no calls of
 * 5 of 5; all where launches waited), and a window of SASS metrics patches nothing of theirs (2 of 157 first windows, test/gpu/deep.py --only again).
 * And once a window has been open it locks up. gpufl_quiet_begin has launches wait until gpufl_quiet_end: 1 if they do; 0 if
 * nobody knows of launches, or they came to no rest and that is all the harm; GPUFL_RESTLESS if they came to no rest in limit_ns and
 * nothing must be switched. gpufl_quiet_end takes that answer. */
int gpufl_quiet_begin(int64_t limit_ns);
void gpufl_quiet_end(int quiet);
/* gpufl_window_comes says that from now on nothing must be switched beside launches, as if a window had been open. */
void gpufl_window_comes(void);
#define GPUFL_QUIET_NS ((int64_t)5 * 1000000000)

/* Between gpufl_flush_lock and gpufl_flush_end nobody else flushes, and gpufl_flush_begin does: a thread of CUPTI's that works at records
 * locks up with what rearranges things. gpufl_flush_lock waits for who flushes until a time of gpufl_monotonic; false if that was not enough. */
bool gpufl_flush_lock(int64_t until);
void gpufl_flush_begin(void);
void gpufl_flush_end(void);

/* gpufl_deep_watch_exit has windows end at exit. It is called as gpufl_open listens: whoever registers for the exit after that, as
 * the injection library does, is called before, and can still close a window in order. */
void gpufl_deep_watch_exit(void);

/* gpufl_listens: contexts, modules and captures have been told of since gpufl_open. */
bool gpufl_listens(void);

/* gpufl_hears says whether CUPTI tells of a call of the driver, by one that loads a module that is not there; false as well if it cannot be
 * tried. For an operation, at rest. */
bool gpufl_hears(void);

/* gpufl_set_deaf is where CUPTI was seen to have taken down what it had in the way of the driver's calls: it tells of nothing and records nothing
 * any more, until the process ends. From then on nothing is switched, since that may crash it; what it has is taken as ever. */
void gpufl_set_deaf(void);

/* gpufl_activity: some kind of activity is on. */
bool gpufl_activity(void);

/* ---- gate.c ---- */

/* What on_api tells, of functions in a set that is watched. gpufl_gate_life was asked before it was looked whether the set is
 * watched: a call that began in another life of the gate is let through and not counted, since its end may not be told. what is a number of
 * the caller's for the function, number is CUPTI's for the call: together they are known again at its end. parameters are the call's, where
 * CUPTI has them. */
uint32_t gpufl_gate_life(void);
void gpufl_gate_enter(uint32_t set, uint32_t life, uint32_t what, uint32_t number, const void *parameters);
void gpufl_gate_exit(uint32_t what, uint32_t number);

/* gpufl_gate_close lets no further call of these sets begin and waits until those inside have ended; false
 * if they have not in time, and then it stays closed all the same until gpufl_gate_open. */
bool gpufl_gate_close(uint32_t sets, int64_t limit_ns);
/* gpufl_gate_hold is for what CUPTI must not be asked to do beside those calls: if none is inside, nobody who waits goes on until
 * gpufl_gate_open, whose caller is the one that held. False if one is. */
bool gpufl_gate_hold(void);
void gpufl_gate_open(void);
/* gpufl_gate_release opens it unless it is held. */
void gpufl_gate_release(void);
/* gpufl_gate_forget forgets who is inside: their ends will not be told. */
void gpufl_gate_forget(void);
/* gpufl_gate_inside: which thread was last found inside when the gate was closed, 0 for none, and in which call; *out if it was seen to
 * sleep outside of it, so that its end was not told. */
void gpufl_gate_inside(int32_t *thread, uint32_t *what, bool *out);
/* gpufl_gate_counts: how many calls waited ever, how many went on before the gate was open, and of how many the end was not told, as far as
 * their threads have made others since; the longest wait in ns since gpufl_gate_begin. */
typedef struct {
  uint64_t waited, timeouts, untold;
  int64_t longest;
} gpufl_gate_totals;
void gpufl_gate_begin(void);
gpufl_gate_totals gpufl_gate_counts(void);

/* gpufl_operating: the calling thread is inside one of our own operations, and what CUPTI tells on it
 * is our doing. */
extern __thread bool gpufl_operating;

/* ---- heap.c ---- */

/* What a thread of the application holds of malloc between windows. All zero is none. */
typedef struct {
  uint32_t turn;
  void *pieces;
  size_t num_pieces, bytes;
} gpufl_heap;

/* A window opens or is over: one at a time tells. gpufl_heap_later is called every now and then. */
void gpufl_heap_window(bool open);
void gpufl_heap_later(void);
/* gpufl_heap_turn is odd while a window is open. A thread that launches and has seen another one calls gpufl_heap_settle, outside of all
 * locks: it takes free pieces or gives them back. gpufl_heap_forget gives them back for good. gpufl_heap_held is how many bytes all
 * threads hold. */
extern _Atomic uint32_t gpufl_heap_turn;
void gpufl_heap_settle(gpufl_heap *h);
void gpufl_heap_forget(gpufl_heap *h);
size_t gpufl_heap_held(void);

/* ---- threads.c ---- */

/* gpufl_thread_is_cuptis says whether CUPTI made the calling thread; false if it cannot be told. gpufl_threads_learn is given one of CUPTI's
 * functions before. */
void gpufl_threads_learn(void *function);
bool gpufl_thread_is_cuptis(void);

/* gpufl_thread_sleeps says whether a thread of this process sleeps, and how far its stack reaches down then; false as well if the kernel does not say. */
bool gpufl_thread_sleeps(int32_t id, uintptr_t *stack);

/* gpufl_threads_pass waits until each other thread of the process has run for a while or been seen asleep: none is in a short call
 * any more that it was in before. False if some have not by a time of gpufl_monotonic. */
bool gpufl_threads_pass(int64_t until);

/* ---- modules.c ---- */

/* gpufl_resources_open makes room for images, gpufl_resources_close forgets all. */
void gpufl_resources_open(uint64_t max_bytes);
void gpufl_resources_close(void);
/* gpufl_resources_lose is when nothing is told any more: images stay, but what becomes of modules, contexts
 * and captures is not known. */
void gpufl_resources_lose(void);
void gpufl_on_resource(uint32_t cbid, const void *data);
void gpufl_on_capture(bool begins, const gpufl_callback_data *call);
uint32_t gpufl_captures(void);
/* gpufl_captures_known: captures have been told for so long that none can be under way of which only the end is told. */
bool gpufl_captures_known(void);

enum { GPUFL_MAX_CONTEXTS = 64 };
typedef struct {
  void *handle;
  int32_t device;   /* -1: not known */
  bool seen;        /* its creation was told, and so were its captures */
  bool ending;      /* and so is its end */
} gpufl_context;

/* gpufl_known_contexts is how many contexts have been told of; it asks nobody. */
int gpufl_known_contexts(void);

/* gpufl_contexts copies the contexts that exist; *more gets how many had no room. */
int gpufl_contexts(gpufl_context out[GPUFL_MAX_CONTEXTS], uint64_t *more);
bool gpufl_context_exists(void *handle);
/* gpufl_context_lives: and has not begun to end. */
bool gpufl_context_lives(void *handle);

/* gpufl_module_loads is how often an image with this CRC was loaded; 0 if it is not known. */
uint32_t gpufl_module_loads(uint64_t crc);

/* ---- deep.c, for the engines ---- */

/* gpufl_deep_context_ends is told by modules.c before a context goes. */
void gpufl_deep_context_ends(void *handle);

uint32_t gpufl_window_function(const char *name);
/* gpufl_window_name is the index of a stall reason or metric; UINT32_MAX if there is no room. */
uint32_t gpufl_window_name(const char *name);
void gpufl_window_row(const gpufl_deep_row *row);
/* gpufl_window_room is how many more rows there is room for. */
uint32_t gpufl_window_room(void);
void gpufl_window_known(uint32_t index); /* a device knows this name of the configuration */

/* gpufl_window_count adds to one of the counts of gpufl_window_counts. */
void gpufl_window_count(uint64_t *which, uint64_t n);
extern gpufl_deep_counts gpufl_window_counts;

/* gpufl_window_config is the open window's; its names are the first of gpufl_deep_name. */
extern gpufl_deep_config gpufl_window_config;

/* gpufl_window_idle waits until the contexts have done what was launched; false if they have not in
 * time, or if it cannot be known without harm. The gate is closed. */
bool gpufl_window_idle(int64_t limit_ns);

/* gpufl_window_rest closes the gate on all sets and waits until the application is in none of those calls; with idle
 * also until its contexts have done what was launched. False if they have not, at the latest after limit_ns and well before the first that
 * waits at the gate goes on: then the gate is open again. Where it is true the caller opens the gate, soon. */
bool gpufl_window_rest(bool idle, int64_t limit_ns);

void gpufl_nap(int64_t ns);

/* gpufl_enter_context makes a context the calling thread's, gpufl_leave_context undoes that if it did. */
bool gpufl_enter_context(void *handle);
void gpufl_leave_context(bool entered);

/* ---- claims.c ---- */

/* gpufl_claim takes a GPU for this process, to sample of it: GPUFL_TAKEN if another one has it, GPUFL_NO_MEMORY if that cannot be known.
 * gpufl_claim_mark says that a context of it is sampled from now on, and answers whether it was not before, gpufl_claim_unmark that it ends or begins, and gpufl_claims_settle
 * gives back what is not sampled any more, not at once as gpufl_claim_unmark is told before the end, and unless wanted what was claimed and is not
 * sampled yet. gpufl_claims_settle and gpufl_claim_unmark are for any thread.
 * gpufl_claim_other: another context of the GPU was sampled in this process, and its end was not told, nor that its handle is a new one's. */
int gpufl_claim(int32_t device);
bool gpufl_claim_mark(void *handle, int32_t device);
void gpufl_claim_unmark(void *handle);
void gpufl_claims_settle(bool wanted);
bool gpufl_claim_other(void *handle, int32_t device);
/* gpufl_claims_in_child is for a child that was forked, which has nothing to claim. */
void gpufl_claims_in_child(void);

/* ---- the engines ---- */

/* gpufl_pc_open arms contexts, gpufl_pc_start has those that are armed sampled, gpufl_pc_stop no more, gpufl_pc_close disarms: all but
 * the first only at rest. All take all contexts; the answer is the first refusal, but of gpufl_pc_open and gpufl_pc_start only if none is
 * armed, or sampled. gpufl_pc_armed: some are to be disarmed, be it that gpufl_pc_open refused. */
int gpufl_pc_open(void);
bool gpufl_pc_armed(void);
int gpufl_pc_start(void);
int gpufl_pc_stop(void);
/* gpufl_pc_collect arms contexts that are new as well. gpufl_pc_waits: some wait for gpufl_pc_start. */
int gpufl_pc_collect(int *more);
bool gpufl_pc_waits(void);
/* gpufl_pc_drain takes what is left, of gpufl_monotonic until then; *more if that was too short. What remains is counted in the end. */
int gpufl_pc_drain(int64_t until, bool *more);
int gpufl_pc_close(void);
bool gpufl_pc_samples(void *handle);
/* at_rest: the caller has the operation to itself, and the application rests; else the context is only given up. */
void gpufl_pc_context_ends(void *handle, bool at_rest);

int gpufl_sass_open(void);
int gpufl_sass_close(void);
/* gpufl_sass_forget is when CUPTI has forgotten its configuration, by cuptiFinalize. */
void gpufl_sass_forget(void);
void gpufl_sass_context_ends(void *handle);
const char *gpufl_sass_obstacle(void);

#endif
