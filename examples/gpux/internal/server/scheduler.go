// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

var (
	errBusy     = errors.New("too many requests are waiting")
	errStopping = errors.New("the server is stopping")
	errBodies   = errors.New("the bodies of all requests together are too large now")
)

// Model is what the server runs: *engine.Model.
type Model interface {
	Run(ctx context.Context, values engine.Tensors) (engine.Tensors, error)
}

// job is a request that waits or runs. Done gets one result.
type job struct {
	ctx    context.Context
	values engine.Tensors
	rows   int64
	queued time.Time
	wait   trace.Span
	done   chan result
}

type result struct {
	values engine.Tensors
	err    error
}

// scheduler runs jobs on a fixed number of workers. It never waits for more jobs: a worker that is
// free takes what is there, up to batch rows that fit together.
type scheduler struct {
	model   Model
	inputs  []onnx.Value
	batch   int64
	timeout time.Duration
	metrics *modelMetrics

	queue   chan *job
	workers sync.WaitGroup
	mutex   sync.RWMutex // guards the closing of queue
	closed  bool
}

// newScheduler starts the workers of a model.
func newScheduler(m *Served, all *metrics) *scheduler {
	serving := m.Config.Serving
	queue := make(chan *job, serving.Queue)
	s := &scheduler{
		model: m.Model, inputs: m.Info.Inputs, batch: 1, timeout: time.Duration(m.Config.Runtime.Timeout), queue: queue,
		metrics: all.of(m.Config.Name, m.version(), func() float64 { return float64(len(queue)) }),
	}
	if batchable(m.Info) {
		s.batch = int64(serving.BatchSize)
	}
	for range serving.MaxWorkers {
		s.workers.Go(s.work)
	}
	return s
}

// batchable says whether rows of several requests can be in one run: the first dimension of all
// inputs and outputs is unknown.
func batchable(m *onnx.Model) bool {
	for _, list := range [][]onnx.Value{m.Inputs, m.Outputs} {
		for _, v := range list {
			if len(v.Dims) == 0 || v.Dims[0].Size >= 0 {
				return false
			}
		}
	}
	return true
}

// run waits for a worker and runs the values.
func (s *scheduler) run(ctx context.Context, values engine.Tensors) (engine.Tensors, error) {
	if err := engine.Check(s.inputs, values); err != nil {
		return nil, err
	}
	j := &job{ctx: ctx, values: values, rows: s.rows(values), queued: time.Now(), done: make(chan result, 1)}
	_, j.wait = otel.Tracer(scopeName).Start(ctx, "queue")
	if err := s.put(j); err != nil {
		j.wait.End()
		return nil, err
	}
	select {
	case r := <-j.done:
		return r.values, r.err
	case <-ctx.Done():
		return nil, errors.Join(engine.ErrTimeout, context.Cause(ctx))
	}
}

func (s *scheduler) put(j *job) error {
	s.mutex.RLock()
	defer s.mutex.RUnlock()
	if s.closed {
		return errStopping
	}
	select {
	case s.queue <- j:
		return nil
	default:
		return errBusy
	}
}

// warm runs zeros with the numbers of rows that batches have: the powers of two and the largest. The
// first runs of a size take longer, above all on a GPU.
func (s *scheduler) warm(ctx context.Context) error {
	ctx, span := otel.Tracer(scopeName).Start(ctx, "warm-up")
	defer span.End()
	for rows := int64(1); ; rows = min(2*rows, s.batch) {
		values, err := engine.Zeros(s.inputs, rows)
		if err != nil {
			return err
		}
		bound, cancel := context.WithTimeout(ctx, s.timeout)
		_, err = s.model.Run(bound, values)
		cancel()
		if err != nil || rows == s.batch {
			return err
		}
	}
}

// close runs what waits and ends the workers.
func (s *scheduler) close() {
	s.mutex.Lock()
	if !s.closed {
		s.closed = true
		close(s.queue)
	}
	s.mutex.Unlock()
	s.workers.Wait()
}

