// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/tensor"
)

// Limits of requests.
const (
	maxBody     = 64 << 20
	maxBodies   = 512 << 20 // of all bodies that are in memory at a time
	readTimeout = time.Minute
)

// Options of a server.
type Options struct {
	Config    *config.Config
	Info      *onnx.Model
	Model     Model
	Selection engine.Selection
	// Size is the size of the model's file in bytes.
	Size int64
	// Runtime is the version of ONNX Runtime.
	Runtime string
	// Key must be sent as bearer token with each inference request. Empty means none.
	Key string
	// ReadTimeout is the longest that a body may take to arrive; 0 means a minute.
	ReadTimeout time.Duration
	// MaxBodies bounds the bytes of all bodies in memory; 0 means 512 MiB.
	MaxBodies int64
}

// Server answers requests for one model.
type Server struct {
	o         Options
	scheduler *scheduler
	metrics   *metrics
	ready     atomic.Bool
	bodies    budget
	handler   http.Handler
}

// New returns a server that is ready. Close ends it.
func New(o Options) *Server {
	o.ReadTimeout, o.MaxBodies = cmp.Or(o.ReadTimeout, readTimeout), cmp.Or(o.MaxBodies, maxBodies)
	s := &Server{o: o, bodies: budget{limit: o.MaxBodies}}
	s.metrics = newMetrics(func() float64 { return float64(len(s.scheduler.queue)) })
	c := o.Config
	s.scheduler = newScheduler(o.Model, o.Info, c.Serving.MaxWorkers, c.Serving.Queue, c.Serving.BatchSize, time.Duration(c.Runtime.Timeout), s.metrics)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("GET /info", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, s.info()) })
	mux.HandleFunc("GET /metrics", s.serveMetrics)
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, s.openAPI()) })
	mux.HandleFunc("POST /predict", s.inference(s.predict))
	s.routeV2(mux)
	s.handler = otelhttp.NewHandler(mux, "gpux",
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return r.Method + " " + r.URL.Path }),
		otelhttp.WithFilter(func(r *http.Request) bool { return r.Method == http.MethodPost }))
	s.ready.Store(true)
	return s
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Close runs what waits and releases the workers. Call it after the last request was answered.
func (s *Server) Close() { s.scheduler.close() }

// Serve answers connections of the listener until ctx ends. Then it is no longer ready, refuses new
// connections, answers the requests that it has, for at most grace, and returns.
func (s *Server) Serve(ctx context.Context, l net.Listener, grace time.Duration) error {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: s.o.ReadTimeout, IdleTimeout: 2 * time.Minute,
		WriteTimeout: s.o.ReadTimeout + time.Duration(s.o.Config.Serving.Timeout) + time.Minute, MaxHeaderBytes: 1 << 16,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	s.ready.Store(false)
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := server.Shutdown(bound)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("some requests were not answered within %s", grace)
	}
	s.Close()
	return err
}

// problem is an error with its HTTP status.
type problem struct {
	status int
	text   string
}

func (p *problem) Error() string { return p.text }

