// SPDX-License-Identifier: Apache-2.0

package sharedcomponent

import (
	"context"
	"errors"
	"testing"

	"go.opentelemetry.io/collector/component"
)

type counting struct {
	starts, stops int
	err           error
}

func (c *counting) Start(context.Context, component.Host) error { c.starts++; return c.err }
func (c *counting) Shutdown(context.Context) error              { c.stops++; return nil }

func TestMap_SharedInstance(t *testing.T) {
	var m Map[string, *counting]
	made := 0
	create := func() (*counting, error) { made++; return &counting{err: errors.New("no")}, nil }
	a, err := m.Get("a", create)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := m.Get("a", create)
	b, _ := m.Get("b", create)
	if a != again || a == b || made != 2 {
		t.Fatalf("made %d instances, same key shared: %v, other key shared: %v", made, a == again, a == b)
	}
	for range 2 {
		if err := a.Start(context.Background(), nil); err == nil || err.Error() != "no" {
			t.Errorf("start: %v", err)
		}
		if err := a.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	}
	if c := a.Unwrap(); c.starts != 1 || c.stops != 1 {
		t.Errorf("started %d times, stopped %d times", c.starts, c.stops)
	}
	if after, _ := m.Get("a", create); after == a {
		t.Error("a stopped instance was handed out again")
	}
}

func TestMap_FailedCreation(t *testing.T) {
	var m Map[int, *counting]
	if _, err := m.Get(1, func() (*counting, error) { return nil, errors.New("bad") }); err == nil {
		t.Fatal("no error")
	}
	if s, err := m.Get(1, func() (*counting, error) { return &counting{}, nil }); err != nil || s == nil {
		t.Fatal(s, err)
	}
}

func TestShared_ShutdownLast(t *testing.T) {
	var m Map[string, *counting]
	s, err := m.Get("a", func() (*counting, error) { return &counting{}, nil })
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Start(context.Background(), nil); err != nil {
			t.Fatal(err)
		}
	}
	for call, want := range []int{0, 1, 1} {
		if err := s.ShutdownLast(context.Background()); err != nil || s.Unwrap().stops != want {
			t.Errorf("call %d: stopped %d times, want %d: %v", call+1, s.Unwrap().stops, want, err)
		}
	}
}
