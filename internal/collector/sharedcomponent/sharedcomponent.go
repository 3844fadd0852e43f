// SPDX-License-Identifier: Apache-2.0

// Package sharedcomponent lets one component instance serve several pipelines. A Collector calls a
// receiver's factory once per signal. A receiver that reads its source only once keeps its instance in
// a [Map]. The key is the configuration's pointer, which all those calls share.
package sharedcomponent

import (
	"context"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/collector/component"
)

// Map holds the running instances. Its zero value is ready to use. It is safe for concurrent use.
type Map[K comparable, V component.Component] struct {
	mu sync.Mutex
	m  map[K]*Shared[V]
}

// Get returns the instance of a key. It calls create if there is none.
func (m *Map[K, V]) Get(key K, create func() (V, error)) (*Shared[V], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.m[key]; s != nil {
		return s, nil
	}
	v, err := create()
	if err != nil {
		return nil, err
	}
	s := &Shared[V]{component: v, forget: func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.m, key)
	}}
	if m.m == nil {
		m.m = map[K]*Shared[V]{}
	}
	m.m[key] = s
	return s, nil
}

// Shared is an instance that several pipelines start and stop. Only the first call of Start and of
// Shutdown has an effect. Receivers stop with Shutdown, exporters with ShutdownLast.
type Shared[V component.Component] struct {
	component V
	forget    func()
	users     atomic.Int64 // calls of Start minus calls of ShutdownLast
	start     sync.Once
	stop      sync.Once
	startErr  error
	stopErr   error
}

// Unwrap returns the instance.
func (s *Shared[V]) Unwrap() V { return s.component }

// Start starts the instance once. Later calls return the error of the first.
func (s *Shared[V]) Start(ctx context.Context, host component.Host) error {
	s.users.Add(1)
	s.start.Do(func() { s.startErr = s.component.Start(ctx, host) })
	return s.startErr
}

// Shutdown stops the instance once and removes it from the map, so that a reload creates a new one.
func (s *Shared[V]) Shutdown(ctx context.Context) error {
	s.stop.Do(func() {
		s.stopErr = s.component.Shutdown(ctx)
		s.forget()
	})
	return s.stopErr
}

// ShutdownLast stops the instance when each caller of Start has called it. A Collector stops the
// exporters of one pipeline while another one, which a connector feeds, still sends.
func (s *Shared[V]) ShutdownLast(ctx context.Context) error {
	if s.users.Add(-1) > 0 {
		return nil
	}
	return s.Shutdown(ctx)
}
