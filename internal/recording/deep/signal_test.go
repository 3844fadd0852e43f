// SPDX-License-Identifier: Apache-2.0

//go:build unix

package deep

import (
	"context"
	"syscall"
	"testing"
	"time"
)

// TestSignalOpensAWindow runs by the real clock: a signal comes from outside of every bubble.
func TestSignalOpensAWindow(t *testing.T) {
	closed := make(chan Window, 1)
	f := &fakeEngines{t: t}
	c, err := New(Config{Signal: "USR2", For: MinFor, Blackout: -1, Closed: func(w Window) { closed <- w }}, f)
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case w := <-closed:
		if w.Cause != CauseSignal || w.Why != "SIGUSR2" || w.Outcome.Status != StatusCollected {
			t.Errorf("window %+v", w)
		}
	case <-ctx.Done():
		t.Error("no window")
	}
	end(t, c)
}