func bad(format string, args ...any) error {
	return &problem{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

func reply(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"detail":"the answer cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that has gone is not told
}

// status returns the HTTP status and the text of an error.
func status(err error) (int, string) {
	var p *problem
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &p):
		return p.status, p.text
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d MiB", maxBody>>20)
	case errors.Is(err, engine.ErrInput):
		return http.StatusBadRequest, err.Error()
	case errors.Is(err, errBusy):
		return http.StatusTooManyRequests, err.Error()
	case errors.Is(err, errStopping), errors.Is(err, errBodies):
		return http.StatusServiceUnavailable, err.Error()
	case errors.Is(err, engine.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout, "the run did not end within the time limit"
	default:
		return http.StatusInternalServerError, err.Error()
	}
}

// inference wraps a route with the key, the limits, the time limit and the metrics.
func (s *Server) inference(f func(w http.ResponseWriter, r *http.Request, body []byte) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		code := http.StatusOK
		var err error
		if s.allowed(r) {
			in := &counted{Reader: http.MaxBytesReader(w, r.Body, maxBody), budget: &s.bodies}
			defer in.forget()
			var body []byte
			if body, err = io.ReadAll(in); err != nil {
				err = read(err)
			} else {
				ctx, cancel := context.WithTimeout(r.Context(), time.Duration(s.o.Config.Serving.Timeout))
				err = f(w, r.WithContext(ctx), body)
				cancel()
			}
		} else {
			w.Header().Set("WWW-Authenticate", "Bearer")
			err = &problem{http.StatusUnauthorized, "the API key is missing or wrong"}
		}
		if err != nil {
			var text string
			code, text = status(err)
			if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
				w.Header().Set("Retry-After", "1")
			}
			reply(w, code, map[string]string{"detail": text, "error": text})
		}
		s.metrics.answered(r.Context(), code, time.Since(began))
	}
}

func (s *Server) allowed(r *http.Request) bool {
	if s.o.Key == "" {
		return true
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	a, b := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(s.o.Key))
	return ok && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if !s.ready.Load() {
		reply(w, http.StatusServiceUnavailable, map[string]string{"status": "stopping", "model": s.o.Config.Name})
		return
	}
	reply(w, http.StatusOK, map[string]string{"status": "healthy", "model": s.o.Config.Name})
}

// serveMetrics answers with Prometheus's text if it is asked for, and with the provider otherwise.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	accept := r.Header.Get("Accept")
	if strings.Contains(accept, "text/plain") || strings.Contains(accept, "openmetrics") {
		promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(w, r)
		return
	}
	reply(w, http.StatusOK, map[string]any{"provider": s.o.Selection.Provider, "rejected": s.o.Selection.Rejected, "runtime": s.o.Runtime})
}

// predict reads {"input": value, …} and answers {"output": value, …}.
func (s *Server) predict(w http.ResponseWriter, r *http.Request, body []byte) error {
	values, err := Inputs(s.o.Info, body)
	if err != nil {
		return err
	}
	out, err := s.scheduler.run(r.Context(), values)
	if err != nil {
		return err
	}
	reply(w, http.StatusOK, out)
	return nil
}

// budget is the memory for the bodies of all requests.
type budget struct {
	mutex       sync.Mutex
	used, limit int64
}

// counted is a body that uses the budget until forget.
type counted struct {
	io.Reader
	*budget
	is int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.used+int64(n) > c.limit {
		c.used, c.is = c.used-c.is, 0 // at once, so that no other body fails for this one
		return n, errBodies
	}
	c.used, c.is = c.used+int64(n), c.is+int64(n)
	return n, err
}

func (c *counted) forget() {
	c.mutex.Lock()
	c.used -= c.is
	c.mutex.Unlock()
}

// read says that the body could not be read. It keeps the errors of limits.
func read(err error) error {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large), errors.Is(err, errBodies):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &problem{http.StatusRequestTimeout, "the body did not arrive in time"}
	}
	return bad("the body could not be read: %v", err)
}

// Inputs reads the inputs of a model from a JSON object. The errors are of the client, except none.
func Inputs(info *onnx.Model, body []byte) (engine.Tensors, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, bad("the body is no JSON object: %v", err)
	}
	values := engine.Tensors{}
	for _, in := range info.Inputs {
		raw, ok := fields[in.Name]
		if !ok {
			return nil, bad("Missing required input: '%s'", in.Name)
		}
		t, err := tensor.FromJSON(in.DType, raw, in.Shape())
		if err != nil {
			return nil, bad("Invalid input type for '%s': %v", in.Name, err)
		}
		values[in.Name] = t
		delete(fields, in.Name)
	}
	for name := range fields {
		return nil, bad("the model has no input '%s'", name)
	}
	return values, nil
}