// rows returns the common first dimension of the values, or 0 if they have none.
func (s *scheduler) rows(values engine.Tensors) int64 {
	rows := int64(0)
	for _, in := range s.inputs {
		t := values[in.Name]
		if len(t.Shape) == 0 || t.Shape[0] == 0 || rows > 0 && t.Shape[0] != rows {
			return 0
		}
		rows = t.Shape[0]
	}
	return rows
}

func (s *scheduler) work() {
	var next *job // taken from the queue, but too large for the batch before it
	for {
		first := next
		if next = nil; first == nil {
			var ok bool
			if first, ok = <-s.queue; !ok {
				return
			}
		}
		jobs := []*job{first}
		for rows := first.rows; first.rows > 0 && rows < s.batch && next == nil; {
			var j *job
			select {
			case j = <-s.queue:
			default:
			}
			if j == nil {
				break
			}
			if rows += j.rows; j.rows > 0 && rows <= s.batch && s.fit(first, j) {
				jobs = append(jobs, j)
			} else {
				next = j
			}
		}
		s.start(jobs)
	}
}

// fit says whether the rows of two jobs can be in one run.
func (s *scheduler) fit(a, b *job) bool {
	for _, in := range s.inputs {
		x, y := a.values[in.Name].Shape, b.values[in.Name].Shape
		if len(x) != len(y) {
			return false
		}
		for i := 1; i < len(x); i++ {
			if x[i] != y[i] {
				return false
			}
		}
	}
	return true
}

// start runs the jobs whose clients still wait.
func (s *scheduler) start(jobs []*job) {
	began := time.Now()
	waiting := jobs[:0]
	for _, j := range jobs {
		s.metrics.waited(j.ctx, began.Sub(j.queued))
		if j.ctx.Err() != nil {
			j.wait.End()
			continue
		}
		waiting = append(waiting, j)
	}
	switch len(waiting) {
	case 0:
	case 1:
		j := waiting[0]
		j.wait.End()
		ctx, cancel := context.WithTimeout(j.ctx, s.timeout)
		defer cancel()
		values, err := s.model.Run(ctx, j.values)
		s.metrics.ran(j.rows)
		j.done <- result{values, err}
	default:
		s.together(waiting)
	}
}

// together runs several jobs as one. The run ends early only if no client waits for it any more.
func (s *scheduler) together(jobs []*job) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	var links []trace.Link
	for _, j := range jobs {
		links = append(links, trace.LinkFromContext(j.ctx))
	}
	ctx, span := otel.Tracer(scopeName).Start(ctx, "batch", trace.WithNewRoot(), trace.WithLinks(links...), trace.WithAttributes(attribute.Int("gpux.batch.requests", len(jobs))))
	var gone sync.WaitGroup
	over := make(chan struct{})
	for _, j := range jobs {
		j.wait.AddLink(trace.Link{SpanContext: span.SpanContext()})
		j.wait.End()
		gone.Go(func() {
			select {
			case <-j.ctx.Done():
			case <-over:
			}
		})
	}
	watched := make(chan struct{})
	go func() { gone.Wait(); cancel(); close(watched) }()
	defer func() { close(over); <-watched }()

	values, rows, err := s.join(jobs)
	if err == nil {
		values, err = s.model.Run(ctx, values)
		s.metrics.ran(rows)
	}
	span.End() // before the answers: who has one may read the trace
	at := int64(0)
	for _, j := range jobs {
		r := result{err: err}
		if err == nil {
			r.values = engine.Tensors{}
			for name, t := range values {
				if len(t.Shape) == 0 || t.Shape[0] != rows {
					r.err = errors.New("the model does not return a row for each row of its input; set serving.batch_size to 1")
					break
				}
				r.values[name] = t.Rows(at, at+j.rows)
			}
		}
		at += j.rows
		j.done <- r
	}
}

func (s *scheduler) join(jobs []*job) (engine.Tensors, int64, error) {
	values, rows := engine.Tensors{}, int64(0)
	for _, j := range jobs {
		rows += j.rows
	}
	for _, in := range s.inputs {
		parts := make([]*tensor.Tensor, len(jobs))
		for i, j := range jobs {
			parts[i] = j.values[in.Name]
		}
		t, err := tensor.Concat(parts)
		if err != nil {
			return nil, 0, err
		}
		values[in.Name] = t
	}
	return values, rows, nil
}
