// SPDX-License-Identifier: Apache-2.0

// Command goprogram uses the (fake) driver from Go, so that two Go runtimes are in one process. It
// uses runtime features that both need: preemption, panics after faults, and signals.
package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

static void *symbol(const char *name) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  return library == NULL ? NULL : dlsym(library, name);
}
static int init(void) {
  int (*call)(unsigned);
  *(void **)&call = symbol("cuInit");
  return call == NULL ? -1 : call(0);
}
static int launch(char *function) {
  static int (*call)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  if (call == NULL) *(void **)&call = symbol("cuLaunchKernel");
  return call(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
}
*/
import "C"

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"
)

func main() {
	fmt.Println("init", C.init())
	// Only a signal preempts a loop without calls.
	stop := false
	spin := func() {
		for n := 0; !stop; n++ {
		}
	}
	go spin()
	name := C.CString("from_go")
	C.launch(name) // the symbol is looked up once
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 250 {
				C.launch(name)
				if i%50 == 0 {
					runtime.GC()
				}
			}
		})
	}
	all.Wait()

	came := make(chan os.Signal, 1)
	signal.Notify(came, syscall.SIGUSR1)
	_ = syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	fmt.Println(<-came)
	func() {
		defer func() { fmt.Println(recover()) }()
		var p *int
		*p = 1
	}()
	time.Sleep(time.Second) // what has been launched is sent meanwhile
	os.Exit(6)
}
